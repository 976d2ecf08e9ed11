"""Commands on a plan give events, or are refused in a sentence."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.decide.studies import MOST_NOTES
from app.domain.schedule import path
from app.domain.search_plan import Note
from app.domain.terms import ChainId, Refused, StateConflict, StudyId, Unknown
from tests.plans import METRIC, OPENED, Story

S = StudyId("s")


@pytest.fixture
def story() -> Story:
    """A study of two trials; one node."""
    story = Story()
    story.submit(({"h": 1}, 10), ({"h": 1}, 20), name="s")
    return story


def refusal(story: Story, command: c.Command) -> str:
    with pytest.raises(Refused) as caught:
        decide(story.plan, command)
    sentence = str(caught.value)
    assert sentence and "\n" not in sentence
    return sentence


def stage(story: Story, start: int, end: int) -> e.Stage:
    return e.Stage(node=story.path(S)[0].id, start=start, end=end, study=S)


def assign(story: Story, *stages: e.Stage, chain: str = "c") -> c.AssignChain:
    return c.AssignChain(chain=ChainId(chain), slot="gpu0", stages=stages, at=0.0)


def test_the_first_study_opens_the_plan_and_the_next_must_fit() -> None:
    story, first = Story(), c.SubmitStudy(plan=OPENED, study=S, spec={"metric": METRIC}, at=3.0)
    assert story.give(first) == (OPENED, e.StudySubmitted(study=S, spec={"metric": METRIC}, at=3.0))
    assert "already" in refusal(story, first)
    second = replace(first, study=StudyId("t"))
    assert decide(story.plan, second) == (e.StudySubmitted(study=StudyId("t"), spec={"metric": METRIC}, at=3.0),)
    with pytest.raises(StateConflict, match="this plan is of another trainer, version, arguments"):
        decide(story.plan, replace(second, plan=replace(OPENED, seed=1)))


@pytest.mark.parametrize(
    "command",
    [
        c.ApplyTunerActions(study=StudyId("t"), actions=()),
        c.AddTrial(study=StudyId("t"), hp={"h": 1}, steps=1),
        c.CancelTrial(study=StudyId("t"), trial=0),
        c.CancelTrial(study=S, trial=2),
        c.CancelTrial(study=S, trial=-1),
        c.PauseStudy(study=StudyId("t")),
        c.ResumeStudy(study=StudyId("t")),
        c.CancelStudy(study=StudyId("t"), at=0.0),
        c.CloseStudy(study=StudyId("t"), at=0.0),
        c.FailStudy(study=StudyId("t"), error="", at=0.0),
        c.AddNote(study=StudyId("t"), text="why?", trial=None, at=0.0),
        c.AddNote(study=S, text="why?", trial=2, at=0.0),
    ],
)
def test_unknown_studies_and_trials_are_reported(story: Story, command: c.Command) -> None:
    assert "no" in refusal(story, command)
    with pytest.raises(Unknown):
        decide(story.plan, command)


@pytest.mark.parametrize(
    ("hp", "steps", "problem"),
    [
        ({"h": 1}, 0, "steps: must be at least 1, got 0"),
        ({}, 5, "hp: must name at least one"),
        ({"h": {"family": "cosin"}}, 5, "hp.h.family: must be one of"),
        ({"h": {"family": "linear", "init": 1}}, 5, "hp.h.slope: is missing"),
        ({"h": [1, {"i": 2}]}, 5, "hp.h[1]: must be a number"),
        ({"h": float("nan")}, 5, "hp.h: must be a finite number"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(story: Story, hp: Any, steps: int, problem: str) -> None:
    assert refusal(story, c.AddTrial(study=S, hp=hp, steps=steps)).startswith(problem)


@pytest.mark.parametrize(
    "command",
    [
        c.PauseStudy(study=S),
        c.CancelTrial(study=S, trial=0),
        c.CancelStudy(study=S, at=1.0),
        c.FailStudy(study=S, error="Boom", at=1.0),
        c.ApplyTunerActions(study=S, actions=(c.Stop(trial=1),)),
        c.ApplyTunerActions(study=S, actions=(c.Extend(trial=0, steps=30),)),
    ],
)
def test_deciding_again_changes_nothing(story: Story, command: c.Command) -> None:
    assert story.give(command)
    assert decide(story.plan, command) == ()


def test_an_ended_study_cannot_be_changed(story: Story) -> None:
    story.give(c.CancelStudy(study=S, at=1.0))
    for command in (c.PauseStudy(study=S), c.ResumeStudy(study=S), c.AddTrial(study=S, hp={"h": 1}, steps=1)):
        assert refusal(story, command) == "study s is cancelled and cannot be changed any more"
    actions = (c.Start(hp={"h": 1}, steps=1), c.Extend(trial=0, steps=99), c.Stop(trial=0))
    assert decide(story.plan, c.ApplyTunerActions(study=S, actions=actions)) == ()
    assert decide(story.plan, c.CloseStudy(study=S, at=2.0)) == ()
    assert decide(story.plan, c.FailStudy(study=S, error="", at=2.0)) == ()


def test_a_trial_that_its_tuner_may_promote_can_be_cancelled(story: Story) -> None:
    story.evaluate(story.path(S)[0].id, 10)
    assert story.trial(S).state == "completed"
    assert story.give(c.CancelTrial(study=S, trial=0)) == (e.TrialCancelled(study=S, trial=0),)
    assert story.give(c.CancelTrial(study=S, trial=0)) == ()
    assert (story.trial(S).state, story.plan.studies[S].active) == ("cancelled", 1)
    assert decide(story.plan, c.ApplyTunerActions(study=S, actions=(c.Extend(trial=0, steps=20),))) == ()


def test_a_note_is_kept_with_its_study_whatever_its_state(story: Story) -> None:
    before = story.plan.version
    story.give(c.AddNote(study=S, text=" too hot\n", trial=1, at=2.0))
    story.give(c.CancelStudy(study=S, at=3.0))
    story.give(c.AddNote(study=S, text="again", trial=None, at=4.0))
    notes = [Note(before + 1, 2.0, 1, "too hot"), Note(before + 3, 4.0, None, "again")]
    assert story.plan.studies[S].notes == notes


def test_notes_are_bounded(story: Story) -> None:
    for text, problem in (("", "must say something"), (" \n", "must say something"), ("x" * 2001, "at most 2,000")):
        assert problem in refusal(story, c.AddNote(study=S, text=text, trial=None, at=0.0))
    for number in range(MOST_NOTES):
        story.give(c.AddNote(study=S, text=f"{number}", trial=None, at=0.0))
    assert "has 500 notes, the most" in refusal(story, c.AddNote(study=S, text="more", trial=None, at=0.0))


def test_a_note_is_corrected_by_its_event_and_keeps_its_place(story: Story) -> None:
    story.give(c.AddNote(study=S, text="first", trial=None, at=1.0))
    event = story.plan.version - story.plan.studies[S].submitted_version + 1
    story.give(c.AddNote(study=S, text="second", trial=1, at=2.0))
    correct = c.CorrectNote(study=S, event=event, text=" better ", at=3.0, by="ann")
    assert story.give(correct) == (e.NoteCorrected(study=S, note=0, text="better", at=3.0, by="ann"),)
    first, second = story.plan.studies[S].notes
    assert (first.text, first.at, first.corrected_at, second.text) == ("better", 1.0, 3.0, "second")
    assert decide(story.plan, correct) == ()
    with pytest.raises(Unknown, match="event 1 of study s is not a note"):
        decide(story.plan, c.CorrectNote(study=S, event=1, text="a", at=4.0))


def test_labels_are_added_removed_and_bounded(story: Story) -> None:
    story.give(c.LabelStudy(study=S, add=("a", "b"), attributes={"n": 1, "old": True}, at=1.0))
    story.give(c.CancelStudy(study=S, at=2.0))
    wanted = c.LabelStudy(study=S, add=("c", "b"), remove=("a",), attributes={"old": None, "n": 1}, at=3.0, by="ann")
    labelled = e.StudyLabelled(study=S, tags=["b", "c"], attributes={"old": None}, at=3.0, by="ann")
    assert story.give(wanted) == (labelled,)
    assert (story.plan.studies[S].tags, story.plan.studies[S].attributes) == (["b", "c"], {"n": 1})
    assert decide(story.plan, wanted) == ()
    for wrong, problem in (
        ({"add": ("two words",)}, "is a word of at most 64"),
        ({"add": tuple(f"t{number}" for number in range(50))}, "tags: a study may have 50, got 52"),
        ({"attributes": {"x": [math.nan]}}, "attributes.x: must be JSON, whose numbers are finite, got [nan]"),
        ({"attributes": {"x": "y" * 2000}}, "attributes.x: must be at most 2,000 characters of JSON, got 2,002"),
    ):
        assert problem in refusal(story, c.LabelStudy(study=S, at=4.0, **wrong))  # type: ignore[arg-type]


def test_nothing_is_removed_from_a_study_that_is_over(story: Story) -> None:
    story.evaluate(story.path(S)[0].id, 10)
    story.give(c.CancelStudy(study=S, at=1.0))
    sentence = "trial 0 of study s is completed in a study that is cancelled and cannot be cancelled"
    assert refusal(story, c.CancelTrial(study=S, trial=0)) == sentence


def test_trial_requests_are_added_in_order_with_the_next_numbers(story: Story) -> None:
    actions = (
        c.Start(hp={"h": 2}, steps=5, reason={"bracket": 1}),
        c.Extend(trial=0, steps=10),  # the trial already has a request for that step
        c.Extend(trial=0, steps=11, reason={"rung": 2}),
        c.Start(hp={"h": 3}, steps=5),
    )
    two, three = path({"h": 2}, 5, ""), path({"h": 3}, 5, "")
    assert decide(story.plan, c.ApplyTunerActions(study=S, actions=actions)) == (
        e.TrialAdded(study=S, trial=2, hp={"h": 2}, steps=5, reason={"by": "tuner", "bracket": 1}, path=two),
        e.TrialExtended(study=S, trial=0, steps=11, reason={"rung": 2}, path={}),
        e.TrialAdded(study=S, trial=3, hp={"h": 3}, steps=5, reason={"by": "tuner"}, path=three),
    )
    story.give(c.PauseStudy(study=S))
    assert decide(story.plan, c.ApplyTunerActions(study=S, actions=actions)) == ()


def test_a_study_is_closed_when_nothing_is_active(story: Story) -> None:
    close = c.CloseStudy(study=S, at=9.0)
    assert decide(story.plan, close) == ()
    (node,) = story.path(S)
    story.evaluate(node.id, 10)
    assert decide(story.plan, close) == ()
    story.evaluate(node.id, 20)
    assert story.give(close) == (e.StudyCompleted(study=S, at=9.0),)
    assert story.plan.studies[S].finished_at == 9.0


def test_a_study_without_a_result_has_failed(story: Story) -> None:
    (node,) = story.path(S)
    chain = story.assign((node, 0, 20))
    trace = "Traceback ...\nValueError: no"
    story.happen(e.StageFailed(chain=chain.id, index=0, step=3, kind="exception", error=trace, seconds=1.0))
    (failed,) = decide(story.plan, c.CloseStudy(study=S, at=9.0))
    assert failed == e.StudyFailed(study=S, error="all 2 trials failed; trial 0: ValueError: no", at=9.0)


def test_a_chain_is_refused_where_its_steps_are_or_were_trained(story: Story) -> None:
    (node,) = story.path(S)
    assert "no checkpoint" in refusal(story, assign(story, stage(story, 5, 10)))
    running = story.give(assign(story, stage(story, 0, 10)))
    assert running
    assert decide(story.plan, assign(story, stage(story, 0, 10))) == ()
    assert "being trained already" in refusal(story, assign(story, stage(story, 0, 10), chain="d"))
    assert "being trained already" in refusal(story, assign(story, stage(story, 0, 5), chain="d"))
    story.train(story.plan.chains[ChainId("c")])
    assert "has been trained to step 10 already" in refusal(story, assign(story, stage(story, 0, 20), chain="d"))
    story.keep(node.id, 10)
    assert "has been trained to step 10 already" in refusal(story, assign(story, stage(story, 0, 20), chain="d"))
    assert story.give(assign(story, stage(story, 10, 20), chain="d"))


def test_two_slots_do_not_evaluate_the_same(story: Story) -> None:
    (node,) = story.path(S)
    story.keep(node.id, 10)
    assert story.give(assign(story, stage(story, 10, 10)))
    assert "being trained already" in refusal(story, assign(story, stage(story, 10, 10), chain="d"))
    assert story.give(assign(story, stage(story, 10, 20), chain="d"))


def test_a_chain_that_is_over_cannot_be_lost(story: Story) -> None:
    chain = story.assign((story.path(S)[0], 0, 10))
    lost = c.LoseChain(chain=chain.id, steps=4, seconds=2.0)
    assert story.give(lost) == (e.ChainEnded(chain=chain.id, outcome="lost", steps=4, seconds=2.0),)
    assert story.plan.studies[S].executed == 4
    assert decide(story.plan, lost) == ()


def test_a_tuner_sets_a_trials_priority_and_reason(story: Story) -> None:
    """An equal priority and reason give no event; another reason for the same priority does."""

    def prioritize(priority: float, trial: int = 0, **reason: Any) -> tuple[e.Event, ...]:
        action = c.Prioritize(trial=trial, priority=priority, reason=reason)
        return story.give(c.ApplyTunerActions(study=S, actions=(action,)))

    assert prioritize(0.0, p=0.1) == (e.TrialPrioritized(study=S, trial=0, priority=0.0, reason={"p": 0.1}),)
    assert prioritize(0.0, p=0.1) == ()
    assert prioritize(0.7, p=0.7)[0].priority == 0.7
    trial = story.plan.studies[S].trials[0]
    assert (trial.priority, trial.priority_reason) == (0.7, {"p": 0.7})
    last = story.plan.studies[S].history[-1]
    assert (last.kind, last.trial, last.priority, last.reason) == ("prioritize", 0, 0.7, {"p": 0.7})
    story.give(c.CancelTrial(study=S, trial=0))
    assert prioritize(0.9) == ()
    unsaid = c.ApplyTunerActions(study=S, actions=(c.Prioritize(trial=1, priority=float("nan")),))
    assert "priority: must be a finite number" in refusal(story, unsaid)
