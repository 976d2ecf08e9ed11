"""The states of an average, its name, and its event: see `app.domain.decide.averages`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from app.domain.terms import NodeId, digest


class MeanShare(NamedTuple):
    """The state of a node after a step, as a part of an average, and its weight there."""

    node: NodeId
    step: int
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageNamed:
    """A node begins, after `step`, with the mean of other states; so it has the same name wherever these are averaged.

    shares: in the order in which they are added up.
    """

    node: NodeId
    step: int
    shares: tuple[MeanShare, ...]


def name_of(shares: Sequence[MeanShare]) -> NodeId:
    """What the mean of these states is called."""
    return NodeId(digest("average", [list(share) for share in shares]))
