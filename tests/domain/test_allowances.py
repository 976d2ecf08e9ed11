"""The allowance of a token: no sequence of its commands lets its studies use more."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import Allowance, decide, held_seconds, limit_to_allowance
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainOutcome, Refused, StateConflict, StudyId
from tests.plans import METRIC, OPENED, Story

CI = "ci"
TIME = 100.0


def allowance(*plans: SearchPlan) -> Allowance:
    held = (held_seconds(plan, study) for plan in plans for study in plan.studies.values() if study.owner == CI)
    return Allowance(CI, TIME, sum(held))


def constant(value: float) -> dict[str, Any]:
    return {"h": {"family": "constant", "value": value}}


class Token:
    """A token with an allowance that commands a plan."""

    def __init__(self) -> None:
        self.story = Story()

    @property
    def plan(self) -> SearchPlan:
        return self.story.plan

    def give(self, command: c.Command) -> tuple[e.Event, ...]:
        events = limit_to_allowance(self.plan, decide(self.plan, command), allowance(self.plan))
        self.story.happen(*events)
        return events

    def submit(self, name: str, by: str = CI, **fields: Any) -> e.StudySubmitted:
        spec = {"metric": METRIC, "tuner": {"kind": "external"}, **fields}
        submit = c.SubmitStudy(plan=OPENED, study=StudyId(name), spec=spec, at=0.0, by=by)
        return next(each for each in self.give(submit) if isinstance(each, e.StudySubmitted))

    def train(self, name: str, seconds: float) -> None:
        """Let slots work for the study for this time."""
        self.plan.studies[StudyId(name)].gpu_seconds += seconds


def test_a_study_without_a_budget_gets_the_rest() -> None:
    token = Token()
    assert token.submit("a", max_slot_seconds=30).spec["max_slot_seconds"] == 30
    assert token.submit("b").spec["max_slot_seconds"] == 70
    with pytest.raises(StateConflict, match=r"token ci has used, or reserved for its running studies, all 100 s"):
        token.submit("c")


def test_a_study_above_the_allowance_is_refused_with_the_remainder() -> None:
    token = Token()
    token.submit("a", max_slot_seconds=60)
    with pytest.raises(Refused, match="must be at most the 40 s that token ci has left of its 100 s, got 50"):
        token.submit("b", max_slot_seconds=50)


def test_an_ended_study_returns_its_unused_budget() -> None:
    token = Token()
    token.submit("a")
    token.train("a", 25)
    token.give(c.CancelStudy(study=StudyId("a"), at=1.0))
    assert token.submit("b").spec["max_slot_seconds"] == 75


def test_a_study_holds_its_budget_until_its_last_chain_has_ended() -> None:
    token = Token()
    token.submit("a", max_slot_seconds=60)
    token.give(c.AddTrial(study=StudyId("a"), hp=constant(1), steps=10))
    chain = token.story.assign((token.story.path(StudyId("a"))[0], 0, 10), study=StudyId("a"))
    token.give(c.CancelStudy(study=StudyId("a"), at=1.0))
    assert allowance(token.plan).left == 40
    token.story.happen(e.ChainEnded(chain=chain.id, outcome=ChainOutcome.STOPPED, steps=4, seconds=8.0))
    assert allowance(token.plan).left == 92


def test_a_reopened_study_gets_a_new_budget() -> None:
    token = Token()
    token.submit("a", max_slot_seconds=40)
    token.give(c.AddTrial(study=StudyId("a"), hp=constant(1), steps=10))
    token.train("a", 40)
    token.give(c.EndStudy(study=StudyId("a"), reason={"by": "max_slot_seconds", "max_slot_seconds": 40}, at=1.0))
    token.submit("b", max_slot_seconds=50)
    branch = c.BranchTrial(study=StudyId("a"), trial=0, at=5, hp=constant(2), steps=10, time=2.0)
    (reopened, _) = token.give(branch)
    assert isinstance(reopened, e.StudyReopened) and reopened.spec["max_slot_seconds"] == 50


@pytest.mark.parametrize(
    ("command", "sentence"),
    [
        (c.AddTrial(study=StudyId("other"), hp=constant(1), steps=10), "other belongs to ann: token ci has a budget"),
        (c.RequestAudit(study=StudyId("own"), at=1.0), "an audit ends at no budget: ask an operator"),
        (c.DeleteStudy(study=StudyId("over"), at=1.0), "its use must stay on record: ask an operator"),
    ],
)
def test_work_that_no_budget_pays_for_is_refused(command: c.Command, sentence: str) -> None:
    token = Token()
    token.submit("own", max_slot_seconds=10)
    token.submit("over", max_slot_seconds=10)
    token.give(c.CancelStudy(study=StudyId("over"), at=1.0))
    other = c.SubmitStudy(plan=OPENED, study=StudyId("other"), spec={"metric": METRIC}, at=0.0, by="ann")
    token.story.happen(*decide(token.plan, other))
    with pytest.raises(StateConflict, match=sentence):
        token.give(command)


STEPS = st.lists(
    st.tuples(st.sampled_from(["submit", "train", "cancel", "branch"]), st.floats(0.5, 60), st.integers(0, 3)),
    max_size=25,
)


@example([("submit", 1.15625, 1), ("submit", 1.0, 0)])  # the rest was rounded up
@given(STEPS)
def test_studies_never_hold_more_than_the_allowance(steps: list[tuple[str, float, int]]) -> None:
    """A study trains until its budget is used up, as in the scheduler."""
    token = Token()
    for number, (what, seconds, which) in enumerate(steps):
        names = list(token.plan.studies)
        name = names[which % len(names)] if names else StudyId("none")
        try:
            if what == "submit":
                study = token.submit(f"s{number}", **({"max_slot_seconds": seconds} if which else {})).study
                token.give(c.AddTrial(study=study, hp=constant(number), steps=10))
            elif names and what == "train" and not (study := token.plan.studies[name]).is_final:
                token.train(name, min(seconds, (study.spec.max_slot_seconds or math.inf) - study.gpu_seconds))
            elif names and what == "cancel":
                token.give(c.EndStudy(study=name, reason={"by": "target"}, at=1.0))
            elif names and what == "branch":
                token.give(c.BranchTrial(study=name, trial=0, at=5, hp=constant(-number - 1), steps=10, time=2.0))
        except Refused:
            pass
        assert allowance(token.plan).held <= TIME + 1e-6
    assert sum(study.gpu_seconds for study in token.plan.studies.values()) <= TIME + 1e-6
