"""With `value: best`, only results that the study itself requests count."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import results
from tests.plans import Story


def best_trial(*, is_shared: bool, **fields: Any) -> tuple[int, int, float]:
    """The best trial of a study of two, with its step and value."""
    story = Story()
    mine = story.submit(({"lr": 1}, 10), ({"lr": 2}, 10), value="best", **fields)
    first, second = story.path(mine, 0)[0], story.path(mine, 1)[0]
    if is_shared:
        story.submit(({"lr": 1}, 10), eval_every=1, name="other")
        story.evaluate(first.id, 3, 0.90)
    if fields:
        story.evaluate(first.id, 5, 0.80)
    story.evaluate(first.id, 10, 0.70)
    story.evaluate(second.id, 10, 0.75)
    trial, value = results.rank_trials(story.plan, story.plan.studies[mine])[0]
    return trial.number, value.step, value.value


@pytest.mark.parametrize("fields, found", [({}, (1, 10, 0.75)), ({"eval_every": 5}, (0, 5, 0.80))])
def test_evaluations_of_another_study_change_no_result(fields: dict[str, int], found: tuple[int, int, float]) -> None:
    assert best_trial(is_shared=False, **fields) == best_trial(is_shared=True, **fields) == found
