"""Reopened studies: earlier decisions stand, and follow from the history as before."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain.decide.studies import SIZE_FIELDS
from app.domain.terms import StateConflict
from app.search.replay import replay
from tests.tuners.test_every_tuner import KINDS, SEEDS, run, study_of, tuner_property
from tests.tuners.worlds import STUDY, numbered_events

GROWING = {name: tuner for name, tuner in KINDS.items() if tuner["kind"] in SIZE_FIELDS}
OTHERS = {name: tuner for name, tuner in KINDS.items() if tuner["kind"] not in SIZE_FIELDS}


@pytest.mark.slow
@pytest.mark.parametrize("tuner", GROWING.values(), ids=GROWING)
@tuner_property(seed=SEEDS, slots=st.sampled_from([1, 4]))
def test_a_reopened_study_keeps_earlier_decisions(tuner: dict[str, Any], seed: int, slots: int) -> None:
    world = run(study_of(tuner, "apart"), seed, slots=slots)
    study = world.plan.studies[STUDY]
    before, trials = list(study.history), len(study.trials)
    field = SIZE_FIELDS[tuner["kind"]]
    world.give(c.ReopenStudy(study=STUDY, trials=2 * tuner.get(field, 1), at=0.0))
    world.run()
    assert study.state == "completed" and study.history[: len(before)] == before
    assert len(study.trials) >= trials
    found = replay(numbered_events(world.events), STUDY)
    assert found.identical, found.difference


@pytest.mark.slow
@pytest.mark.parametrize("tuner", OTHERS.values(), ids=OTHERS)
def test_the_others_say_so(tuner: dict[str, Any]) -> None:
    world = run(study_of(tuner, "apart"), 0)
    with pytest.raises(StateConflict, match="cannot grow"):
        world.give(c.ReopenStudy(study=STUDY, trials=100, at=0.0))
