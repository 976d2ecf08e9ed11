"""How a Celery worker becomes a slot: its queues are checked when it starts, then its process opens the slot."""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import socket
from typing import Any

from billiard.util import set_pdeathsig
from celery.signals import (
    beat_embedded_init,
    celeryd_after_setup,
    worker_process_init,
    worker_process_shutdown,
    worker_shutting_down,
)

from app.events.database import Database, DatabaseUnavailable
from app.events.records import SqlRecords
from app.events.tables import SlotRow
from app.settings import settings
from app.workers import process
from app.workers.celery_app import celery

logger = logging.getLogger(__name__)


@celeryd_after_setup.connect
def check_queues(instance: Any, **_: Any) -> None:
    """End the worker, with one sentence, if it cannot be the slot that its queue names."""
    names = _slots()
    if len(names) > 1:
        raise SystemExit(
            f"one worker is one slot, but the queues {', '.join(names)} were given; start a worker for each"
        )
    if names:
        _check_slot(names[0])


@worker_process_init.connect
def open_slot(**_: Any) -> None:
    for name in _slots():
        process.open_slot(name)


@worker_shutting_down.connect
def retire_slot(**_: Any) -> None:
    """A worker that is asked to end gives its chain back at the next step, instead of training it to the end."""
    database = Database(settings().database_url)
    try:
        with SqlRecords(database).write() as rows:
            for slot in rows.slots.all():
                if slot.name in _slots():
                    rows.slots.retire(slot.name, slot.owner)
    except DatabaseUnavailable as problem:
        logger.warning("the slot ends with its lease: %s", problem)
    finally:
        database.dispose()


@worker_process_shutdown.connect
def close_slot(**_: Any) -> None:
    process.close_slot()


@beat_embedded_init.connect  # Beat is a process of its own, and would go on when its worker is killed
def end_with_parent(**_: Any) -> None:
    """Be killed when the parent dies, however it does."""
    with contextlib.suppress(OSError):  # elsewhere than on Linux it cannot be asked for
        set_pdeathsig(signal.SIGKILL)


def _slots() -> list[str]:
    """The slots among the queues that this worker listens to."""
    return sorted(name for name in celery.amqp.queues.consume_from if process.SLOT_QUEUE.fullmatch(name))


def _check_slot(name: str) -> None:
    database = Database(settings().database_url)
    try:
        with SqlRecords(database).read() as rows:
            now, held = rows.now(), [slot for slot in rows.slots.all() if slot.name == name]
    except DatabaseUnavailable as problem:
        raise SystemExit(str(problem)) from None
    finally:
        database.dispose()  # connections must not be shared with the processes to come
    if held and _is_alive(held[0], now):
        raise SystemExit(
            f"slot {name} is taken by process {held[0].pid} on {held[0].host}; "
            f"give this worker another queue, such as {socket.gethostname()}-{name}"
        )


def _is_alive(slot: SlotRow, now: float) -> bool:
    """Whether the process that last had the slot may still be at work."""
    if now - slot.seen_at > settings().lease_seconds:
        return False
    if slot.host != socket.gethostname():
        return True
    try:
        os.kill(slot.pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
