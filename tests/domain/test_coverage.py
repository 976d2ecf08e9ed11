"""Under which values a comparison was made decides for which trials it counts."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.search_plan import Node, covered_to, span_on
from app.domain.search_plan.coverage import Way
from app.domain.terms import NodeId

Json = dict[str, Any]


def way(*parts: tuple[int, Json], end: int = 20) -> list[tuple[Node, int]]:
    """Nodes that begin at these steps with these values, one behind the other."""
    nodes = [Node(id=NodeId(str(number)), parent=None, start=start, hp=hp) for number, (start, hp) in enumerate(parts)]
    return list(zip(nodes, [*(node.start for node in nodes[1:]), end], strict=True))


def resumed(made: Way, step: int) -> Way:
    """The last of its nodes was trained from a state that was kept there."""
    made[-1][0].resumed_from = step
    return made


@pytest.mark.parametrize(
    ("one", "other", "is_covered"),
    [
        (0.1, 0.3, True),
        (64, 48, True),
        (0.1, {"family": "linear", "init": 0.1, "slope": -0.001}, True),
        (1, 0.5, True),
        (0, 0.3, False),
        (0.3, 0.0, False),
        ("sgd", "adam", False),
        (True, False, False),
        (False, 0, False),
        (None, 0.1, False),
    ],
)
def test_numbers_are_alike_but_for_zero_and_all_else_is_told_apart(one: Any, other: Any, is_covered: bool) -> None:
    spans = [span_on(way((0, {"x": one})), 5, 5)]
    assert covered_to(way((0, {"x": one})), 5, spans) == 20
    assert covered_to(way((0, {"x": other})), 5, spans) == (20 if is_covered else 5)


def test_a_trial_is_covered_up_to_the_step_at_which_another_value_begins() -> None:
    spans = [span_on(way((0, {"x": "sgd"})), 5, 5)]
    assert covered_to(way((0, {"x": "sgd"}), (12, {"x": "adam"})), 5, spans) == 12


def test_what_a_trial_had_before_its_first_break_needs_no_proof() -> None:
    spans = [span_on(way((0, {"x": "adam"})), 5, 5)]
    assert covered_to(way((0, {"x": "sgd"}), (12, {"x": "adam"})), 12, spans) == 20
    assert span_on(way((0, {"x": "sgd"}), (12, {"x": "adam"})), 12, 12).values == {("x", "s'adam'")}


def test_a_change_before_a_break_counts_by_the_name_of_what_has_changed() -> None:
    changed_x = ((0, {"x": 0.1, "y": 0.1}), (4, {"x": 0.2, "y": 0.1}))
    changed_y = ((0, {"x": 0.1, "y": 0.1}), (4, {"x": 0.1, "y": 0.2}))
    spans = [span_on(way(*changed_x), 7, 7)]
    assert covered_to(resumed(way(*changed_x), 9), 9, spans) == 20
    assert covered_to(resumed(way(*changed_y), 9), 9, spans) == 9
    assert covered_to(resumed(way(*changed_y), 4), 4, spans) == 20  # it changed where it went on, as it does for others
