"""Builds a worker's role from the settings: the scheduler (ticks and the deletion of checkpoints) or a slot.

Runs on: the process that runs a worker's tasks; `slot_device` on its main process, too.
"""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any
from uuid import uuid4

from app.events import Plans, Records, change
from app.events.database import Database
from app.events.housekeeping import clean
from app.events.sql_log import SqlRecords
from app.events.trial_logs import TrialLogTable
from app.process.garbage_collection import collect_young, freeze_survivors
from app.registry import Catalogue
from app.scheduling.fair_share import POLICIES
from app.settings import settings
from app.storage.cached_store import CachedStore
from app.storage.object_store import ObjectStore
from app.storage.owned_store import open_owned
from app.tuner_files import register
from app.workers.celery_app import publish
from app.workers.ownership import Ownership, runtime_folder
from app.workers.remote_ranks import RankListener, interface_of
from app.workers.scheduler.ports import Ports, log_once
from app.workers.scheduler.retention import Retention
from app.workers.scheduler.tick import Scheduler
from app.workers.slot.context import Limits, SlotDependencies
from app.workers.slot.device import SlotDevice, device_kind, device_of, mps_is_running, visible_gpus
from app.workers.slot.host_backlog import HostBacklog
from app.workers.slot.slot import Slot
from app.workers.threads import PeriodicThread, RateLimit, TickLoop
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import Deadline
from app.workers.trainer_group import LATE_SECONDS, TrainerGroup
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings, Warm
from stagetree.system.memory import resident_bytes, total_bytes

logger = logging.getLogger(__name__)

CLEAN_SECONDS = 3600.0

INTERMEDIATE_BYTES = 2**30
"""How much a plan may spend on checkpoints inside stages. The newest one of a running stage is kept in any case."""

TURN_SECONDS = 60.0
"""How long a study keeps a slot to which another study is equally entitled."""

RETENTION_SECONDS = 0.5
"""Ticks come by the dozen a second; one look at the checkpoints after all of them is enough."""


class SchedulerRole:
    """notify: wakes the scheduler, which may be in another process."""

    def __init__(self, database: Database, notify: Callable[[], None]) -> None:
        self._database, self._notify = database, notify
        self._threads: list[TickLoop | PeriodicThread] = []

    def start(self) -> None:
        self.retention.start()
        self.tick_loop.start()

    def close(self) -> None:
        """Does not wait for the work under way."""
        for thread in self._threads:
            thread.close()

    @cached_property
    def tick_loop(self) -> TickLoop:
        """The scheduler of this process."""
        freeze_survivors()
        records, owner = SqlRecords(self._database), uuid4().hex
        housekeeping = RateLimit(CLEAN_SECONDS, lambda: clean(records.database))
        record = RateLimit(settings().tick_seconds / 2, lambda: self._record_tick(records, owner, scheduler))
        scheduler = self._make_scheduler(records, record.do_if_due)

        def look() -> None:
            scheduler.tick()
            collect_young()
            self.retention.wake()

        tick_loop = TickLoop(look, settings().tick_seconds, after=housekeeping.do_if_due)
        self._threads.append(tick_loop)
        return tick_loop

    @cached_property
    def retention(self) -> PeriodicThread:
        """The thread that deletes excess checkpoints."""
        retention = PeriodicThread("retention", self._delete, settings().tick_seconds, rest=RETENTION_SECONDS)
        self._threads.append(retention)
        return retention

    def _record_tick(self, records: SqlRecords, owner: str, scheduler: Scheduler) -> None:
        demand, host = scheduler.demand(), socket.gethostname()
        held_up = {**self._retention.fence.problems(), **scheduler.held_up_reasons()}
        pid, also = os.getpid(), {"held_up": held_up, "memory_bytes": resident_bytes(os.getpid())}
        change(records, lambda rows: rows.schedulers.record_tick(owner, host, pid, demand, **also))

    def _delete(self) -> bool:
        """Delete once, and return whether nothing is left for now. Wakes the scheduler if slots waited for room."""
        freed = self._retention.look()
        if freed.objects:
            logger.info("deleted %d checkpoints, %.1f MiB", freed.objects, freed.bytes / 2**20)
        if self._retention.has_waiting_slots:
            self._notify()
        return freed.is_done

    @cached_property
    def _retention(self) -> Retention:
        records, budget = SqlRecords(self._database), settings().checkpoint_budget
        store = open_owned(records, settings().checkpoints)
        return Retention(records, self._plans, store, budget, time.time, log_once())

    @cached_property
    def _plans(self) -> Plans:
        return Plans(SqlRecords(self._database).log)

    def _make_scheduler(self, records: SqlRecords, show: Callable[[], None]) -> Scheduler:
        register(settings().tuner_files)
        ports = Ports(
            proofs=settings().proofs,
            records=records,
            plans=self._plans,
            policy=POLICIES[settings().policy],
            publish=publish,
            new_id=lambda: uuid4().hex,
            lease_seconds=settings().lease_seconds,
            intermediate_bytes=INTERMEDIATE_BYTES,
            limits=settings().limits,
            turn_seconds=TURN_SECONDS if settings().policy == "fair_share" else None,
            show=show,
            chain_quota=self._retention.chain_quota,
        )
        return Scheduler(ports)


