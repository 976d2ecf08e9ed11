"""What a study shows in Python."""

from __future__ import annotations

from typing import Any

from app.api import examples
from stagetree.client.trial_requests import Known
from stagetree.notebook.live import StudyView


class Shown(StudyView):
    def __init__(self, *trials: dict[str, Any]) -> None:
        self._known = Known(examples.STUDY)
        for trial in trials:
            self._known.take(trial)


def test_the_best_trial_is_the_same_before_and_after_a_refresh() -> None:
    """A single request brought a curve, a path and requested steps, until the next refresh."""
    alone, listed = Shown(examples.TRIAL_DETAIL), Shown(examples.TRIAL_DETAIL, examples.TRIAL)
    assert alone.best is not None and alone.best == listed.best
    assert alone.best.to_json() == examples.TRIAL
    assert alone.trials == listed.trials


def test_the_best_trial_prints_like_a_result() -> None:
    """It printed 600 characters, with constants as objects."""
    study = Shown(examples.TRIAL)
    line = str(study.best)
    assert line.startswith("trial 3, val_accuracy 0.9889 at step 40: lr.family=") and line.endswith("bs=64")
    assert repr(study.trials) == f"[<{line}>]"
    waiting = examples.TRIAL | {"state": "waiting", "value": None, "last": None, "best": None}
    assert str(Shown(waiting).trials[0]).startswith("trial 3, waiting: lr.family=")
