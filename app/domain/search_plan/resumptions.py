"""Where training resumed from a saved state, under which kinds of values, and what can be compared there.

A trainer whose state lacks the memory of one optimizer is exact with the others, and one that reads a value only when
it is built is exact as long as that value never changes. So a comparison counts for the kinds of values that it was
made under. Numbers are told apart only by whether they are 0, which mostly switches something off: otherwise each trial
of a random search would be the only one of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.domain.search_plan.node import Node
from app.domain.terms import NodeId
from stagetree.sequences import Form

Value = tuple[str, str]
"""The name of a hyper-parameter and a kind of value, or `CHANGED`."""

NodePath = Sequence[tuple[Node, int]]
"""Nodes from the root on, each with the step at which the way leaves it: see `SearchPlan.way`."""

CHANGED = "changed"
"""In place of a kind: the hyper-parameter had changed before training resumed, so the state comes back under another
value than the model began with."""


@dataclass(frozen=True, slots=True, order=True)
class Witness:
    """A saved state that a second training can reach in another way than the first.

    node, step: where both end. since: the step from which the first trained without a break. begin: the saved state
    (0: none) from which the second starts. The later of the two is the resumption that one of them has and the other
    has not. cost: steps of the second. draw: between 0 and 1, the same for everyone; chooses audits.
    """

    cost: int
    node: NodeId
    step: int
    since: int
    begin: int
    draw: float = 0.0

    @property
    def resumption(self) -> int:
        """The step of the resumption that it compares."""
        return max(self.since, self.begin)


@dataclass(frozen=True, slots=True, order=True)
class Resumption:
    """Training resumed from the state after `step` steps, under `values` of these kinds."""

    step: int
    values: frozenset[Value] = frozenset()


def resumption_at(way: NodePath, step: int) -> Resumption:
    """What resuming after `step` steps on a way depends on: the values before and after, and which changed before."""
    around = (node for node, end in way if node.start <= step <= end)
    values = {(name, _kind(form)) for node in around for name, form in node.segment.forms.items()}
    return Resumption(step, frozenset({*values, *_changed_values(way, step)}))


def _kind(form: Form) -> str:
    value = form.at(0) if form.is_held else 0.5
    if isinstance(value, bool) or not isinstance(value, int | float):
        return form.name
    return "number" if value else "0"


def _changed_values(way: NodePath, step: int) -> Iterator[Value]:
    for (before, _), (node, _) in pairwise(way):
        if node.start < step:
            forms = before.segment.forms
            yield from ((name, CHANGED) for name, form in node.segment.forms.items() if forms[name].name != form.name)