SWITCH_SECONDS = 0.0005
"""How long one thread of a slot may hold the interpreter lock; the default of 5 ms is as long as a whole hand-over."""


def _open_store(records: Records) -> ObjectStore:
    """A slot's checkpoint store, with a cache on this machine's disk if one is configured."""
    here = settings()
    store = open_owned(records, here.checkpoints)
    if here.cache_folder is None or "://" not in here.checkpoints:
        return store
    return CachedStore(store, *here.cache_folder)


def make_slot(
    database: Database,
    ownership: Ownership,
    notify: Callable[[], None],
    send_next: Callable[[], None],
    is_retiring: Callable[[], bool],
) -> Slot:
    """A slot that is ready for stages. It records itself when it is started and the database answers."""
    sys.setswitchinterval(SWITCH_SECONDS)
    device, here = slot_device(ownership.slot), settings()
    ownership.kind = device_kind(device)
    listener = RankListener(here.address) if here.address and device.shares == 1 else None
    ownership.address = "" if listener is None else listener.address
    logger.warning("slot %s trains on %s", ownership.slot, device)
    records = SqlRecords(database)
    dependencies = SlotDependencies(
        records=records,
        store=_open_store(records),
        start=_make_starter(device, here.silence_seconds, listener),
        sources=partial(Catalogue, here.trainer_files),
        notify=notify,
        send_next=send_next,
        is_retiring=is_retiring,
        end=end_worker,
        logs=here.logs_folder,
        study_folders=here.study_folders,
        log_table=None if database.is_file else TrialLogTable(database),
        backlog=HostBacklog(runtime_folder(here.locks) / "backlog", here.backlog_bytes or total_bytes() // 4),
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
    return Slot(ownership, str(device), dependencies, limits)


def end_worker(why: str) -> None:
    """Ask the main process to end, which ends this one: the worker can no longer be this slot."""
    logger.error("%s: this worker ends", why)
    os.kill(os.getppid(), signal.SIGTERM)


def slot_device(slot: str) -> SlotDevice:
    """The device of a slot of this machine. Raises `NoDevice`."""
    here = settings()
    shares, fraction = here.slots_per_gpu, here.memory_fraction
    device = device_of(slot, visible_gpus(), allow_cpu=here.allow_cpu, shares=shares, memory_fraction=fraction)
    return replace(device, has_mps=mps_is_running())


def _make_starter(device: SlotDevice, silence: float, listener: RankListener | None) -> Callable[..., TrainerClient]:
    """A function that starts a fresh trainer process on this device, or a group that also has other slots' devices.

    silence: seconds after which the slot kills a silent process, which is before one rank gives up on another.
    listener: accepts the workers of other machines.
    """
    warm, here = Warm(settings().warm, settings().trainer_files), settings()
    graphs = here.cuda_graphs
    own = TrainerSettings(device.device, device.visible, device.memory_fraction, here.threads, cuda_graphs=graphs)

    def start(
        members: Sequence[str] = (),
        meeting: Mapping[str, str] | None = None,
        *,
        rank: Mapping[str, Any] | None = None,
    ) -> TrainerClient:
        if not members:
            placement = rank and {**rank, "interface": interface_of(here.address)}
            return TrainerProcess.start(warm, own, rank=placement, deadline=Deadline(silence) if rank else None)
        how: dict[str, Any] = {"ranks": 1 + len(members), "late_seconds": silence + LATE_SECONDS}
        if meeting is None:
            devices = [device, *map(slot_device, members)]
            visible = ",".join(each.visible for each in devices if each.visible)
            return TrainerGroup.start(warm, replace(own, visible_devices=visible), **how)
        assert listener is not None  # or this slot would have no address
        far = listener.accept_ranks(meeting["secret"], members)
        try:
            return TrainerGroup.start(warm, own, far=far, host=listener.host, **how)
        except BaseException:
            for each in far:
                each.close(0.0)
            raise

    return start
