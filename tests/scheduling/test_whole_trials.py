"""Which trials are trained again as a whole, from step 0 and without a break, and when a study waits for that."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from parting import Parting
from plans import Story, steps
from stacks import Json

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import ChainId, Verdict, VerificationKind
from app.domain.trainer_check import MAX_FAILED_VERIFICATIONS
from app.events import SlotRecord
from app.exactness import judge
from app.exactness.verification import Verification, next_comparison
from app.exactness.verification_choice import (
    SHARE_OF_SAVINGS,
    can_wait,
    due_trials,
    is_due,
    is_still_needed,
    next_audited_trial,
    next_due_trial,
    next_for_idle_slot,
    next_urgent,
)

HERE: Json = {"owner": "", "device": "cpu", "host": "", "pid": 1, "seen_at": 0.0}
SLOTS = (SlotRecord(name="gpu0", **HERE, trainers={"digits": "1"}),)
STRAY = {"self.sched": "did not come back with the state"}


def compared_story(more: int = 0, found: Callable[[Verification], Json] = lambda proof: {}) -> Parting:
    """A study whose trainer was tried and whose resumptions were compared. found: what each comparison shows."""
    story = Parting(is_watched=True, more=more)
    how: Json = {"chain": ChainId("check"), "proof": VerificationKind.CHECK, "device": "cpu", "node": story.trunk}
    story.happen(e.ExactnessTested(**how, begin=0, step=2))
    while (proof := next_comparison(story.plan, "cpu")) is not None:
        story.make(proof, **found(proof))
    return story


def saving() -> Parting:
    """Eight more trials part at step 13, so that sharing has saved more than five times what one trial takes."""
    return compared_story(more=8)


def is_whole(story: Story, proof: Verification | None) -> bool:
    """Whether it trains a trial from step 0 to its end, and compares there."""
    assert proof is not None and proof.kind == VerificationKind.WHOLE and proof.resume is None
    stages, trial = proof.stages, proof.trial
    assert stages[0].start == 0 and all(one.end == then.start for one, then in pairwise(stages))
    last = proof.order.comparisons[-1]
    return (last.node, last.step) == (trial.path[-1], trial.steps) == (stages[-1].node, stages[-1].end)


# ------------------------------------------------------------------------------------------------ at a study's end


@pytest.mark.parametrize("slots", [1, 4])
def test_a_study_ends_with_a_whole_trial_where_that_costs_little_beside_what_sharing_saved(slots: int) -> None:
    story = saving()
    assert story.it.requested - story.it.unique > 16 / SHARE_OF_SAVINGS
    whole = next_due_trial(story.plan, "cpu", slots)
    assert whole is not None and is_whole(story, whole) and whole.trial.study == story.study
    assert is_due(story.plan, story.it, SLOTS)
    story.make(whole)
    assert next_due_trial(story.plan, "cpu", slots) is None and not is_due(story.plan, story.it, SLOTS)


def test_a_whole_trial_verifies_only_its_study() -> None:
    story = saving()
    other = story.submit(({"lr": 0.1}, 19), ({"lr": steps(0.1, 0.2, milestones=[11])}, 19), name="other")
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None and whole.trial.study == story.study
    story.make(whole)
    assert story.judgement().verdict == Verdict.VERIFIED
    assert judge(story.plan, story.plan.studies[other]).verdict == Verdict.CHECKED


def test_none_is_due_where_sharing_saved_less() -> None:
    story = Parting(is_watched=True)
    assert 0 < story.it.requested - story.it.unique < 20 / SHARE_OF_SAVINGS
    assert next_due_trial(story.plan, "cpu") is None


def test_none_is_due_where_nothing_is_shared() -> None:
    story = Story()
    study = story.submit(*(({"lr": rate / 100}, 4) for rate in range(1, 20)))
    for number in range(19):
        story.finish(story.assign((story.path(study, number)[0], 0, 4)))
    assert next_due_trial(story.plan, "cpu") is None and next_for_idle_slot(story.plan, "cpu") is None


def test_a_whole_trial_is_due_near_the_end_of_its_study() -> None:
    """With other slots, before the last of the rest, so that all end together; alone, when nothing is left to train."""
    story = saving()
    for number in range(2):
        story.give(c.AddTrial(study=story.study, hp={"lr": 0.9 + number / 100}, steps=16))
        assert [next_due_trial(story.plan, "cpu", slots) is not None for slots in (1, 2)] == [False, True]
    story.give(c.AddTrial(study=story.study, hp={"lr": 0.95}, steps=16))
    assert [next_due_trial(story.plan, "cpu", slots) is not None for slots in (1, 2, 3)] == [False, False, True]


def test_none_is_due_while_the_tuner_will_add_trials() -> None:
    story = saving()
    story.give(c.AddTrial(study=story.study, hp={"lr": 0.9}, steps=16))
    tuner = {"kind": "random", "num_trials": 14, "max_steps": 16}
    story.it.spec = replace(story.it.spec, tuner=tuner)
    assert len(story.it.trials) == 13 and next_due_trial(story.plan, "cpu", 2) is None
    story.give(c.AddTrial(study=story.study, hp={"lr": 0.91}, steps=16))
    assert next_due_trial(story.plan, "cpu", 2) is not None


def test_resumptions_are_compared_before_a_whole_trial() -> None:
    story = Parting(is_watched=True, more=8)
    how: Json = {"chain": ChainId("check"), "proof": VerificationKind.CHECK, "device": "cpu", "node": story.trunk}
    story.happen(e.ExactnessTested(**how, begin=0, step=2))
    kinds = list[str]()
    while (proof := next_urgent(story.frontier, "cpu")) is not None:
        kinds.append(proof.kind)
        story.make(proof)
    assert kinds == ["handover", "handover", "handover", "whole"]


def test_the_trial_with_the_most_resumptions_is_taken() -> None:
    story = saving()
    story.give(c.AddTrial(study=story.study, hp={"lr": steps(0.1, 0.5, 0.7, milestones=[13, 16])}, steps=19))
    deep = story.trial(story.study, 12)
    story.train_through((deep.path[-1], 16, 19))
    story.evaluate(deep.path[-1], 19)
    assert [trial.number for trial in due_trials(story.plan)] == [12]


def test_after_three_accidents_none_is_begun_again_and_no_study_waits() -> None:
    story = saving()
    for number in range(MAX_FAILED_VERIFICATIONS):
        whole = next_due_trial(story.plan, "cpu")
        assert whole is not None
        chain = ChainId(f"dies-{number}")
        story.happen(e.ChainAssigned(chain=chain, slot="p", stages=whole.stages, at=0.0, proof=whole.kind))
        assert is_due(story.plan, story.it, SLOTS)
        story.happen(e.ChainEnded(chain=chain, outcome="lost"))
    assert next_due_trial(story.plan, "cpu") is None and not is_due(story.plan, story.it, SLOTS)


def test_an_inconclusive_whole_trial_is_not_repeated_on_the_device() -> None:
    story = saving()
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None
    story.make(whole, unproven="the trainer used cumsum")
    then = next_due_trial(story.plan, "cpu")
    assert then is None or then.trial != whole.trial
    assert not is_due(story.plan, story.it, SLOTS) or then is not None


def test_once_something_differs_no_whole_trial_is_due() -> None:
    story = saving()
    story.compare(2, difference="1 of 2 leaves differ")
    assert next_due_trial(story.plan, "cpu") is None and next_for_idle_slot(story.plan, "cpu") is None


# ------------------------------------------------------------------------------------------------ suspicions


def stray_at(step: int) -> Callable[[Verification], Json]:
    """What the trainer holds besides differs behind the resumption at that step, and nowhere else."""

    def report(proof: Verification) -> Json:
        begin = proof.resume.step if proof.resume else 0
        return {"stray": STRAY} if max(proof.order.comparisons[0].since, begin) == step else {}

    return report


def story_with_stray() -> Parting:
    return compared_story(found=stray_at(11))


def test_a_suspicion_requests_a_whole_trial_at_any_cost() -> None:
    story = story_with_stray()
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None and is_whole(story, whole) and whole.trial.number == 2
    assert is_due(story.plan, story.it, SLOTS)
    story.make(whole)
    assert next_due_trial(story.plan, "cpu") is None and not is_due(story.plan, story.it, SLOTS)
    assert not any(story.marks().values()) and story.judgement().verdict == Verdict.VERIFIED


def test_one_whole_trial_settles_the_same_suspicion_at_all_steps() -> None:
    story = compared_story(found=lambda proof: {"stray": STRAY})
    made = 0
    while (whole := next_due_trial(story.plan, "cpu")) is not None:
        story.make(whole)
        made += 1
    assert made == 1 and not any(story.marks().values())


def test_the_trial_with_the_most_steps_behind_a_suspicion_is_taken_once_it_is_over() -> None:
    story = compared_story(found=lambda proof: {"stray": STRAY})
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None and whole.trial.number == 1, "it resumed at 8, the others later"
    story.give(c.AddTrial(study=story.study, hp={"lr": steps(0.1, 0.9, milestones=[8])}, steps=24))
    longer = story.trial(story.study, 4)
    story.assign((story.plan.nodes[longer.path[-1]], 8, 24))
    assert next_due_trial(story.plan, "cpu") is None, "that one settles more, and is still trained"


def test_a_suspicion_that_shows_makes_the_trainer_inexact() -> None:
    story = story_with_stray()
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None
    story.make(whole, difference="1 of 2 leaves differ")
    assert story.judgement().verdict == Verdict.INEXACT


def test_where_the_whole_trial_always_ends_by_an_accident_the_mark_remains() -> None:
    story = story_with_stray()
    for number in range(MAX_FAILED_VERIFICATIONS):
        whole = next_due_trial(story.plan, "cpu")
        assert whole is not None
        chain = ChainId(f"dies-{number}")
        story.happen(e.ChainAssigned(chain=chain, slot="p", stages=whole.stages, at=0.0, proof=whole.kind))
        story.happen(e.ChainEnded(chain=chain, outcome="lost"))
    assert not is_due(story.plan, story.it, SLOTS)
    assert "self.sched did not come back with the state of step 11" in story.marks()[2]


def test_leaves_that_evaluations_change_are_left_out_of_whole_trials() -> None:
    """A trial alone is not evaluated where another study had it evaluated."""
    story = saving()
    changed = {"trainer.calls": "is changed by evaluate()"}
    how: Json = {"chain": ChainId("x"), "proof": VerificationKind.EVALUATION, "device": "cpu", "node": story.leaf(1)}
    story.happen(e.ExactnessTested(**how, begin=15, step=15, stray=changed))
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None and whole.order.ignored == ("trainer.calls",)
    hand_over = Parting(is_watched=True)
    proof = next_comparison(hand_over.plan, "cpu")
    assert proof is not None and proof.order.ignored == ()


# ------------------------------------------------------------------------------------------------ idle slots, audits


def begin_chain(story: Parting, proof: Verification) -> Any:
    chain = ChainId("now")
    story.happen(e.ChainAssigned(chain=chain, slot="p", stages=proof.stages, at=0.0, proof=proof.kind))
    return story.plan.chains[chain]


def test_only_unneeded_whole_trials_make_room() -> None:
    story = saving()
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None
    chain = begin_chain(story, whole)
    assert not can_wait(story.plan, chain) and is_still_needed(story.plan, chain)
    idle = compared_story()
    spare = next_for_idle_slot(idle.plan, "cpu")
    assert spare is not None and spare.kind == VerificationKind.WHOLE
    assert can_wait(idle.plan, begin_chain(idle, spare))


def test_a_whole_trial_under_way_is_not_given_up_for_another_that_settles_as_much() -> None:
    """Once a trial with a smaller number that ended later took its place: 36 of 40 steps were trained for nothing."""
    story = Parting(longer=-4, more=2, is_watched=True)
    story.compare(5, begin=13, step=16, stray=STRAY)
    assert [trial.number for trial in due_trials(story.plan)] == [3], "3, 4 and 5 part at 13, and have one length"
    stages = (
        e.Stage(node=story.trunk, start=0, end=13, study=story.study),
        e.Stage(node=story.leaf(4), start=13, end=16, study=story.study),
    )
    story.happen(e.ChainAssigned(chain=ChainId("now"), slot="p", stages=stages, at=0.0, proof=VerificationKind.WHOLE))
    assert next_due_trial(story.plan, "cpu") is None
    assert not can_wait(story.plan, story.plan.chains[ChainId("now")])


def test_a_whole_trial_at_the_end_is_not_given_up_for_one_that_resumed_more_often() -> None:
    story = saving()
    whole = next_due_trial(story.plan, "cpu")
    assert whole is not None
    chain = begin_chain(story, whole)
    twice = steps(0.1, 0.3, 0.7, milestones=[8, 13])
    story.give(c.AddTrial(study=story.study, hp={"lr": twice}, steps=20))
    leaf = story.leaf(len(story.it.trials) - 1)
    story.keep(story.leaf(1), 13)
    story.train_through((leaf, 13, 20))
    assert next_due_trial(story.plan, "cpu", 2) is None and not can_wait(story.plan, chain)


def test_an_idle_slot_verifies_one_trial_of_a_study() -> None:
    story = compared_story()
    spare = next_for_idle_slot(story.plan, "cpu")
    assert spare is not None and is_whole(story, spare)
    story.make(spare)
    assert story.judgement().verdict == Verdict.VERIFIED
    then = next_for_idle_slot(story.plan, "cpu")
    assert then is None or then.kind != VerificationKind.WHOLE


def test_an_audit_trains_each_trial_that_rests_on_sharing_and_then_ends() -> None:
    story = Parting(is_watched=True)
    story.it.is_audited = True
    made = set[int]()
    while (proof := next_audited_trial(story.plan, "cpu")) is not None:
        assert is_whole(story, proof) and proof.trial.number not in made
        made.add(proof.trial.number)
        story.make(proof)
    assert made == {0, 1, 2, 3}
