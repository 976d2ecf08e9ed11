"""Runs on: the process that runs a worker's tasks; `own` and `device_here` on its main process before that.

What one worker process holds, made from the settings when it is first needed, in the process that needs it.
"""

from __future__ import annotations

import logging
import mmap
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING
from uuid import uuid4

from app.events.database import Database
from app.events.housekeeping import Ages, clean
from app.events.records import SqlRecords, change
from app.gc_tuning import collect_young, freeze_survivors
from app.object_store import open_store
from app.registry import Catalogue
from app.settings import settings
from app.workers.celery_app import SCHEDULER_QUEUE, publish, wake_scheduler
from app.workers.ownership import Ownership, SlotLock
from app.workers.slot.device import SlotDevice, device_of, mps_is_running, visible_gpus
from app.workers.threads import Notifier, PeriodicThread, Throttle, Ticking

if TYPE_CHECKING:
    from app.events.plans import Plans
    from app.workers.scheduler.retention import Retention
    from app.workers.scheduler.tick import Scheduler
    from app.workers.slot.slot import Slot
    from app.workers.trainer_process import TrainerProcess

logger = logging.getLogger(__name__)

CLEAN_SECONDS = 3600.0

RETENTION_SECONDS = 0.5
"""Ticks come by the dozen a second: for checkpoints that are too many, one look after all of them is enough."""

SWITCH_SECONDS = 0.0005
"""How long a thread of a slot keeps the interpreter from another; the default of 5 ms is a whole hand-over."""


