"""A worker of a cluster as `stagetree worker QUEUE` starts it: with our modules, whatever the working folder holds."""

from __future__ import annotations

import sys
from typing import NoReturn

from celery.__main__ import main as celery_main

from app.workers.celery_app import SCHEDULER_QUEUE
from app.workers.prefork import import_all

QUIET = ("--without-gossip", "--without-mingle")
"""Workers need not know of each other: the database says what each has."""


def work(queue: str) -> NoReturn:
    """Be the Celery worker on a queue, until it ends."""
    import_all()  # Celery imports with the working folder first; what is there by now, it does not look for
    sys.argv = command(queue)
    sys.exit(celery_main())


def command(queue: str) -> list[str]:
    """What starts the same worker where nothing of ours is hidden."""
    beat = ["-B"] if queue == SCHEDULER_QUEUE else []
    name = ["-n", f"{queue}@%h"]
    return ["celery", "-A", "app.workers", "worker", "-l", "INFO", *QUIET, "-Q", queue, "-c", "1", *beat, *name]
