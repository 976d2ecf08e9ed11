"""A preview of any study is bounded in time and work."""

from __future__ import annotations

from typing import Any

import pytest

from app.simulation import virtual_run as module
from app.simulation.preview import preview
from app.simulation.virtual_run import PreviewTooLong
from stagetree.limits import Limits
from stagetree.spec import StudySpec


def study(**tuner: Any) -> StudySpec:
    space = {"lr": {"uniform": [0, 1]}}
    values = {"name": "n", "trainer": "t", "metric": "m", "mode": "max", "space": space, "tuner": tuner}
    return StudySpec.from_dict(values)


@pytest.mark.parametrize(
    "tuner",
    [{"kind": "random", "num_trials": 3000}, {"kind": "asha", "num_trials": 30, "min_steps": 1}],
    ids=["planned", "simulated"],
)
def test_a_preview_times_out(tuner: dict[str, Any]) -> None:
    asked = iter([False, True])
    with pytest.raises(PreviewTooLong, match="must be smaller to be previewed"):
        preview(study(**tuner, max_steps=10), slots=1, is_over=lambda: next(asked))


def test_a_preview_ends_at_its_limit_of_events(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_EVENTS", 50)
    with pytest.raises(PreviewTooLong, match="must be smaller to be previewed"):
        preview(study(kind="random", num_trials=100, max_steps=10), slots=1)


def test_a_preview_of_an_endless_tuner_ends() -> None:
    endless = study(kind="asha", num_trials=64, min_steps=1, reduction_factor=2)
    with pytest.raises(PreviewTooLong, match="steps: must be at most 8 steps, got 16"):
        preview(endless, slots=4, limits=Limits(steps=8))