class Retiring:
    """Whether this worker is to end: one byte that the process shares with the forks it makes from here on, so that the
    one that trains knows without any server between them."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def ask(self) -> None:
        """The worker is to end. Safe in a signal handler."""
        self._shared[0] = 1

    @property
    def is_asked(self) -> bool:
        return self._shared[0] == 1


class WorkerProcess:
    """What a worker's process is: the scheduler's, or a slot's. Nothing is made before it is asked for.

    retiring: made before the process that trains is forked, which looks at it. ownership: of the slot that this worker
    has; None for the scheduler's.
    """

    def __init__(self) -> None:
        self.retiring = Retiring()
        self.ownership: Ownership | None = None
        self._slot: Slot | None = None
        self._to_close: list[Callable[[], None]] = []

    def start_role(self, queue: str) -> None:
        """Become what a queue is served by, in the process that runs the tasks."""
        if queue == SCHEDULER_QUEUE:
            self.retention.start()
            self.ticking.start()
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
    def _notifier(self) -> Notifier:
        notifier = Notifier(wake_scheduler)
        self._to_close.insert(0, notifier.close)  # who else ends may have something to tell
        return notifier

    # ------------------------------------------------------------------------------------------------ the scheduler

    @cached_property
    def ticking(self) -> Ticking:
        """The scheduler of this process."""
        freeze_survivors()
        records, owner = SqlRecords(self.database), uuid4().hex
        tidy = Throttle(CLEAN_SECONDS, lambda: _tidy(records.database))
        show = Throttle(settings().tick_seconds / 2, lambda: _show_tick(records, owner))
        scheduler = self._scheduler(records, show.do_if_due)

        def look() -> None:
            scheduler.tick()
            collect_young()
            self.retention.wake()

        ticking = Ticking(look, settings().tick_seconds, after=tidy.do_if_due)
        self._to_close.append(ticking.close)
        return ticking

    @cached_property
    def retention(self) -> PeriodicThread:
        """What deletes the checkpoints that are too many, beside the ticks."""
        thread = PeriodicThread("retention", self._delete, settings().tick_seconds, rest=RETENTION_SECONDS)
        self._to_close.append(thread.close)
        return thread

    def _delete(self) -> bool:
        """Look once; whether there is nothing more to do for now. Slots that waited for it are given work."""
        freed = self._deleting.look()
        if freed.objects:
            logger.info("deleted %d checkpoints, %.1f MiB", freed.objects, freed.bytes / 2**20)
        if self._deleting.is_waited_for:
            self.notify()
        return freed.is_done

    @cached_property
    def _deleting(self) -> Retention:
        from app.workers.scheduler.problems import say_once
        from app.workers.scheduler.retention import Retention

        store, budget = open_store(settings().checkpoints), settings().checkpoint_budget
        return Retention(SqlRecords(self.database), self._plans, store, budget, time.time, say_once())

    @cached_property
    def _plans(self) -> Plans:
        """Those of the scheduler."""
        from app.events.plans import Plans

        return Plans(SqlRecords(self.database).log)

    def _scheduler(self, records: SqlRecords, show: Callable[[], None]) -> Scheduler:
        from app.scheduling.policies import POLICIES
        from app.tuner_files import register
        from app.workers.scheduler.ports import Ports
        from app.workers.scheduler.tick import Scheduler

        register(settings().tuner_files)
        ports = Ports(
            proofs=settings().proofs,
            records=records,
            plans=self._plans,
            policy=POLICIES[settings().policy],
            publish=publish,
            new_id=lambda: uuid4().hex,
            lease_seconds=settings().lease_seconds,
            intermediate_bytes=settings().intermediate_bytes,
            limits=settings().limits,
            turn_seconds=settings().turn_seconds if settings().policy == "fair_share" else None,
            show=show,
            chains_that_fit=self._deleting.chains_that_fit,
        )
        return Scheduler(ports)

    # ------------------------------------------------------------------------------------------------------ a slot

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
        """Be ready for stages. The slot puts itself on record, as soon as the database answers."""
        from app.workers.slot.dependencies import Limits, SlotDependencies
        from app.workers.slot.slot import Slot

        assert self.ownership is not None
        self.ownership.begin()
        sys.setswitchinterval(SWITCH_SECONDS)
        device, here = device_here(self.ownership.slot), settings()
        logger.warning("slot %s trains on %s", self.ownership.slot, device)
        given = SlotDependencies(
            records=SqlRecords(self.database),
            store=open_store(here.checkpoints),
            start=_starter(device),
            sources=Catalogue(here.trainer_files).describe,
            notify=self.notify,
            is_retiring=lambda: self.retiring.is_asked,
            end=end_worker,
            logs=here.logs_folder,
        )
        limits = Limits(
            lease=here.lease_seconds,
            heartbeat=here.heartbeat_seconds,
            grace=here.grace_seconds,
            strike=here.strike_after_seconds,
            silence=here.silence_seconds,
            overhead=here.intermediate_overhead,
            memory_bytes=here.memory_bytes,
        )
        self._slot = Slot(self.ownership, str(device), given, limits)
        self._to_close.append(self._slot.close)
        self._slot.start()


worker = WorkerProcess()
"""That of this process, and of the forks that it makes."""


def another_name(slot: str) -> str:
    """A name for a slot that nobody on another machine gives its own."""
    return f"{socket.gethostname()}-{slot}"


def end_worker(why: str) -> None:
    """The worker cannot go on being this slot: its main process is asked to end, which ends this one."""
    logger.error("%s: this worker ends", why)
    os.kill(os.getppid(), signal.SIGTERM)


def device_here(slot: str) -> SlotDevice:
    """The device of a slot on this machine. Raises `NoDevice`."""
    here = settings()
    shares, fraction = here.slots_per_gpu, here.memory_fraction
    device = device_of(slot, visible_gpus(), allow_cpu=here.allow_cpu, shares=shares, memory_fraction=fraction)
    return replace(device, has_mps=mps_is_running())


def _starter(device: SlotDevice) -> Callable[[], TrainerProcess]:
    """What starts a fresh process that trains on that device."""
    from app.workers.trainer_process import TrainerProcess
    from app.workers.warm import Warm

    warm, threads = Warm(settings().warm), settings().threads
    return lambda: TrainerProcess.start(
        warm,
        device=device.device,
        visible_devices=device.visible,
        memory_fraction=device.memory_fraction,
        threads=threads,
    )


def _show_tick(records: SqlRecords, owner: str) -> None:
    change(records, lambda rows: rows.schedulers.ticked(owner, socket.gethostname(), os.getpid()))


def _tidy(database: Database) -> None:
    clean(database, Ages(keys=settings().row_days, chains=settings().row_days))
