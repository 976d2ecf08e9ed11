"""How a Celery worker becomes a slot or the scheduler, its tasks, and how it ends.

Arguments of tasks are ids, and all tasks may run twice. The parts of a process are created when they are first needed,
in the process that needs them.

Runs on: a worker's main process; the tasks, `open_process` and `close_process` on the process that runs them.
"""

from __future__ import annotations

import contextlib
import logging
import mmap
import os
import signal
import socket
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from billiard import active_children
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

from app.domain.slots import NAME, SCHEDULER
from app.events import SlotTaken
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.outages import DatabaseUnavailable, LostRace
from app.process import limits
from app.process.logs import write_json
from app.settings import settings
from app.workers.celery_app import celery, send_next, wake_scheduler
from app.workers.ownership import Ownership, SlotLock
from app.workers.roles import SchedulerRole, make_slot, slot_device
from app.workers.slot.device import NoDevice
from app.workers.threads import Notifier
from stagetree.system.processes import end_with_parent

if TYPE_CHECKING:
    from app.workers.slot.slot import Slot


class ShutdownFlag:
    """Whether this worker must end: one byte of memory shared with later forks, so that the fork that trains sees it
    without any server.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def ask(self) -> None:
        """Ask the worker to end. Safe in a signal handler."""
        self._shared[0] = 1

    @property
    def is_asked(self) -> bool:
        return self._shared[0] == 1


class WorkerProcess:
    """The scheduler's process, or a slot's. Its parts are created on first use.

    shutdown: created before the fork that trains, which reads it.
    ownership: of this worker's slot; None for the scheduler's worker.
    """

    def __init__(self) -> None:
        self.shutdown = ShutdownFlag()
        self.ownership: Ownership | None = None
        self._slot: Slot | None = None
        self._to_close: list[Callable[[], None]] = []

    def start_role(self, queue: str) -> None:
        """Become the scheduler or the slot that the queue names, in the process that runs the tasks."""
        if queue == SCHEDULER:
            self.scheduler.start()
        else:
            self._start_slot()

    def close(self) -> None:
        """Close all parts, in reverse order of their creation."""
        while self._to_close:
            self._to_close.pop()()

    @cached_property
    def database(self) -> Database:
        return Database(settings().database_url, patience=settings().patience_seconds)

    def notify(self) -> None:
        """Wake the scheduler without waiting for the broker."""
        self._notifier.notify()

    @cached_property
    def scheduler(self) -> SchedulerRole:
        role = SchedulerRole(self.database, lambda: self.notify())
        self._to_close.append(role.close)
        return role

    @property
    def slot(self) -> Slot:
        """This process's slot. Raises RuntimeError when its worker serves no slot's queue."""
        if self._slot is None:
            raise RuntimeError("this worker listens to no slot's queue: start it with -Q gpu0 (or gpu1, ...)")
        return self._slot

    def lock_slot(self, name: str) -> None:
        """Keep every other process of this machine from being this slot. Raises `SlotTaken`."""
        lock = SlotLock.acquire(name, settings().database_url, settings().locks)
        lease, heartbeat = settings().lease_seconds, settings().heartbeat_seconds
        self.ownership = Ownership(name, lock, lease_seconds=lease, heartbeat_seconds=heartbeat)

    def _start_slot(self) -> None:
        assert self.ownership is not None
        self.ownership.begin()
        self._slot = make_slot(
            self.database, self.ownership, self.notify, lambda: send_next(stage.request), lambda: self.shutdown.is_asked
        )
        self._to_close.append(self._slot.close)
        self._slot.start()

    @cached_property
    def _notifier(self) -> Notifier:
        notifier = Notifier(wake_scheduler)
        self._to_close.insert(0, notifier.close)  # who else ends may have something to tell
        return notifier


worker = WorkerProcess()
"""Of this process, and of the forks that it makes."""


def unique_slot_name(slot: str) -> str:
    """A slot name that no other machine uses."""
    return f"{socket.gethostname()}-{slot}"


logger = logging.getLogger(__name__)

LOOK_SECONDS = 0.5


@celeryd_after_setup.connect
def check_queues(instance: Any, **_: Any) -> None:
    """End the worker with one sentence if it cannot serve its queues."""
    queues = sorted(celery.amqp.queues.consume_from)
    if len(queues) > 1:
        raise SystemExit(f"one worker is one slot, but the queues {', '.join(queues)} were given; start one for each")
    if queues != [SCHEDULER]:
        _become_slot(queues[0])


@after_setup_logger.connect
@after_setup_task_logger.connect
def write_logs(logger: logging.Logger, **_: Any) -> None:
    """Log as JSON if the settings say so."""
    if settings().log_format == "json":
        write_json([logger])


@worker_process_init.connect
def open_process(**_: Any) -> None:
    """Start the role in the process that runs the tasks. Only the main process reacts to SIGTERM, even if all processes
    get it.
    """
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    worker.start_role(_queue())


@worker_shutting_down.connect
def retire(**_: Any) -> None:
    """The slot gives its chain back at the next step, and deletes its row."""
    limits.end_within(settings().stop_seconds, _kill_forks)
    worker.shutdown.ask()


@worker_process_shutdown.connect
def close_process(**_: Any) -> None:
    worker.close()


@beat_embedded_init.connect  # Beat is a process of its own, and would outlive a killed worker
def end_beat_with_parent(**_: Any) -> None:
    """Die with the parent process, however it dies."""
    end_with_parent()


def _queue() -> str:
    return str(next(iter(celery.amqp.queues.consume_from)))


def _become_slot(name: str) -> None:
    if not NAME.fullmatch(name):
        raise SystemExit(
            f"queue {name} is no slot: name it gpu0 or cpu0, with another number for each, or with a host in front and"
            f" a hyphen between, such as host-gpu0; slots that share a GPU are gpu0a and gpu0b; the scheduler's is"
            f" {SCHEDULER}"
        )
    try:
        slot_device(name)
        worker.lock_slot(name)
        _await_free()
    except NoDevice as problem:
        raise SystemExit(str(problem)) from None
    except SlotTaken as taken:
        raise SystemExit(f"{taken}; give this worker another queue, such as {unique_slot_name(name)}") from None


def _await_free() -> None:
    """Wait until no other worker has the slot. An outage of the database is not waited for here.

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
    """Train one stage of a chain. A stale message ends here, and the next one is not sent."""
    if not worker.slot.run_stage(chain, index):
        raise Ignore


@celery.task(name="stagetree.rank")
def rank(chain: str) -> None:
    """Leave the device to the chain that this slot is lent to. If that chain is on another machine, train one of its
    ranks.
    """
    worker.slot.run_rank(chain)


@celery.task(name="stagetree.tick")
def tick() -> None:
    """Let the scheduler look and decide."""
    worker.scheduler.tick_loop.tick()
