"""Resumptions from saved states, the kinds of values under which they happened, and possible comparisons.

A trainer whose state lacks one optimizer's memory is exact with other optimizers. A trainer that reads a value only
when it is built is exact while the value is constant. So a comparison counts only for the kinds of values that it was
made with. Numbers are of one kind except 0, which often switches a feature off: otherwise each trial of a random search
would be its own kind.
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
"""Nodes from the root on, each with the step at which the path leaves it: see `SearchPlan.path_to`."""

CHANGED = "changed"
"""Marks a hyper-parameter that had changed before training resumed, so that the state is loaded with another value
than the model began with."""


@dataclass(frozen=True, slots=True, order=True)
class Witness:
    """A saved state that a second training can reach in another way than the first.

    node, step: the end of both. since: the step from which the first trained without a break. begin: the step of the
    saved state from which the second starts, or 0. The later of the two is a resumption that only one training has.
    cost: steps of the second. draw: a reproducible number between 0 and 1 that samples audits.
    """

    cost: int
    node: NodeId
    step: int
    since: int
    begin: int
    draw: float = 0.0

    @property
    def resumption(self) -> int:
        """The step of the compared resumption."""
        return max(self.since, self.begin)


@dataclass(frozen=True, slots=True, order=True)
class Resumption:
    """Training resumed from the state after `step` steps, under `values` of these kinds."""

    step: int
    values: frozenset[Value] = frozenset()


def resumption_at(path: NodePath, step: int) -> Resumption:
    """The resumption after `step` steps on a path, with the kinds of values before and after, and earlier changes."""
    around = (node for node, end in path if node.start <= step <= end)
    values = {(name, _kind(form)) for node in around for name, form in node.segment.forms.items()}
    return Resumption(step, frozenset({*values, *_changed_values(path, step)}))


def _kind(form: Form) -> str:
    value = form.at(0) if form.is_held else 0.5
    if isinstance(value, bool) or not isinstance(value, int | float):
        return form.name
    return "number" if value else "0"


def _changed_values(path: NodePath, step: int) -> Iterator[Value]:
    for (before, _), (node, _) in pairwise(path):
        if node.start < step:
            forms = before.segment.forms
            yield from ((name, CHANGED) for name, form in node.segment.forms.items() if forms[name].name != form.name)
