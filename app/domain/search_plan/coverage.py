"""What can prove that a trainer is exact, and under which values of its hyper-parameters it was compared.

A trainer whose state lacks the memory of one optimizer is exact with the others, and one that reads a value only when
it is built is exact as long as that value never changes. Numbers are not told apart but for 0, which mostly switches
something off: else each trial of a random search would be the only one of its kind.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from app.domain.search_plan.node import Node
from app.domain.terms import NodeId
from stagetree.sequences import Form

Value = tuple[str, str]
"""The name of a hyper-parameter, and a kind of its values, or that it had changed before training went on."""

Way = Sequence[tuple[Node, int]]
"""As of `SearchPlan.way`."""

CHANGED = "changed"


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


@dataclass(frozen=True, slots=True)
class ProvenSpan:
    """From which break to which step training came out as it does without one. values: under which."""

    begin: int
    step: int
    values: frozenset[Value] = frozenset()


def span_on(way: Way, begin: int, resumed: int) -> ProvenSpan:
    """Of training to the end of a way. begin: its first break. resumed: the last step at which a state was loaded."""
    values = (value for node, end in way if end > begin for value in _values(node))
    return ProvenSpan(begin, way[-1][1], frozenset({*values, *_changed(way, resumed)}))


def covered_to(way: Way, broke: int, spans: Sequence[ProvenSpan]) -> int:
    """How far the values of a trial that broke there first are, on its way, such that spans were compared under."""
    covered = frozenset[Value]().union(*(span.values for span in spans))
    for node, end in way:
        if end > broke and not covered.issuperset((*_values(node), *_changed(way, node.resumed_from))):
            return max(broke, node.start)
    return way[-1][1]


def _values(node: Node) -> Iterator[Value]:
    return ((name, _kind(form)) for name, form in node.segment.forms.items())


def _kind(form: Form) -> str:
    value = form.at(0) if form.is_held else 0.5
    if isinstance(value, bool) or not isinstance(value, int | float):
        return form.name
    return "number" if value else "0"


def _changed(way: Way, resumed: int) -> Iterator[Value]:
    """The hyper-parameters that a model was not set up with first, when it went on there."""
    for (before, _), (node, _) in pairwise(way):
        if node.start < resumed:
            forms = before.segment.forms
            yield from ((name, CHANGED) for name, form in node.segment.forms.items() if forms[name].name != form.name)
