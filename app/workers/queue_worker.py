"""Runs the Celery worker of a queue in this process, as `celery -A app.workers worker -Q gpu0 -c 1` does.

Celery's command line is not imported: it takes a tenth of a second, as it brings an interactive shell.

Runs on: a worker's main process.
"""

from __future__ import annotations

import logging
import sys
from typing import Any, NoReturn

from celery.utils.nodenames import host_format

from app.domain.slots import SCHEDULER
from app.workers.celery_app import celery


def serve(queue: str, **options: Any) -> NoReturn:
    """Run it until it ends, and exit with its code. The scheduler's worker also starts Celery's beat.

    options: further arguments of `celery.Worker`, named as those of the command.
    """
    worker = celery.Worker(
        hostname=host_format(f"{queue}@%h"),
        queues=[queue],
        concurrency=1,
        loglevel=logging.INFO,
        beat=queue == SCHEDULER,
        without_gossip=True,  # workers need not know of each other: the database has their state
        without_mingle=True,
        **options,
    )
    worker.start()
    sys.exit(worker.exitcode)
