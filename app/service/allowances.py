"""The allowance of a token, read from its studies, and the write that no other one can spend it beside."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from app.domain.decide import Allowance, held_seconds, limit_to_allowance
from app.domain.events import Event
from app.domain.search_plan import SearchPlan
from app.domain.terms import Principal
from app.events import Decide, RowsPort
from app.events.log import VersionConflict
from app.service.services import Services


def allowance_of(use: Services, who: Principal) -> Allowance | None:
    """How much slot time the studies of a token hold; None for a principal without a limit."""
    if who.max_slot_seconds is None:
        return None
    with use.records.read() as rows:
        owned = rows.studies.owned(who.name)
    held = 0.0
    for row in owned:
        with use.open_study(row) as (plan, study):
            held += held_seconds(plan, study)
    return Allowance(who.name, who.max_slot_seconds, held)


class Spending:
    """A write by a token with an allowance: `prepare`, `decide` and `alongside` of `app.events.Write`.

    The token counts its writes. One that finds another count than it began with was overtaken, and tries again: so two
    writes to different plans cannot spend the same rest.
    """

    def __init__(self, use: Services, who: Principal, decide: Decide) -> None:
        self._use, self._who, self._decide = use, who, decide
        self._allowance: Allowance | None = None
        self._writes = 0

    def prepare(self) -> None:
        """Read the allowance, before the plan is locked."""
        with self._use.records.read() as rows:
            token = rows.tokens.find(self._who.name)
        self._writes = 0 if token is None else token.writes
        self._allowance = allowance_of(self._use, self._who)

    def decide(self, plan: SearchPlan) -> Sequence[Event]:
        """The events of the command, within the allowance. Raises as the command does, and `Refused`."""
        assert self._allowance is not None
        return limit_to_allowance(plan, self._decide(plan), self._allowance)

    def alongside(self, rows: RowsPort) -> None:
        """Count the write. Raises `VersionConflict`."""
        if not rows.tokens.count_write(self._who.name, self._writes):
            raise VersionConflict(f"Token {self._who.name} was used at the same time.")


def spending_fields(use: Services, who: Principal, decide: Decide) -> dict[str, Callable[..., object]]:
    """The fields of a write for this principal: within its allowance, if it has one."""
    if who.max_slot_seconds is None:
        return {"decide": decide}
    spending = Spending(use, who, decide)
    return {"prepare": spending.prepare, "decide": spending.decide, "alongside": spending.alongside}
