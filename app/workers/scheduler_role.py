"""Runs on: the process that runs a worker's tasks, where that is the scheduler's.

The scheduler of a worker's process, made from the settings: its ticks, and what deletes checkpoints beside them.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable
from functools import cached_property
from uuid import uuid4

from app.events.database import Database
from app.events.housekeeping import Ages, clean
from app.events.plans import Plans
from app.events.records import SqlRecords, change
from app.owned_store import open_owned
from app.processes import collect_young, freeze_survivors
from app.registry import register
from app.scheduling.policies import POLICIES
from app.settings import settings
from app.workers.celery_app import publish
from app.workers.scheduler.ports import Ports, say_once
from app.workers.scheduler.retention import Retention
from app.workers.scheduler.tick import Scheduler
from app.workers.threads import PeriodicThread, RateLimit, TickLoop

logger = logging.getLogger(__name__)

CLEAN_SECONDS = 3600.0

RETENTION_SECONDS = 0.5
"""Ticks come by the dozen a second: for checkpoints that are too many, one look after all of them is enough."""


class SchedulerRole:
    """notify: tells the scheduler, which may be another process at that point, that something happened."""

    def __init__(self, database: Database, notify: Callable[[], None]) -> None:
        self._database, self._notify = database, notify
        self._threads: list[TickLoop | PeriodicThread] = []

    def start(self) -> None:
        self.retention.start()
        self.ticking.start()

    def close(self) -> None:
        """What is under way is not waited for."""
        for thread in self._threads:
            thread.close()

    @cached_property
    def ticking(self) -> TickLoop:
        """The scheduler of this process."""
        freeze_survivors()
        records, owner = SqlRecords(self._database), uuid4().hex
        housekeeping = RateLimit(CLEAN_SECONDS, lambda: _run_housekeeping(records.database))
        record = RateLimit(settings().tick_seconds / 2, lambda: _record_tick(records, owner))
        scheduler = self._scheduler(records, record.do_if_due)

        def look() -> None:
            scheduler.tick()
            collect_young()
            self.retention.wake()

        ticking = TickLoop(look, settings().tick_seconds, after=housekeeping.do_if_due)
        self._threads.append(ticking)
        return ticking

    @cached_property
    def retention(self) -> PeriodicThread:
        """What deletes the checkpoints that are too many, beside the ticks."""
        retention = PeriodicThread("retention", self._delete, settings().tick_seconds, rest=RETENTION_SECONDS)
        self._threads.append(retention)
        return retention

    def _delete(self) -> bool:
        """Look once; whether there is nothing more to do for now. Slots that waited for it are given work."""
        freed = self._deleting.look()
        if freed.objects:
            logger.info("deleted %d checkpoints, %.1f MiB", freed.objects, freed.bytes / 2**20)
        if self._deleting.is_waited_for:
            self._notify()
        return freed.is_done

    @cached_property
    def _deleting(self) -> Retention:
        records, budget = SqlRecords(self._database), settings().checkpoint_budget
        store = open_owned(records, settings().checkpoints)
        return Retention(records, self._plans, store, budget, time.time, say_once())

    @cached_property
    def _plans(self) -> Plans:
        """Those of the scheduler."""
        return Plans(SqlRecords(self._database).log)

    def _scheduler(self, records: SqlRecords, show: Callable[[], None]) -> Scheduler:
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


def _record_tick(records: SqlRecords, owner: str) -> None:
    change(records, lambda rows: rows.schedulers.ticked(owner, socket.gethostname(), os.getpid()))


def _run_housekeeping(database: Database) -> None:
    clean(database, Ages(keys=settings().row_days, chains=settings().row_days))
