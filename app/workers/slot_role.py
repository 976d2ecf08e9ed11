"""Runs on: the process that runs a worker's tasks, where that is a slot's; `device_here` on its main process, too.

The slot of a worker's process, made from the settings.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import replace

from app.events.database import Database
from app.events.records import SqlRecords
from app.owned_store import open_owned
from app.registry import Catalogue
from app.settings import settings
from app.workers.ownership import Ownership
from app.workers.slot.dependencies import Limits, SlotDependencies
from app.workers.slot.device import SlotDevice, device_of, mps_is_running, visible_gpus
from app.workers.slot.slot import Slot
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm

logger = logging.getLogger(__name__)

SWITCH_SECONDS = 0.0005
"""How long a thread of a slot keeps the interpreter from another; the default of 5 ms is a whole hand-over."""


def make_slot(
    database: Database, ownership: Ownership, notify: Callable[[], None], is_retiring: Callable[[], bool]
) -> Slot:
    """Ready for stages. It puts itself on record when it is started, as soon as the database answers."""
    sys.setswitchinterval(SWITCH_SECONDS)
    device, here = device_here(ownership.slot), settings()
    logger.warning("slot %s trains on %s", ownership.slot, device)
    records = SqlRecords(database)
    given = SlotDependencies(
        records=records,
        store=open_owned(records, here.checkpoints),
        start=_starter(device),
        sources=Catalogue(here.trainer_files).describe,
        notify=notify,
        is_retiring=is_retiring,
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
    return Slot(ownership, str(device), given, limits)


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
    warm, threads = Warm(settings().warm, settings().trainer_files), settings().threads
    return lambda: TrainerProcess.start(
        warm,
        device=device.device,
        visible_devices=device.visible,
        memory_fraction=device.memory_fraction,
        threads=threads,
    )
