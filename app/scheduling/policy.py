"""What a policy is: it looks at the frontiers of all plans and says what a free slot takes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Protocol

from app.domain.ids import PlanId
from app.domain.stage_tree import Place
from app.scheduling.balance import EVEN, Balance
from app.scheduling.frontier import Frontier, Span

Choice = tuple[Frontier, list[Span]]
"""Which frontier to take from, and the spans to run there in a row."""

PassedOver = Mapping[PlanId, Container[Place]]
"""By plan, the heads that are not to be chosen, since no slot can take them now: as if they were not there."""

NOTHING: PassedOver = {}


class Policy(Protocol):
    """balance: what is due to each study, for a policy that goes by that."""

    def __call__(
        self, frontiers: Sequence[Frontier], passed_over: PassedOver = NOTHING, balance: Balance = EVEN
    ) -> Choice | None: ...
