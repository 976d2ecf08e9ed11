"""What a route may use, and how it gets it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Any, TypeVar

from fastapi import Depends, Request
from fastapi import Path as PathParameter

from app.api.access import AccessPolicy, Who, check_owner
from app.api.sharing import Answers, Together, Turns, apart
from app.api.streaming import Broadcasts, Tail
from app.domain.terms import Principal, Unknown
from app.events import StudyRecord
from app.service.access import Doorkeeper
from app.service.services import Services

T = TypeVar("T")


@dataclass(frozen=True)
class ApiServices(Services):
    """What reads a store, and what many requests share. policy, groups: access control. tuner_files: with the tuners
    that users have written."""

    policy: AccessPolicy = field(default_factory=AccessPolicy)
    groups: Mapping[str, Principal] = field(default_factory=dict)
    tuner_files: Sequence[str] = ()

    def compute(self, do: Callable[..., T], *given: Any) -> T:
        """In a process of its own: a client decides how much there is to compute. Raises `InvalidField`."""
        return apart(self.tuner_files, do, *given)

    @cached_property
    def doorkeeper(self) -> Doorkeeper:
        """Who knows tokens."""
        return Doorkeeper(self.records, self.clock, self.groups)

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
    def answers(self) -> Answers:
        """Large answers that may be asked for again."""
        return Answers()


def services(request: Request) -> ApiServices:
    """The services of the application that the request came to."""
    found: ApiServices = request.app.state.services
    return found


async def _services(request: Request) -> ApiServices:
    return services(request)


Use = Annotated[ApiServices, Depends(_services)]
StudyPath = Annotated[str, PathParameter(description="the id of a study", examples=["digits-grid-3f9c1a"])]
TrialPath = Annotated[int, PathParameter(description="the number of a trial in its study, from 0 on", examples=[3])]


async def study_row(request: Request, study: StudyPath, use: Use, who: Who) -> StudyRecord:
    """The row of the study in the path. Raises `Unknown`, and `HttpProblem` where another may not change it."""
    row = await use.together.do(("row", study), lambda: use.find(study))
    if not who.sees(row.project):
        raise Unknown(f"there is no study {study}")
    check_owner(request, who, row.owner)
    return row


StudyRowDep = Annotated[StudyRecord, Depends(study_row)]
