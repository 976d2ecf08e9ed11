"""States that prove something when their steps are trained again in another way."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain.ids import NodeId


@dataclass(frozen=True, slots=True, order=True)
class Witness:
    """The state of `node` after `step` steps was trained without a break from step `since` on.

    begin: where else its training can begin, with a state that is kept or, at 0, with none. Trained from there it must
    come out the same: either `since` or `begin` is then a hand-over that lies inside the other way. cost: the steps
    from `begin` on. draw: between 0 and 1, the same for everyone, by which audits are chosen. is_behind: whether one of
    the two breaks lies behind a change of a hyper-parameter, where values come back otherwise than they came.
    """

    cost: int
    node: NodeId
    step: int
    since: int
    begin: int
    draw: float = 0.0
    is_behind: bool = False
