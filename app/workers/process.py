"""What one worker process holds: made from the settings when it is first needed, in the process that needs it."""

from __future__ import annotations

import os
import re
import socket
from functools import cache
from typing import TYPE_CHECKING
from uuid import uuid4

from app.events.database import Database
from app.events.records import SqlRecords
from app.registry import describe, load
from app.settings import settings
from app.workers.bell import Bell
from app.workers.celery_app import nudge, publish
from app.workers.collector import set_old_aside

if TYPE_CHECKING:
    from app.tuner_files import register
    from app.workers.slot import Slot
    from app.workers.tick import Ticker

    register(settings().tuner_files)
SLOT_QUEUE = re.compile(r"(.*[-_.])?(gpu|cpu)\d+")
"""Queues that are slots: gpu0, cpu3, or with a host in front, host-gpu0. What is behind "gpu" is the CUDA device."""


@cache
def database() -> Database:
    return Database(settings().database_url)


@cache
def ticker() -> Ticker:
    """The scheduler of this process."""
    from app.events.transact import Plans
    from app.scheduling.policies import POLICIES
    from app.workers.tick import Ticker

    set_old_aside()
    records = SqlRecords(database())
    return Ticker(
        records=records,
        plans=Plans(records.log),
        policy=POLICIES[settings().policy],
        publish=publish,
        new_id=lambda: uuid4().hex,
        lease_seconds=settings().lease_seconds,
        spare_bytes=settings().spare_bytes,
    )


_slot: Slot | None = None
_bell: Bell | None = None


def slot() -> Slot:
    """The slot that this process is. Raises RuntimeError when its worker listens to no slot's queue."""
    if _slot is None:
        raise RuntimeError("this worker listens to no slot's queue: start it with -Q gpu0 (or gpu1, ...)")
    return _slot


def open_slot(name: str) -> None:
    """Become the slot of a queue: put it on record, and be ready for stages."""
    global _slot, _bell
    from app.workers.checkpoints import Checkpoints
    from app.workers.slot import Slot

    device = _device(name)
    _bell = Bell(nudge)
    _slot = Slot(
        name,
        device=device,
        owner=f"{socket.gethostname()}:{os.getpid()}:{uuid4().hex}",
        records=SqlRecords(database()),
        checkpoints=Checkpoints(settings().checkpoints, memory=settings().memory_bytes),
        trainer=cache(lambda name: load(settings().trainer_files, name)),
        versions=cache(lambda: describe(settings().trainer_files)),
        nudge=_bell.pull,
        lease_seconds=settings().lease_seconds,
        heartbeat_seconds=settings().heartbeat_seconds,
        spare_overhead=settings().spare_overhead,
    )
    _slot.register()


def close_slot() -> None:
    """Before the process ends."""
    if _slot is not None and _bell is not None:
        _slot.close()
        _bell.close()


def _device(name: str) -> str:
    """The device of a slot: `gpu1` is CUDA device 1 where there is one, else its threads of the CPU."""
    import torch

    from stagetree.runtime.machine import Machine

    number = int(re.search(r"\d+$", name)[0])  # type: ignore[index]
    device = f"cuda:{number}" if "gpu" in name and number < torch.cuda.device_count() else "cpu"
    threads = settings().threads if device == "cpu" else torch.get_num_threads()
    Machine(device, None, threads, "warn").prepare()
    return device
