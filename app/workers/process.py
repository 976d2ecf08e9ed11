"""What one worker process holds: made from the settings when it is first needed, in the process that needs it."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import cache
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
from app.workers.notifier import Notifier
from app.workers.ownership import Ownership, SlotLock
from app.workers.periodic_thread import PeriodicThread
from app.workers.retiring import Retiring
from app.workers.slot.device import SlotDevice, device_of, mps_is_running, visible_gpus
from app.workers.throttle import Throttle
from app.workers.ticking import Ticking

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

retiring = Retiring()
"""Whether this worker is to end; made before the process that trains is forked, which looks at it."""

ownership: Ownership | None = None
"""The slot that this worker has, or None for the scheduler's."""

_slot: Slot | None = None
_ticking: Ticking | None = None
_retention: PeriodicThread | None = None
_notifier: Notifier | None = None


def open(queue: str) -> None:
    """Become what a queue is served by, in the process that runs the tasks."""
    if queue == SCHEDULER_QUEUE:
        retention().start()
        ticking().start()
    else:
        _open_slot()


def close() -> None:
    """Before the process ends."""
    for part in (_ticking, _retention):
        if part is not None:
            part.close()
    if _slot is not None:
        _slot.close()
    if _notifier is not None:
        _notifier.close()


@cache
def database() -> Database:
    return Database(settings().database_url, patience=settings().patience_seconds)


def notify() -> None:
    """Tell the scheduler that something happened, without waiting for the broker."""
    global _notifier
    if _notifier is None:
        _notifier = Notifier(wake_scheduler)
    _notifier.notify()


# ----------------------------------------------------------------------------------------------------- the scheduler


def ticking() -> Ticking:
    """The scheduler of this process."""
    global _ticking
    if _ticking is None:
        freeze_survivors()
        records, owner = SqlRecords(database()), uuid4().hex
        tidy = Throttle(CLEAN_SECONDS, lambda: _tidy(records.database))
        show = Throttle(settings().tick_seconds / 2, lambda: _show_tick(records, owner))
        scheduler = _scheduler(records, show.do_if_due)

        def look() -> None:
            scheduler.tick()
            collect_young()
            retention().wake()

        _ticking = Ticking(look, settings().tick_seconds, after=tidy.do_if_due)
    return _ticking


def retention() -> PeriodicThread:
    """What deletes the checkpoints that are too many, beside the ticks."""
    global _retention
    if _retention is None:
        seconds = settings().tick_seconds
        _retention = PeriodicThread("retention", _delete, seconds, rest=RETENTION_SECONDS)
    return _retention


def _delete() -> bool:
    """Look once; whether there is nothing more to do for now. Slots that waited for it are given work."""
    freed = _deleting().look()
    if freed.objects:
        logger.info("deleted %d checkpoints, %.1f MiB", freed.objects, freed.bytes / 2**20)
    if _deleting().is_waited_for:
        notify()
    return freed.is_done


@cache
def _deleting() -> Retention:
    from app.workers.scheduler.problems import say_once
    from app.workers.scheduler.retention import Retention

    store, budget = open_store(settings().checkpoints), settings().checkpoint_budget
    return Retention(SqlRecords(database()), _plans(), store, budget, time.time, say_once())


@cache
def _plans() -> Plans:
    """Those of the scheduler."""
    from app.events.plans import Plans

    return Plans(SqlRecords(database()).log)


def _scheduler(records: SqlRecords, show: Callable[[], None]) -> Scheduler:
    from app.scheduling.policies import POLICIES
    from app.tuner_files import register
    from app.workers.scheduler.ports import Ports
    from app.workers.scheduler.tick import Scheduler

    register(settings().tuner_files)
    ports = Ports(
        proofs=settings().proofs,
        records=records,
        plans=_plans(),
        policy=POLICIES[settings().policy],
        publish=publish,
        new_id=lambda: uuid4().hex,
        lease_seconds=settings().lease_seconds,
        intermediate_bytes=settings().intermediate_bytes,
        limits=settings().limits,
        turn_seconds=settings().turn_seconds if settings().policy == "fair_share" else None,
        show=show,
        chains_that_fit=_deleting().chains_that_fit,
    )
    return Scheduler(ports)


def _show_tick(records: SqlRecords, owner: str) -> None:
    change(records, lambda rows: rows.schedulers.ticked(owner, socket.gethostname(), os.getpid()))


def _tidy(database: Database) -> None:
    clean(database, Ages(settings().key_days, settings().chain_days, settings().worker_days))


# ------------------------------------------------------------------------------------------------------------ a slot


def slot() -> Slot:
    """The slot that this process is. Raises RuntimeError when its worker listens to no slot's queue."""
    if _slot is None:
        raise RuntimeError("this worker listens to no slot's queue: start it with -Q gpu0 (or gpu1, ...)")
    return _slot


def own(name: str) -> None:
    """Keep every other process of this machine from being this slot. Raises `SlotTaken`."""
    global ownership
    lock = SlotLock.acquire(name, settings().database_url, settings().locks)
    lease, heartbeat = settings().lease_seconds, settings().heartbeat_seconds
    ownership = Ownership(name, lock, lease_seconds=lease, heartbeat_seconds=heartbeat)


def another_name(slot: str) -> str:
    """A name for a slot that nobody on another machine gives its own."""
    return f"{socket.gethostname()}-{slot}"


def end_worker(why: str) -> None:
    """The worker cannot go on being this slot: its main process is asked to end, which ends this one."""
    logger.error("%s: this worker ends", why)
    os.kill(os.getppid(), signal.SIGTERM)


def _open_slot() -> None:
    """Be ready for stages. The slot puts itself on record, as soon as the database answers."""
    global _slot
    from app.workers.slot.dependencies import Limits, SlotDependencies
    from app.workers.slot.slot import Slot

    assert ownership is not None
    ownership.begin()
    sys.setswitchinterval(SWITCH_SECONDS)
    device, here = device_here(ownership.slot), settings()
    logger.warning("slot %s trains on %s", ownership.slot, device)
    around = SlotDependencies(
        records=SqlRecords(database()),
        store=open_store(here.checkpoints),
        start=_starter(device),
        sources=Catalogue(here.trainer_files).describe,
        notify=notify,
        is_retiring=lambda: retiring.is_asked,
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
        growth_bytes=here.growth_bytes,
    )
    _slot = Slot(ownership, str(device), around, limits)
    _slot.start()


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
