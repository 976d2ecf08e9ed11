"""What one worker process holds: made from the settings when it is first needed, in the process that needs it."""

from __future__ import annotations

import logging
import os
import re
import signal
import socket
from functools import cache
from typing import TYPE_CHECKING
from uuid import uuid4

from app.events.database import Database
from app.events.housekeeping import Ages, clean
from app.events.records import SqlRecords, change
from app.registry import describe, load
from app.settings import settings
from app.workers.celery_app import SCHEDULER_QUEUE, nudge, publish
from app.workers.gc_tuning import collect_young, freeze_survivors
from app.workers.notifier import Notifier
from app.workers.now_and_then import NowAndThen
from app.workers.ownership import Ownership, SlotLock
from app.workers.retiring import Retiring
from app.workers.ticking import Ticking

if TYPE_CHECKING:
    from app.workers.slot import Slot
    from app.workers.tick import Ticker

logger = logging.getLogger(__name__)

SLOT_QUEUE = re.compile(r"(.*[-_.])?(gpu|cpu)\d+")
"""Queues that are slots: gpu0, cpu3, or with a host in front, host-gpu0. What is behind "gpu" is the CUDA device."""

CLEAN_SECONDS = 3600.0

retiring = Retiring()
"""Whether this worker is to end; made before the process that trains is forked, which looks at it."""

ownership: Ownership | None = None
"""The slot that this worker has, or None for the scheduler's."""

_slot: Slot | None = None
_ticking: Ticking | None = None
_notifier: Notifier | None = None


def open(queue: str) -> None:
    """Become what a queue is served by, in the process that runs the tasks."""
    if queue == SCHEDULER_QUEUE:
        ticking().start()
    else:
        _open_slot()


def close() -> None:
    """Before the process ends."""
    if _ticking is not None:
        _ticking.close()
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
        _notifier = Notifier(nudge)
    _notifier.notify()


# ----------------------------------------------------------------------------------------------------- the scheduler


def ticking() -> Ticking:
    """The scheduler of this process."""
    global _ticking
    if _ticking is None:
        freeze_survivors()
        records, owner = SqlRecords(database()), uuid4().hex
        show = NowAndThen(settings().tick_seconds / 2, lambda: _show_tick(records, owner))
        tidy = NowAndThen(CLEAN_SECONDS, lambda: _tidy(records.database))
        ticker = _ticker(records)

        def look() -> None:
            ticker.tick()
            collect_young()
            show.do_if_due()

        _ticking = Ticking(look, settings().tick_seconds, after=tidy.do_if_due)
    return _ticking


def _ticker(records: SqlRecords) -> Ticker:
    from app.events.transact import Plans
    from app.scheduling.policies import POLICIES
    from app.workers.tick import Ticker

    return Ticker(
        records=records,
        plans=Plans(records.log),
        policy=POLICIES[settings().policy],
        publish=publish,
        new_id=lambda: uuid4().hex,
        lease_seconds=settings().lease_seconds,
        spare_bytes=settings().spare_bytes,
    )


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
    from app.workers.checkpoints import Checkpoints
    from app.workers.slot import Slot

    assert ownership is not None
    ownership.begin()
    _slot = Slot(
        ownership,
        device=_device(ownership.slot),
        records=SqlRecords(database()),
        checkpoints=Checkpoints(settings().checkpoints, memory=settings().memory_bytes),
        trainer=cache(lambda name: load(settings().trainer_files, name)),
        versions=cache(lambda: describe(settings().trainer_files)),
        nudge=notify,
        lease_seconds=settings().lease_seconds,
        heartbeat_seconds=settings().heartbeat_seconds,
        spare_overhead=settings().spare_overhead,
    )
    _slot.register()


def _device(name: str) -> str:
    """The device of a slot: `gpu1` is CUDA device 1 where there is one, else its threads of the CPU."""
    import torch

    from stagetree.runtime.machine import Machine

    number = int(re.search(r"\d+$", name)[0])  # type: ignore[index]
    device = f"cuda:{number}" if "gpu" in name and number < torch.cuda.device_count() else "cpu"
    threads = settings().threads if device == "cpu" else torch.get_num_threads()
    Machine(device, None, threads, "warn").prepare()
    return device
