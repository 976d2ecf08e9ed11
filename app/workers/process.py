"""Runs on: the process that runs a worker's tasks; `own` on its main process before that.

What one worker process is, made when it is first needed, in the process that needs it.
"""

from __future__ import annotations

import mmap
import socket
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

from app.events import Database
from app.settings import settings
from app.workers.celery_app import SCHEDULER_QUEUE, wake_scheduler
from app.workers.ownership import Ownership, SlotLock
from app.workers.threads import Notifier

if TYPE_CHECKING:
    from app.workers.roles import SchedulerRole
    from app.workers.slot.slot import Slot


class ShutdownFlag:
    """Whether this worker must end: one byte that the process shares with the forks it makes from here on, so that the
    one that trains knows without any server between them."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def ask(self) -> None:
        """The worker must end. Safe in a signal handler."""
        self._shared[0] = 1

    @property
    def is_asked(self) -> bool:
        return self._shared[0] == 1


class WorkerProcess:
    """The scheduler's process, or a slot's. Nothing is made before it is asked for.

    shutdown: made before the process that trains is forked, which looks at it. ownership: of the slot that this worker
    has; None for the scheduler's.
    """

    def __init__(self) -> None:
        self.shutdown = ShutdownFlag()
        self.ownership: Ownership | None = None
        self._slot: Slot | None = None
        self._to_close: list[Callable[[], None]] = []

    def start_role(self, queue: str) -> None:
        """Become what a queue is served by, in the process that runs the tasks."""
        if queue == SCHEDULER_QUEUE:
            self.scheduler.start()
        else:
            self._start_slot()

    def close(self) -> None:
        """Before the process ends: what was made last, first."""
        while self._to_close:
            self._to_close.pop()()

    @cached_property
    def database(self) -> Database:
        return Database(settings().database_url, patience=settings().patience_seconds)

    def notify(self) -> None:
        """Tell the scheduler that something happened, without waiting for the broker."""
        self._notifier.notify()

    @cached_property
    def scheduler(self) -> SchedulerRole:
        """The scheduler of this process."""
        from app.workers.roles import SchedulerRole

        role = SchedulerRole(self.database, lambda: self.notify())
        self._to_close.append(role.close)
        return role

    @property
    def slot(self) -> Slot:
        """The slot that this process is. Raises RuntimeError when its worker listens to no slot's queue."""
        if self._slot is None:
            raise RuntimeError("this worker listens to no slot's queue: start it with -Q gpu0 (or gpu1, ...)")
        return self._slot

    def own(self, name: str) -> None:
        """Keep every other process of this machine from being this slot. Raises `SlotTaken`."""
        lock = SlotLock.acquire(name, settings().database_url, settings().locks)
        lease, heartbeat = settings().lease_seconds, settings().heartbeat_seconds
        self.ownership = Ownership(name, lock, lease_seconds=lease, heartbeat_seconds=heartbeat)

    def _start_slot(self) -> None:
        from app.workers.roles import make_slot

        assert self.ownership is not None
        self.ownership.begin()
        self._slot = make_slot(self.database, self.ownership, self.notify, lambda: self.shutdown.is_asked)
        self._to_close.append(self._slot.close)
        self._slot.start()

    @cached_property
    def _notifier(self) -> Notifier:
        notifier = Notifier(wake_scheduler)
        self._to_close.insert(0, notifier.close)  # who else ends may have something to tell
        return notifier


worker = WorkerProcess()
"""That of this process, and of the forks that it makes."""


def another_name(slot: str) -> str:
    """A name for a slot that nobody on another machine gives its own."""
    return f"{socket.gethostname()}-{slot}"
