"""What a tuner from a file may not want ends its study, and no other: nothing of it is put on record."""

from __future__ import annotations

import math
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from app.domain.commands import Extend, Prioritize, Start
from app.domain.search_plan import TrialEvent
from app.domain.terms import StudyId
from app.search.tuners.base import REGISTERED, NewTrial, Next, Registered, Tuner, check_action
from tests.tuners.worlds import STUDY, simulator, spec

OTHER = StudyId("other")

WRONG: dict[str, Any] = {
    "it must suggest an action, or None, got 'wait'": "wait",
    "it must suggest an action, or None, got namespace": SimpleNamespace(steps=3, reason={}),
    "steps: must be a whole number of Python's int, got np.int64(3)": NewTrial(steps=np.int64(3)),  # type: ignore[arg-type]
    "steps: must be a whole number of Python's int, got 1.5": NewTrial(steps=1.5),  # type: ignore[arg-type]
    "steps: must be a whole number of Python's int, got True": NewTrial(steps=True),
    "trial: must be a whole number of Python's int, got '0'": Extend(trial="0", steps=3),  # type: ignore[arg-type]
    "priority: must be a number, got 'first'": Prioritize(trial=0, priority="first"),  # type: ignore[arg-type]
    "hp: must be a dict, got 0.1": Start(hp=0.1, steps=3),  # type: ignore[arg-type]
    "hp: must be JSON with finite numbers, got {'lr': {0.1}}": Start(hp={"lr": {0.1}}, steps=3),
    "reason: must be a dict, got 'it leads'": NewTrial(steps=3, reason="it leads"),  # type: ignore[arg-type]
    "reason: must be JSON with finite numbers, got {'loss': inf}": NewTrial(steps=3, reason={"loss": math.inf}),
    "reason.rung: must be a whole number of Python's int, got 'top'": NewTrial(steps=3, reason={"rung": "top"}),
    "reason: must not hold 'by'": NewTrial(steps=3, reason={"by": "user"}),
}


@pytest.fixture
def wanting_tuner() -> Iterator[type[Tuner]]:
    """A tuner that wants what `wanted` is."""

    class Wanting(Tuner):
        wanted: Any = None

        def observe(self, event: TrialEvent) -> None:
            pass

        def suggest(self) -> Next | None:
            return self.wanted  # type: ignore[no-any-return]

    REGISTERED["wanting"] = Registered(Wanting, "1")
    yield Wanting
    del REGISTERED["wanting"]


@pytest.mark.parametrize("sentence", WRONG)
def test_actions_that_cannot_be_recorded_end_only_their_study(wanting_tuner: Any, sentence: str) -> None:
    wanting_tuner.wanted = WRONG[sentence]
    world = simulator(spec({"kind": "custom", "name": "wanting"}), slots=2)
    world.submit(OTHER, spec({"kind": "random", "num_trials": 2, "max_steps": 3}).to_json())
    world.run()
    study, other = world.plan.studies[STUDY], world.plan.studies[OTHER]
    assert (study.state, study.trials, other.state) == ("failed", [], "completed")
    assert f"the tuner failed: NotAnAction: {sentence}" in (study.error or "")


@pytest.mark.parametrize(
    "wanted", [NewTrial(steps=3, reason={"rung": 0, "loss": 1e308}), Extend(trial=0, steps=10**18)]
)
def test_recordable_actions_are_validated_by_the_domain(wanted: Next) -> None:
    check_action(wanted)
