"""What reads a store and writes to one may use, made once by a composition root, and how it finds a study.

And the refusals before a command is decided, or of an answer that cannot be shown:

HttpProblem         anything that is refused by itself
└── InvalidField    422, with the problem of each field
    └── WrongCursor the cursor of no page of ours
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event as Flag
from threading import Lock
from typing import Any, TypeVar, cast

from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import ANONYMOUS_ADMIN, Principal, StudyId, Unknown
from app.events import ChainRecord, Decide, EventLog, Plans, Records, Snapshots, StoredEvent, StudyRecord
from app.registry import Catalogue
from app.service.health import Checks
from app.service.plan_history import PlanHistories, PlanHistory
from app.service.trial_logs import KeptLogs, delete_logs
from app.service.views.plans import Feed
from app.storage.object_store import ObjectStore
from app.storage.owned_store import open_owned
from stagetree.limits import LIMITS, Limits
from stagetree.sinks.addresses import Configured


class HttpProblem(Exception):
    """A refusal with its HTTP status; the message is its detail."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class InvalidField(HttpProblem):
    """The request is well-formed, and wrong at some field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(422, f"{field} {problem}")
        self.errors = [{"field": field, "problem": problem}]


class WrongCursor(InvalidField):
    """The cursor is not one of ours."""

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor", f"must be the next_cursor of an earlier page, got {cursor!r}")


T = TypeVar("T")
Write = Callable[[str, Decide], list[StoredEvent]]
"""Appends to a stream the events that are decided on its plan. Raises what `app.events.records.transact` raises."""


class VersionedCache:
    """The last value under each of up to `most` names, as long as its moment is the present one. Safe to share."""

    def __init__(self, most: int = 256) -> None:
        self._most, self._lock = most, Lock()
        self._kept: OrderedDict[str, tuple[Any, Any]] = OrderedDict()

    def get(self, name: str, moment: Any, make: Callable[[], T]) -> T:
        """What is known under the name, if it is of this moment; or else what is made now."""
        with self._lock:
            of_moment, value = self._kept.get(name, (None, None))
        if of_moment == moment:
            return cast(T, value)
        value = make()
        with self._lock:
            self._kept[name] = (moment, value)
            self._kept.move_to_end(name)
            if len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return value


ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Services:
    """trainers: those on offer, as their files are now. limits: how much may be asked for. wake_scheduler: has it look
    at what happened, without waiting. checks: what readiness means. lease_seconds: a slot that was not heard of
    for so long is lost. stopping: set when the server goes down, so that streams end. stop_seconds: how long that may
    take. logs: what trainers print and log, None where nothing is kept. hosts: the names that the
    server answers to, besides addresses and localhost. checkpoints: where they lie, see `app.storage.object_store`.
    study_files: the folders with what studies may name in `begin_from` and `inputs`. proofs: whether slots train steps
    again to compare. sinks: what studies may name in `sinks`.
    """

    records: Records
    plans: Plans
    plan_histories: PlanHistories
    trainers: Catalogue
    wake_scheduler: Callable[[], None]
    clock: Callable[[], float]
    new_id: Callable[[], str]
    checks: Checks
    lease_seconds: float
    stop_seconds: float
    limits: Limits = LIMITS
    stopping: Flag = field(default_factory=Flag)
    logs: KeptLogs | None = None
    hosts: Collection[str] = ()
    checkpoints: str = ""
    study_files: Sequence[str] = ()
    proofs: bool = True
    sinks: Configured = field(default_factory=Configured)

    def close(self) -> None:
        """Let go of everything, before the process ends."""
        self.records.close()

    @property
    def log(self) -> EventLog:
        return self.records.log

    @cached_property
    def moments(self) -> Snapshots:
        """Plans as they were."""
        return Snapshots(self.log)

    @cached_property
    def overviews(self) -> VersionedCache:
        """Studies without their trials."""
        return VersionedCache()

    @cached_property
    def estimates(self) -> VersionedCache:
        """How far the estimates of each plan's stages were off."""
        return VersionedCache()

    @cached_property
    def store(self) -> ObjectStore:
        """Where checkpoints lie."""
        return open_owned(self.records, self.checkpoints)

    def delete_logs(self, plan: SearchPlan) -> None:
        """Forget the logs of a plan's deleted studies. What cannot be deleted is a warning in this process's log."""
        if self.logs is not None:
            delete_logs(self.logs, plan)

    def compute(self, do: Callable[..., T], *given: Any) -> T:
        """The result of a pure function of a module."""
        return do(*given)

    def find(self, study: str, who: Principal = ANONYMOUS_ADMIN) -> StudyRecord:
        """The study's row, for somebody. Raises `Unknown`, also where it is of a project that they do not see."""
        with self.records.read() as rows:
            row = rows.studies.find(study) if ID.fullmatch(study) else None
        if row is None or not who.can_see(row.project):
            raise Unknown(f"there is no study {study}")
        return row

    @contextmanager
    def open_study(self, row: StudyRecord, at: int | None = None) -> Iterator[tuple[SearchPlan, Study]]:
        """The study and its plan, as of now or of the event at its position `at`; nobody changes them within the block.

        Raises `InvalidField` where there is no such event yet.
        """
        if at is None:
            with self.plans.holding(row.stream) as plan:
                yield plan, plan.studies[StudyId(row.id)]
        else:
            with self.moments.holding(row.stream, self.version(row, at)) as plan:
                yield plan, plan.studies[StudyId(row.id)]

    @contextmanager
    def plan_history(self, row: StudyRecord, version: int) -> Iterator[PlanHistory]:
        """What happened when on the study's plan, as far as a version of it."""
        with self.plan_histories.holding(row.stream, version) as history:
            yield history

    def version(self, row: StudyRecord, at: int | None = None) -> int:
        """Of the study's plan, as of now or of the event `at`. Raises `InvalidField` as `open_study` does."""
        with self.open_study(row) as (plan, study):
            before = study.submitted_version - 1
            if at is not None and before + at > plan.version:
                raise InvalidField("at", f"must be the position of an event: the last one is {plan.version - before}")
            return plan.version if at is None else before + at

    def feed(self, row: StudyRecord, after: int) -> Feed:
        """The events of a study behind a position."""
        return Feed(self.records, self.plans, self.plan_histories, row, after)

    def live(self, stream: str) -> Sequence[ChainRecord]:
        """The chains of a plan that are under way; `step` is the last one done, by heartbeat."""
        with self.records.read() as rows:
            return rows.chains.live(stream)
