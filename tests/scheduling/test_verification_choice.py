"""Which steps are trained again: each distinct resumption is compared, by a few steps around it, within a budget."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from parting import Parting
from plans import METRIC, Story, steps

from app.domain import events as e
from app.domain.evolve import evolve
from app.domain.terms import ChainId, Verdict, VerificationKind
from app.events import SlotRecord
from app.exactness.verification import (
    MAX_FAILED_VERIFICATIONS,
    VERIFICATION_SHARE,
    Verification,
    keep_at,
    max_waiting_steps,
    next_comparison,
    steps_after_resumption,
    verify_witness,
)
from app.exactness.verification_choice import is_due, next_for_idle_slot
from app.scheduling.frontier import Frontier, Span
from app.simulation.what_if import RecordedResults

HERE: dict[str, Any] = {"owner": "", "device": "cpu", "host": "", "pid": 1, "seen_at": 0.0}
SLOTS = (SlotRecord(name="gpu0", **HERE, trainers={"digits": "1"}),)


def resumption(proof: Verification) -> int:
    """The step that it compares: where it begins, or where the record does, whichever is later."""
    return max(proof.order.comparisons[0].since, proof.resume.step if proof.resume else 0)


def cost(proof: Verification) -> int:
    return sum(stage.end - stage.start for stage in proof.stages)


def make_comparisons(story: Parting, most: int = 50) -> list[Verification]:
    """All comparisons that are begun, one after the other, each of which finds no difference."""
    found = list[Verification]()
    while (proof := next_comparison(story.plan, "cpu")) is not None:
        found.append(proof)
        story.make(proof)
        assert len(found) < most, "it does not come to an end"
    return found


# ------------------------------------------------------------------------------------------------ which


def test_each_step_at_which_a_state_was_resumed_is_compared_once() -> None:
    """The comparison at step 8 lifted the mark of trials that had parted at 11 and 13."""
    story = Parting(is_watched=True)
    assert sorted(map(resumption, make_comparisons(story))) == [8, 11, 13]
    assert story.plan.uncompared_resumptions == [] and story.judgement().verdict == Verdict.CHECKED


def test_equal_resumptions_are_compared_once() -> None:
    story = Parting(is_watched=True)
    more = story.submit(*(({"lr": steps(0.1, 0.5 + rate, milestones=[11])}, 20) for rate in range(5)))
    for number in range(5):
        story.train_through((story.trial(more, number).path[-1], 11, 20))
    assert sorted(map(resumption, make_comparisons(story))) == [8, 11, 13]


def test_each_kind_of_values_is_compared() -> None:
    story = Story()
    kinds = ("adam", "lion", "sgd")
    trials = [({"lr": 0.1, "opt": steps("sgd", each, milestones=[8])}, 12) for each in kinds]
    study = story.submit(*trials)
    story.finish(story.assign((story.path(study)[0], 0, 8)))
    for number in range(2):
        story.finish(story.assign((story.path(study, number)[-1], 8, 12)))
    assert [each.step for each in story.plan.uncompared_resumptions] == [8, 8]


def test_one_comparison_is_made_at_a_time() -> None:
    story = Parting(is_watched=True)
    proof = next_comparison(story.plan, "cpu")
    assert proof is not None
    assigned = e.ChainAssigned(chain=ChainId("now"), slot="prover", stages=proof.stages, at=0.0, proof=proof.kind)
    story.happen(assigned)
    assert next_comparison(story.plan, "cpu") is None
    story.happen(e.ChainEnded(chain=ChainId("now"), outcome="stopped"))
    assert next_comparison(story.plan, "cpu") == proof, "it was stopped before it told anything"


def test_a_verification_compares_state_and_metrics() -> None:
    story = Parting(is_watched=True)
    story.evaluate(story.trunk, 11, 0.3)
    first = next_comparison(story.plan, "cpu")
    assert first is not None
    [at] = first.order.comparisons
    assert (at.step, at.metrics, bool(at.key)) == (11, {METRIC: 0.3}, True)
    assert first.stages[-1].evaluate == (11,)


def test_a_verification_begins_at_a_state_before_its_comparison() -> None:
    """Nodes before hold what belongs to other trials, beyond the step at which the way leaves them."""
    story = Story()
    study = story.submit(({"lr": steps(1.0, 2.0, 3.0, milestones=[4, 9])}, 12), ({"lr": 1.0}, 12))
    trunk, branch, leaf = story.path(study)
    story.finish(story.assign((trunk, 0, 4), (trunk, 4, 9), (trunk, 9, 12)))
    story.finish(story.assign((branch, 4, 9), (leaf, 9, 12)))
    proofs = [each for each in map(resumed_in(story), (4, 9)) if each is not None]
    assert [(proof.resume.node, proof.resume.step) for proof in proofs if proof.resume] == [
        (trunk.id, 4),
        (branch.id, 9),
    ]
    story.drop(branch.id, 9)
    then = resumed_in(story)(9)
    assert then is not None and then.resume is not None
    assert then.stages[0].node == then.resume.node == trunk.id, "of the branch, that state is kept no longer"


def resumed_in(story: Story) -> Any:
    """The proof that compares the resumption at a step, if there is one that costs no more than a few steps."""

    def find_verification(step: int) -> Verification | None:
        witnesses = [each for each in story.plan.witnesses.get(step, ()) if each.begin == step]
        tried = (verify_witness(story.plan, VerificationKind.HANDOVER, each, "cpu") for each in witnesses)
        return next(filter(None, tried), None)

    return find_verification


def test_compared_and_incomparable_resumptions_are_not_repeated_on_a_device() -> None:
    story = Parting(is_watched=True)
    first = next_comparison(story.plan, "cpu")
    assert first is not None
    story.make(first, unproven="the trainer used cumsum")
    then = next_comparison(story.plan, "cpu")
    assert then is not None and then != first
    assert next_comparison(story.plan, "T4") == first, "on another kind of device it may be"


@pytest.mark.parametrize("packing", [None, 2])
def test_packs_are_not_compared(packing: int | None) -> None:
    story = Parting(is_watched=True)
    story.plan.packing = packing
    assert next_comparison(story.plan, "cpu") is None
    assert keep_at(story.frontier, [Span(story.trunk, 0, 20, story.study)]) == ()


# ------------------------------------------------------------------------------------------------ the budget


def test_each_resumption_may_cost_two_steps_behind_it_however_small_the_study_is() -> None:
    story = Parting(is_watched=True)
    assert VERIFICATION_SHARE * story.it.unique < 1 and steps_after_resumption(story.plan) == 2
    proofs = make_comparisons(story)
    assert len(proofs) == 3 and all(2 <= cost(proof) <= 4 for proof in proofs)


def test_more_steps_are_compared_the_more_the_study_has() -> None:
    story = Parting(is_watched=True, longer=2_000)
    assert steps_after_resumption(story.plan) == int(VERIFICATION_SHARE * story.it.unique) // 3 > 50
    proofs = make_comparisons(story)
    assert sorted(map(resumption, proofs)) == [8, 11, 13]
    compared = max(each.order.comparisons[-1].step - resumption(each) for each in proofs)
    assert compared == steps_after_resumption(story.plan)
    assert story.it.proof_steps <= max(VERIFICATION_SHARE * story.it.unique, 8 * 3)
    assert max_waiting_steps(story.plan) == int(VERIFICATION_SHARE * story.it.unique)


def test_unaffordable_comparisons_are_left_out_and_named() -> None:
    """No state is kept soon behind these resumptions: each would cost more than a tenth of the study."""
    story = Parting()
    for name, at in ((story.trunk, 8), (story.trunk, 11), (story.trunk, 13)):
        story.drop(name, at)
    assert make_comparisons(story) == []
    assert story.judgement().verdict == Verdict.UNCHECKED and story.judgement().unchecked == (8, 11, 13)
    assert [number for number, mark in story.marks().items() if mark] == [1, 2, 3]
    assert "step 11" in story.marks()[2]


# ------------------------------------------------------------------------------------------------ states that are kept


def test_states_are_kept_behind_each_step_at_which_trials_part_or_a_chain_begins() -> None:
    story = Story()
    frontier = Frontier(story.plan)
    study = story.submit(({"lr": 0.1}, 40), ({"lr": steps(0.1, 0.3, milestones=[8])}, 40))
    trunk, leaf = story.path(study)[0].id, story.path(study, 1)[-1].id
    assert keep_at(frontier, [Span(trunk, 0, 8, study), Span(trunk, 8, 20, study), Span(trunk, 20, 40, study)]) == (
        10,
        22,
    )
    assert keep_at(frontier, [Span(leaf, 8, 40, study)]) == (10,)
    assert keep_at(frontier, [Span(trunk, 0, 40, study)]) == (), "nothing resumed, and nothing will"
    assert keep_at(frontier, [Span(leaf, 8, 9, study)]) == (9,), "no further than it goes"


def test_a_state_is_kept_at_an_evaluation_that_comes_soon() -> None:
    story = Story()
    frontier = Frontier(story.plan)
    study = story.submit(({"lr": 0.1}, 40), ({"lr": steps(0.1, 0.3, milestones=[8])}, 40), eval_every=3)
    leaf = story.path(study, 1)[-1].id
    assert keep_at(frontier, [Span(leaf, 8, 40, study)]) == (12,)


def test_a_compared_resumption_keeps_no_state() -> None:
    story = Parting(is_watched=True)
    make_comparisons(story)
    assert keep_at(story.frontier, [Span(story.leaf(2), 11, 20, story.study)]) == ()
    with_text = story.submit(({"lr": 0.1, "opt": "adam"}, 20))
    other = story.trial(with_text).path[-1]
    assert keep_at(story.frontier, [Span(other, 0, 8, with_text), Span(other, 8, 20, with_text)]) == (10,)


# ------------------------------------------------------------------------------------------------ waiting for them


def check_trainer(story: Parting) -> Parting:
    """The trainer was tried before anything was trained."""
    how: Any = {"chain": ChainId("check"), "proof": VerificationKind.CHECK, "device": "cpu", "node": story.trunk}
    story.happen(e.ExactnessTested(**how, begin=0, step=2))
    return story


def test_a_study_waits_for_its_comparisons_and_no_longer() -> None:
    story = check_trainer(Parting(is_watched=True))
    waited = list[bool]()
    while (proof := next_comparison(story.plan, "cpu")) is not None:
        waited.append(is_due(story.plan, story.it, SLOTS))
        story.make(proof)
    assert waited == [True, True, True] and not is_due(story.plan, story.it, SLOTS)


def test_a_verification_waits_for_a_running_one() -> None:
    story = check_trainer(Parting(is_watched=True))
    proof = next_comparison(story.plan, "cpu")
    assert proof is not None
    story.happen(e.ChainAssigned(chain=ChainId("now"), slot="p", stages=proof.stages, at=0.0, proof=proof.kind))
    assert is_due(story.plan, story.it, SLOTS)


def test_a_verification_waits_for_states_that_are_being_saved() -> None:
    story = check_trainer(Parting())
    for at in (8, 11, 13):
        story.drop(story.trunk, at)
    assert not is_due(story.plan, story.it, SLOTS)
    story.submit(({"lr": 0.1}, 24), name="longer")
    story.assign((story.plan.nodes[story.trunk], 20, 24))
    assert is_due(story.plan, story.it, SLOTS)


def test_a_study_waits_for_no_unaffordable_verification() -> None:
    story = check_trainer(Parting())
    for at in (8, 11, 13):
        story.drop(story.trunk, at)
    assert story.plan.uncompared_resumptions and not is_due(story.plan, story.it, SLOTS)


def test_after_three_accidents_nothing_is_begun_again_and_no_study_waits() -> None:
    story = check_trainer(Parting(is_watched=True))
    for number in range(MAX_FAILED_VERIFICATIONS):
        proof = next_comparison(story.plan, "cpu")
        assert proof is not None and is_due(story.plan, story.it, SLOTS)
        chain = ChainId(f"dies-{number}")
        story.happen(e.ChainAssigned(chain=chain, slot="p", stages=proof.stages, at=0.0, proof=proof.kind))
        story.happen(e.ChainEnded(chain=chain, outcome="lost"))
    assert next_comparison(story.plan, "cpu") is None
    assert not is_due(story.plan, story.it, SLOTS)
    assert story.judgement().verdict == Verdict.UNCHECKED and story.marks()[1]


def test_once_something_differs_nothing_more_is_waited_for() -> None:
    story = check_trainer(Parting(is_watched=True))
    proof = next_comparison(story.plan, "cpu")
    assert proof is not None
    story.make(proof, difference="1 of 2 leaves differ")
    assert not is_due(story.plan, story.it, SLOTS)
    assert next_for_idle_slot(story.plan, "cpu") is None


def test_a_verification_waits_for_no_missing_device() -> None:
    story = check_trainer(Parting(is_watched=True))
    assert not is_due(story.plan, story.it, ())
    assert not is_due(story.plan, story.it, tuple(replace(each, device="cuda:0", kind="T4") for each in SLOTS))


# ------------------------------------------------------------------------------------------------ results on the way


def test_a_result_that_was_not_measured_is_the_last_one_on_the_way() -> None:
    story = Story()
    study = story.submit(({"lr": steps(1.0, 2.0, milestones=[4])}, 8), ({"lr": 1.0}, 8))
    trunk, branch = story.path(study)
    story.evaluate(trunk.id, 3, 0.3)
    story.evaluate(trunk.id, 7, 0.7)
    recorded = RecordedResults(story.plan, story.plan.studies[study])
    for event in story.events:
        evolve(recorded.world, event)
    assert recorded(branch, 8) == {METRIC: 0.3}
    assert recorded(trunk, 8) == {METRIC: 0.7}
