"""The parts that queries and commands share, made once by a composition root; and the refusals of requests:

HttpProblem         any refusal with an HTTP status
└── InvalidField    422, with the problem of each field
    └── WrongCursor a cursor of no page
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from threading import Event as Flag
from threading import Lock
from typing import Any, TypeVar, cast

from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import ANONYMOUS_ADMIN, Principal, StudyId, Unknown
from app.events import ChainRecord, Decide, EventLog, Plans, Records, Snapshots, StoredEvent, StudyRecord
from app.input_reader import InputReader
from app.registry import Catalogue
from app.service.health import Checks
from app.service.plan_history import PlanHistories
from app.service.trial_logs import KeptLogs
from app.service.views.plans import Feed
from app.storage.owned_store import OwnedStore, open_owned
from stagetree.limits import LIMITS, Limits
from stagetree.sinks.addresses import Configured


class HttpProblem(Exception):
    """A refusal with its HTTP status; the message is its detail."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status, self.detail = status, detail


class InvalidField(HttpProblem):
    """A well-formed request with a wrong field."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(422, f"{field} {problem}")
        self.errors = [{"field": field, "problem": problem}]


class WrongCursor(InvalidField):
    """A cursor that no page returned."""

    def __init__(self, cursor: str) -> None:
        super().__init__("cursor", f"must be the next_cursor of an earlier page, got {cursor!r}")


T = TypeVar("T")
Write = Callable[[str, Decide], list[StoredEvent]]
"""Decides events on a stream's plan and appends them. Raises what `app.events.records.transact` raises."""


class VersionedCache:
    """Up to `most` values by name, each valid for one moment. Safe to share between threads."""

    def __init__(self, most: int = 256) -> None:
        self._most, self._lock = most, Lock()
        self._kept: OrderedDict[str, tuple[Any, Any]] = OrderedDict()

    def get(self, name: str, moment: Any, make: Callable[[], T]) -> T:
        """The cached value of this moment, or else a new one."""
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

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()


READ_SECONDS = 20.0
"""How long a request may wait for the files that it names: less than clients wait for an answer."""

ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Services:
    """The parts that queries and commands share."""

    records: Records
    plans: Plans
    plan_histories: PlanHistories
    trainers: Catalogue
    wake_scheduler: Callable[[], None]
    """Has the scheduler look at new events at once."""

    clock: Callable[[], float]
    new_id: Callable[[], str]
    checks: Checks
    """The readiness checks."""

    lease_seconds: float
    """A slot that was silent for longer is lost."""

    stop_seconds: float
    """How long a shutdown may take."""

    limits: Limits = LIMITS
    stopping: Flag = field(default_factory=Flag)
    """Set at shutdown, so that streams end."""

    logs: KeptLogs | None = None
    """Trainers' output and logged rows, if any are stored."""

    hosts: Collection[str] = ()
    """The server's names besides addresses and localhost."""

    checkpoints: str = ""
    """The address of the store, see `app.storage.object_store`."""

    study_files: Sequence[str] = ()
    """The folders that studies may name in `begin_from` and `inputs`."""

    reader: InputReader = field(default_factory=lambda: InputReader(READ_SECONDS))
    """Reads what studies name."""

    proofs: bool = True
    """Whether slots train steps again to compare them."""

    sinks: Configured = field(default_factory=Configured)
    """The sinks that studies may name."""

    overviews: VersionedCache = field(init=False, default_factory=VersionedCache)
    """Studies without their trials."""

    estimates: VersionedCache = field(init=False, default_factory=VersionedCache)
    """The errors of each plan's estimates."""

    def close(self) -> None:
        """Close the database before the process ends."""
        self.reader.close()
        self.records.close()

    def forget(self) -> None:
        """Drop all memory of the log, which has lost events."""
        self.plan_histories.clear()
        self.moments.clear()
        self.overviews.clear()
        self.estimates.clear()

    @property
    def log(self) -> EventLog:
        return self.records.log

    @cached_property
    def moments(self) -> Snapshots:
        """Plans at earlier moments."""
        return Snapshots(self.log)

    @cached_property
    def store(self) -> OwnedStore:
        """The store of checkpoints."""
        return open_owned(self.records, self.checkpoints)

    def compute(
        self, do: Callable[..., T], *given: Any, stream: Iterable[Any] | None = None, seconds: int | None = None
    ) -> T:
        """The result of a pure function of a module.

        stream: one more argument, the last, of which a server never holds all items. seconds: how long a server
        computes at most.
        """
        return do(*given) if stream is None else do(*given, stream)

    def find(self, study: str, who: Principal = ANONYMOUS_ADMIN) -> StudyRecord:
        """The study's row. Raises `Unknown`, also for a project that the caller may not see."""
        with self.records.read() as rows:
            row = rows.studies.find(study) if ID.fullmatch(study) else None
        if row is None or not who.can_see(row.project):
            raise Unknown(f"there is no study {study}")
        return row

    @contextmanager
    def open_study(self, row: StudyRecord, at: int | None = None) -> Iterator[tuple[SearchPlan, Study]]:
        """The study and its plan, now or after the event at position `at`, locked within the block.

        Raises `InvalidField` if there is no such event yet.
        """
        if at is None:
            with self.plans.holding(row.stream) as plan:
                yield plan, plan.studies[StudyId(row.id)]
        else:
            with self.moments.holding(row.stream, self.version(row, at)) as plan:
                yield plan, plan.studies[StudyId(row.id)]

    def version(self, row: StudyRecord, at: int | None = None) -> int:
        """The version of the study's plan, now or after the event `at`. Raises `InvalidField` as `open_study` does."""
        with self.open_study(row) as (plan, study):
            before = study.submitted_version - 1
            if at is not None and before + at > plan.version:
                raise InvalidField("at", f"must be the position of an event: the last one is {plan.version - before}")
            return plan.version if at is None else before + at

    def feed(self, row: StudyRecord, after: int) -> Feed:
        """The events of a study after a position."""
        return Feed(self.records, self.plans, self.plan_histories, row, after)

    def live(self, stream: str) -> Sequence[ChainRecord]:
        """The running chains of a plan. Their `step` is the last one reported by a heartbeat."""
        with self.records.read() as rows:
            return rows.chains.live(stream)
