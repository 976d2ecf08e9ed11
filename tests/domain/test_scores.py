"""Scores of results: metrics have one unless there is a problem with them."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.domain.objectives import read_objectives
from tests.plans import max_examples

OBJECTIVES = read_objectives(
    {
        "metrics": [{"name": "loss", "mode": "min"}, {"name": "size", "mode": "max"}],
        "constraints": ["latency <= 10", "loss / size < 2"],
    }
)
NUMBERS = st.one_of(st.none(), st.floats(), st.sampled_from([0.0, math.inf, math.nan]))


@max_examples(150)
@given(st.dictionaries(st.sampled_from(["loss", "size", "latency", "other"]), NUMBERS))
def test_metrics_have_a_score_unless_there_is_a_problem_with_them(metrics: dict[str, float | None]) -> None:
    assert (OBJECTIVES.score(metrics) is None) == (OBJECTIVES.problem(metrics, 5) is not None)
