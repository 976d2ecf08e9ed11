"""Runs on: a worker's main process; the tasks, `open_process` and `close_process` on the process that runs them.

How a Celery worker becomes a slot, or the scheduler, what its two tasks do, and how it ends. Arguments of tasks are
ids, and both tasks may run twice.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import time
from typing import Any

from billiard import active_children
from billiard.util import set_pdeathsig
from celery.exceptions import Ignore
from celery.signals import (
    after_setup_logger,
    after_setup_task_logger,
    beat_embedded_init,
    celeryd_after_setup,
    worker_process_init,
    worker_process_shutdown,
    worker_shutting_down,
)

from app.away import LostRace
from app.domain.assignment import NAME
from app.events import Database, DatabaseUnavailable, SlotTaken, SqlRecords
from app.processes import end_within, write_json
from app.settings import settings
from app.workers.celery_app import SCHEDULER_QUEUE, celery
from app.workers.process import another_name, worker
from app.workers.roles import device_here
from app.workers.slot.device import NoDevice

logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


@celeryd_after_setup.connect
def check_queues(instance: Any, **_: Any) -> None:
    """End the worker, with one sentence, if it cannot be what its queue names."""
    queues = sorted(celery.amqp.queues.consume_from)
    if len(queues) > 1:
        raise SystemExit(f"one worker is one slot, but the queues {', '.join(queues)} were given; start one for each")
    if queues != [SCHEDULER_QUEUE]:
        _become_slot(queues[0])


@after_setup_logger.connect
@after_setup_task_logger.connect
def write_logs(logger: logging.Logger, **_: Any) -> None:
    """In the form that the settings say."""
    if settings().log_format == "json":
        write_json([logger])


@worker_process_init.connect
def open_process(**_: Any) -> None:
    """In the process that runs the tasks. It is the main one that is asked to end, also where all get the signal."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker.start_role(_queue())


@worker_shutting_down.connect
def retire(**_: Any) -> None:
    """A slot that is asked to end gives its chain back at the next step, and takes itself off the record."""
    end_within(settings().stop_seconds, _kill_forks)
    worker.shutdown.ask()


@worker_process_shutdown.connect
def close_process(**_: Any) -> None:
    worker.close()


@beat_embedded_init.connect  # Beat is a process of its own, and would go on when its worker is killed
def end_with_parent(**_: Any) -> None:
    """Be killed when the parent dies, however it does."""
    with contextlib.suppress(OSError):  # elsewhere than on Linux it cannot be asked for
        set_pdeathsig(signal.SIGKILL)


def _queue() -> str:
    return str(next(iter(celery.amqp.queues.consume_from)))


def _become_slot(name: str) -> None:
    if not NAME.fullmatch(name):
        raise SystemExit(
            f"queue {name} is no slot: name it gpu0 or cpu0, with another number for each, or with a host in front and"
            f" a hyphen between, such as host-gpu0; slots that share a GPU are gpu0a and gpu0b; the scheduler's is"
            f" {SCHEDULER_QUEUE}"
        )
    try:
        device_here(name)
        worker.own(name)
        _await_free()
    except NoDevice as problem:
        raise SystemExit(str(problem)) from None
    except SlotTaken as taken:
        raise SystemExit(f"{taken}; give this worker another queue, such as {another_name(name)}") from None


def _await_free() -> None:
    """Until it is sure that no other worker has the slot. A database that is away is not waited for here.

    Raises `SlotTaken`.
    """
    database = Database(settings().database_url, patience=settings().patience_seconds)
    try:
        while not _is_free(database):
            time.sleep(LOOK_SECONDS)
    except (DatabaseUnavailable, LostRace) as problem:
        logger.warning("the slot is put on record later: %s", problem)
    finally:
        database.dispose()  # connections must not be shared with the processes to come


def _is_free(database: Database) -> bool:
    assert worker.ownership is not None
    with SqlRecords(database).read() as rows:
        return worker.ownership.is_free(rows)


def _kill_forks() -> None:
    """Linux does so by itself."""
    for child in active_children():
        with contextlib.suppress(ProcessLookupError):
            os.kill(child.pid, signal.SIGKILL)


@celery.task(name="stagetree.stage")
def stage(chain: str, index: int) -> None:
    """Train one stage of a chain. A stale message ends here and sends nothing on."""
    if not worker.slot.run_stage(chain, index):
        raise Ignore


@celery.task(name="stagetree.tick")
def tick() -> None:
    """Look at what happened and decide what is next."""
    worker.scheduler.ticking.tick()
