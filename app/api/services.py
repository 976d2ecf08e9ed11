"""What a route may use, made once by the composition root, and how it finds a study."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from threading import Event as Flag
from typing import Annotated

from fastapi import Depends, Request
from fastapi import Path as PathParameter

from app.api.chronicle import Chronicle, Chronicles
from app.api.errors import InvalidField
from app.api.health import Checks
from app.api.sharing.answers import Answers, Latest
from app.api.sharing.turns import Together, Turns
from app.api.streaming.broadcast import Broadcasts
from app.api.streaming.feed import Feed
from app.api.streaming.tail import Tail
from app.domain.errors import Unknown
from app.domain.ids import StudyId
from app.domain.search_plan import SearchPlan, Study
from app.events.log import EventLog
from app.events.plans import Moments, Plans
from app.events.records import Records
from app.events.rows import ChainRecord, StudyRecord
from app.object_store import ObjectStore, open_store
from app.registry import Catalogue
from stagetree.limits import LIMITS, Limits

ID = re.compile(r"[a-z0-9][a-z0-9_-]{0,63}")


@dataclass(frozen=True)
class Services:
    """trainers: those on offer, as their files are now. limits: how much may be asked for. wake_scheduler: has it look
    at what happened, without waiting. checks: what readiness means. lease_seconds: a slot that was not heard of
    for so long is lost. stopping: set when the server goes down, so that streams end. stop_seconds: how long that may
    take. logs: the folder in which slots keep what trainers print, None where there is none. hosts: the names that the
    server answers to, besides addresses and localhost. checkpoints: where they lie, see `app.object_store.open_store`.
    study_files: the folders with what studies may name in `begin_from` and `inputs`. proofs: whether slots train steps
    again to compare.
    """

    records: Records
    plans: Plans
    chronicles: Chronicles
    trainers: Catalogue
    wake_scheduler: Callable[[], None]
    clock: Callable[[], float]
    new_id: Callable[[], str]
    checks: Checks
    lease_seconds: float
    stop_seconds: float
    limits: Limits = LIMITS
    stopping: Flag = field(default_factory=Flag)
    logs: Path | None = None
    hosts: Collection[str] = ()
    checkpoints: str = ""
    study_files: Sequence[str] = ()
    proofs: bool = True

    def close(self) -> None:
        """Let go of everything, before the process ends."""
        self.records.close()

    @property
    def log(self) -> EventLog:
        return self.records.log

    @cached_property
    def tail(self) -> Tail:
        """Who follows the log."""
        return Tail(self.log, self.stopping.is_set)

    @cached_property
    def broadcasts(self) -> Broadcasts:
        """What happens in the studies that are followed."""
        return Broadcasts(self.tail, self.stopping.is_set)

    @cached_property
    def together(self) -> Together:
        """What many ask for at the same moment."""
        return Together()

    @cached_property
    def turns(self) -> Turns:
        """Who may compute a large answer."""
        return Turns()

    @cached_property
    def moments(self) -> Moments:
        """Plans as they were."""
        return Moments(self.log)

    @cached_property
    def overviews(self) -> Latest:
        """Studies without their trials."""
        return Latest()

    @cached_property
    def answers(self) -> Answers:
        """Large answers that may be asked for again."""
        return Answers()

    @cached_property
    def store(self) -> ObjectStore:
        """Where checkpoints lie."""
        return open_store(self.checkpoints)

    def find(self, study: str) -> StudyRecord:
        """The study's row. Raises `Unknown`."""
        with self.records.read() as rows:
            row = rows.studies.find(study) if ID.fullmatch(study) else None
        if row is None:
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
    def chronicle(self, row: StudyRecord, version: int) -> Iterator[Chronicle]:
        """What happened when on the study's plan, as far as a version of it."""
        with self.chronicles.holding(row.stream, version) as found:
            yield found

    def version(self, row: StudyRecord, at: int | None = None) -> int:
        """Of the study's plan, as of now or of the event `at`. Raises `InvalidField` as `open_study` does."""
        with self.open_study(row) as (plan, study):
            before = study.submitted_version - 1
            if at is not None and before + at > plan.version:
                raise InvalidField("at", f"must be the position of an event: the last one is {plan.version - before}")
            return plan.version if at is None else before + at

    def feed(self, row: StudyRecord, after: int) -> Feed:
        """The events of a study behind a position."""
        return Feed(self.records, self.plans, self.chronicles, row, after)

    def live(self, stream: str) -> Sequence[ChainRecord]:
        """The chains of a plan that are under way; `step` is the last one done, by heartbeat."""
        with self.records.read() as rows:
            return rows.chains.live(stream)


def services(request: Request) -> Services:
    """The services of the application that the request came to."""
    found: Services = request.app.state.services
    return found


async def _services(request: Request) -> Services:
    return services(request)


Use = Annotated[Services, Depends(_services)]
StudyPath = Annotated[str, PathParameter(description="the id of a study", examples=["digits-grid-3f9c1a"])]
TrialPath = Annotated[int, PathParameter(description="the number of a trial in its study, from 0 on", examples=[3])]


async def study_row(study: StudyPath, use: Use) -> StudyRecord:
    """The row of the study in the path. Raises `Unknown`."""
    return await use.together.do(("row", study), lambda: use.find(study))


StudyRowDep = Annotated[StudyRecord, Depends(study_row)]
