"""Hand-overs are compared, and others have a mark: the scheduler's and the plan's side, with toy workers."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest
from assignments import FENCE
from hypothesis import example, given
from hypothesis import strategies as st
from scenes import rates
from stacks import Json
from toy_worker import ToyWorkers, proving

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Study, Trial
from app.domain.terms import ChainId, StateConflict, StudyId, StudyState, Verdict, VerificationKind
from app.domain.trainer_check import check_error_on, is_checked
from app.exactness import Judgement, judge, trial_marks, verdict_text
from app.search.replay import replay
from app.simulation.what_if import what_if
from app.workers.scheduler.tick import Scheduler
from tests.plans import max_examples


def decay(at: int, gamma: float = 0.5) -> Json:
    return {"family": "multistep", "init": 1.0, "milestones": [at], "gamma": gamma}


def ladder(*ends: int, steps: int = 12) -> Json:
    """Trials that begin alike and decay one after the other."""
    return rates(*(decay(end) for end in ends), steps=steps)


ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
SPACE: Json = {"space": {"lr": {"uniform": [0.1, 1.0]}}}


def ran(tuner: Json, slots: int = 1, fields: Json | None = None, **how: Any) -> ToyWorkers:
    """Toy workers, and a study that they have trained to its end. fields: others of its file."""
    workers = proving(slots, **how)
    workers.scene.submit(tuner, **(fields or {}))
    workers.run()
    return workers


def kinds(workers: ToyWorkers) -> list[str]:
    return [event.proof for event in workers.scene.events(e.ChainAssigned) if event.proof]


def mark(workers: ToyWorkers, trial: Trial) -> str:
    plan = workers.scene.plan()
    return trial_marks(plan, plan.studies[trial.study])(trial)


def judgement(workers: ToyWorkers, name: str = "study") -> Judgement:
    plan = workers.scene.plan()
    return judge(plan, plan.studies[StudyId(name)])


def value(workers: ToyWorkers, trial: Trial) -> float | None:
    return (workers.scene.plan().metrics(trial, trial.steps) or {}).get("loss")


def assert_never_wrong_in_silence(workers: ToyWorkers, study: Study) -> None:
    for trial in study.trials:
        if workers.scene.plan().studies[study.id].isolated or not mark(workers, trial):
            assert value(workers, trial) == workers.alone(trial.hp, trial.steps)


def test_a_trainer_is_tried_once_before_anything_is_trained() -> None:
    """The other slots of the device wait for that."""
    workers = proving(slots=3)
    workers.scene.submit(rates(1.0, 2.0, 3.0))
    workers.scene.scheduler.tick()
    assert kinds(workers) == ["check"] and len(workers.scene.messages) == 1
    workers.work()
    workers.scene.scheduler.tick()
    assert kinds(workers) == ["check"] and len(workers.scene.messages) == 3


def interrupted_check(slots: int, tuner: Json, **how: Any) -> tuple[ToyWorkers, str]:
    """The trainer has taken its first steps, and their end is compared now; the check's chain."""
    workers = proving(slots=slots, **how)
    workers.scene.submit(tuner)
    workers.scene.scheduler.tick()
    [(chain, _, _)] = workers.scene.messages
    workers.scene.claim()
    [stage] = workers.scene.plan().chains[ChainId(chain)].stages
    place = {"proof": VerificationKind.CHECK, "device": "cpu", "node": stage.node, "begin": 0, "step": stage.end}
    told = e.ExactnessTested(chain=ChainId(chain), **place, goes_on=True)  # type: ignore[arg-type]
    workers.scene.record(chain, [told], lambda rows: rows.chains.report(chain, FENCE))
    return workers, chain


def test_other_slots_begin_when_the_trainer_has_trained_and_the_study_ends_with_the_check() -> None:
    workers, chain = interrupted_check(3, rates(1.0, 2.0))
    workers.run()
    study = workers.scene.study()
    assert study.executed == 8 and kinds(workers) == ["check"]
    assert study.state == StudyState.RUNNING, "the check may still show that the trainer is not exact"
    workers.finish(chain)
    workers.run()
    assert workers.scene.study().state == StudyState.COMPLETED


def test_a_check_is_made_again_whose_worker_was_lost_after_others_began() -> None:
    workers, _ = interrupted_check(2, ladder(4, 8))
    workers.scene.scheduler.tick()
    workers.work()
    workers.scene.expire()
    workers.scene.touch("gpu0")
    workers.scene.touch("gpu1")
    workers.run()
    assert kinds(workers)[:2] == ["check", "check"]
    assert workers.scene.study().state == StudyState.COMPLETED


def test_a_failed_check_strikes_the_steps_trained_beside_it() -> None:
    workers, chain = interrupted_check(2, ladder(4, 8), forgets=True, late=5)
    workers.run()
    assert workers.scene.study().executed > 0
    workers.finish(chain, difference="1 of 2 leaves differ")
    workers.run()
    study = workers.scene.study()
    assert (study.state, bool(study.isolated)) == (StudyState.COMPLETED, True)
    assert_never_wrong_in_silence(workers, study)


def test_a_failing_check_ends_the_study_untrained() -> None:
    workers = ran(ladder(4, 8), slots=2, check_error="KeyError: 'bs'")
    study = workers.scene.study()
    assert study.state == StudyState.FAILED and study.failed_check == 0
    assert study.error == "The trainer failed its check on slot gpu0: KeyError: 'bs'"
    assert study.executed == 0 and kinds(workers) == ["check"]


def test_a_check_that_fails_with_one_trials_values_fails_only_it() -> None:
    workers = ran(rates(0.0, 1.0), check_error="ZeroDivisionError", check_fails_at=0.0)
    study = workers.scene.study()
    assert kinds(workers)[:2] == ["check", "check"] and study.state == StudyState.COMPLETED


def test_a_check_that_fails_with_other_values_too_fails_the_study() -> None:
    workers = ran(rates(1.0, 2.0, 3.0), check_error="ZeroDivisionError")
    assert kinds(workers) == ["check", "check"] and workers.scene.study().state == StudyState.FAILED


def test_the_next_study_is_tried_again() -> None:
    workers = ran(ladder(4), check_error="KeyError: 'bs'")
    workers.check_error = ""
    workers.scene.submit(ladder(4), name="again")
    workers.run()
    assert workers.scene.study("again").state == StudyState.COMPLETED


ONE_RATE = rates(1.0)


def test_a_study_with_other_values_than_a_failed_one_does_not_wait_for_those() -> None:
    """It waited for ever: the values of the study before had not been tried since, and no study requested them."""
    workers = ran(ONE_RATE, fields={"metric": "acc"}, check_error="KeyError: 'dropout'")
    workers.scene.submit({"kind": "trials", "trials": [{"hp": {"droput": 1.0, "lr": 2.0}, "steps": 4}]}, name="second")
    workers.run()
    first, second = workers.scene.study(), workers.scene.study("second")
    assert (first.state, second.state) == (StudyState.FAILED, StudyState.FAILED)
    assert "KeyError: 'dropout'" in str(second.error)


def test_a_missing_metric_fails_only_the_studies_that_need_it() -> None:
    workers = proving()
    workers.scene.submit(ONE_RATE, metric="acc")
    workers.scene.submit(ONE_RATE, name="second")
    workers.run()
    first, second = workers.scene.study(), workers.scene.study("second")
    assert (first.state, second.state) == (StudyState.FAILED, StudyState.COMPLETED)
    assert "acc" in str(first.error)


def test_values_that_fail_are_of_the_study_that_asks_for_them() -> None:
    workers = proving(check_error="ZeroDivisionError", check_fails_at=0.0)
    workers.scene.submit(rates(0.0))
    workers.scene.submit(ONE_RATE, name="second")
    workers.run()
    first, second = workers.scene.study(), workers.scene.study("second")
    assert (first.state, second.state) == (StudyState.FAILED, StudyState.COMPLETED)


def test_a_paused_study_holds_up_no_other() -> None:
    workers = proving(check_error="ZeroDivisionError", check_fails_at=0.0)
    workers.scene.submit(rates(0.0))
    workers.scene.submit(ONE_RATE, name="second")
    workers.scene.give(c.PauseStudy(study=StudyId("second")))
    workers.run()
    assert workers.scene.study().state == StudyState.FAILED


def _tried_on(workers: ToyWorkers) -> list[str]:
    return [event.slot for event in workers.scene.events(e.ChainAssigned) if event.proof == VerificationKind.CHECK]


def test_a_slot_that_cannot_train_is_given_nothing_and_fails_no_study_that_others_train() -> None:
    """A machine with a broken environment joined, and all studies of the trainer failed."""
    workers = proving()
    workers.scene.submit(rates(1.0, 2.0, 3.0, 4.0))
    for _ in range(2):  # the check, and a trial
        workers.scene.scheduler.tick()
        workers.work()
    workers.scene.register("gpu1", kind="T4")
    workers.breaks_on = "T4"
    for _ in range(3):
        workers.scene.scheduler.tick()
        while workers.scene.messages:
            workers.work()
    assert check_error_on(workers.scene.plan(), "T4").startswith("ModuleNotFoundError")
    assert not check_error_on(workers.scene.plan(), "cpu")
    workers.run()
    assert workers.scene.study().state == StudyState.COMPLETED
    assigned = workers.scene.events(e.ChainAssigned)
    assert {event.slot for event in assigned if event.proof != VerificationKind.CHECK} == {"gpu0"}
    assert _tried_on(workers) == ["gpu0", "gpu1", "gpu1"], "two tries are enough"


def test_a_study_may_be_trained_without_a_check() -> None:
    workers = ran(ladder(4), fields={"check": False}, check_error="KeyError: 'bs'")
    assert workers.scene.study().state == StudyState.COMPLETED and kinds(workers) == []


@pytest.mark.parametrize("slots", [1, 3])
def test_each_resumption_of_a_right_trainer_is_compared_before_its_study_ends(slots: int) -> None:
    workers = ran(ladder(4, 6, 9), slots)
    study, plan = workers.scene.study(), workers.scene.plan()
    resumed = {each.step for each in plan.resumptions}
    assert resumed and plan.uncompared_resumptions == [] and not any(mark(workers, trial) for trial in study.trials)
    assert judgement(workers).verdict in (Verdict.CHECKED, Verdict.VERIFIED) and judgement(workers).compared == len(
        resumed
    )
    assert kinds(workers)[0] == "check" and kinds(workers).count("handover") <= len(resumed)
    assert study.executed == study.unique, "verification steps are no progress"
    assert study.proof_steps > 0


def test_faults_between_multiples_of_a_step_are_detected() -> None:
    """Sound where trials part at step 4, wrong where they part at 6 and 9: one comparison was taken for all of them."""
    for ends in itertools.permutations((4, 6, 9)):
        workers = proving(every=4)
        workers.scene.submit(ladder(*ends))
        workers.run()
        assert_never_wrong_in_silence(workers, workers.scene.study())


def test_a_study_that_shares_much_ends_with_a_whole_trial_also_with_one_slot() -> None:
    workers = proving()
    workers.scene.submit(ladder(*(9 + number % 2 for number in range(2)), steps=12))
    lone = rates(*(decay(10, 0.1 + 0.05 * n) for n in range(9)), steps=12)
    workers.scene.submit(lone, name="many")
    workers.run()
    assert "whole" in kinds(workers) and judgement(workers, "many").verdict == Verdict.VERIFIED


def test_a_whole_trial_begins_beside_the_last_others_of_its_study() -> None:
    """Once all slots but one idled while it was trained: it began when nothing else was left."""
    workers = proving(slots=2)
    workers.scene.submit(rates(*(decay(10, 0.1 + 0.05 * n) for n in range(9)), steps=12))
    workers.run()
    proofs = [each.proof for each in workers.scene.events(e.ChainAssigned)]
    assert None in proofs[proofs.index(VerificationKind.WHOLE) :], "others begin after it"


def scene_with_long_trial(steps: int, slots: int) -> ToyWorkers:
    """Everything else was trained, while a trial of this many steps that shares nothing is still under way."""
    workers = proving(slots=slots)
    tuner = ladder(4, 6, 8)
    tuner["trials"].append({"hp": {"lr": 1.1}, "steps": steps})
    workers.scene.submit(tuner)
    long = None
    for _ in range(20):
        workers.scene.scheduler.tick()
        plan = workers.scene.plan()
        alone = plan.studies[StudyId("study")].trials[3].path[-1]
        long = next((each.id for each in plan.chains.values() if each.stages[0].node == alone and not each.proof), long)
        others = [message for message in workers.scene.messages if message[0] != long]
        if others and "whole" not in kinds(workers):
            workers.scene.messages = [*others, *(each for each in workers.scene.messages if each not in others)]
            workers.work()
    return workers


def test_a_slot_that_idles_proves_a_whole_trial() -> None:
    workers = scene_with_long_trial(steps=40, slots=8)
    assert "whole" in kinds(workers)
    workers.run()
    for trial in workers.scene.study().trials:
        assert value(workers, trial) == workers.alone(trial.hp, trial.steps)


def test_no_proof_is_begun_that_the_end_of_its_study_would_cut_off() -> None:
    workers = scene_with_long_trial(steps=3, slots=8)
    assert "whole" not in kinds(workers)
    workers.run()
    assert workers.scene.study().state == StudyState.COMPLETED


def test_a_trial_that_shares_nothing_needs_no_proof() -> None:
    workers = ran(rates(1.0, 2.0))
    assert [mark(workers, trial) for trial in workers.scene.study().trials] == ["", ""]


@pytest.mark.parametrize("slots", [1, 3])
def test_trials_of_a_forgetful_trainer_are_trained_alone(slots: int) -> None:
    workers = ran(ladder(4, 6, 8), slots, forgets=True, late=3)
    study = workers.scene.study()
    assert study.state == StudyState.COMPLETED and study.isolated
    assert [value(workers, trial) for trial in study.trials] == [workers.alone(t.hp, 12) for t in study.trials]
    assert not any(mark(workers, trial) for trial in study.trials)
    assert verdict_text(study, judgement(workers)) == (
        "inexact, so each trial is trained alone: 1 of 2 leaves differ, the first is x"
    )


@pytest.mark.parametrize("slots", [1, 3])
def test_late_faults_are_detected_by_a_whole_trial_after_a_suspicion(slots: int) -> None:
    workers = ran(ladder(4, 6, 8), slots, forgets=True, late=11)
    assert workers.scene.study().isolated
    assert_never_wrong_in_silence(workers, workers.scene.study())


@pytest.mark.parametrize("slots", [1, 3])
def test_an_unrestored_value_without_an_effect_gives_no_mark(slots: int) -> None:
    """A clock, a progress bar or a list for printing."""
    workers = ran(ladder(4, 6, 8), slots, forgets=True, late=99)
    study = workers.scene.study()
    assert not study.isolated and [mark(workers, trial) for trial in study.trials] == ["", "", ""]
    assert kinds(workers).count("whole") == 1 and judgement(workers).verdict == Verdict.VERIFIED


def test_isolated_trials_wait_for_no_check_on_another_device() -> None:
    workers = ran(ladder(4, 6, 8), forgets=True, late=1)
    assert workers.scene.study().isolated
    assert is_checked(workers.scene.plan(), "an unknown device")


def test_an_inexact_trainer_is_refused_if_the_study_requires_it() -> None:
    workers = ran(ladder(4, 6, 8), fields={"inexact": "refuse"}, forgets=True, late=3)
    assert workers.scene.study().state == StudyState.FAILED
    assert "inexact: refuse" in str(workers.scene.study().error)


def test_shared_and_marked_where_the_study_allows_it() -> None:
    workers = ran(ladder(4, 6, 8), fields={"inexact": "allow"}, forgets=True, late=3)
    study = workers.scene.study()
    assert study.state == StudyState.COMPLETED and not study.isolated and study.executed == study.unique
    assert all("may be wrong" in mark(workers, trial) for trial in study.trials)


def test_a_study_that_comes_later_begins_alone() -> None:
    workers = ran(ladder(4, 6, 8), fields={"inexact": "allow"}, forgets=True, late=3)
    workers.scene.submit(ladder(4, 6, 8), name="later")
    workers.run()
    later = workers.scene.study("later")
    assert later.isolated
    assert [value(workers, trial) for trial in later.trials] == [workers.alone(t.hp, 12) for t in later.trials]


def test_a_restarted_tuners_decisions_replay() -> None:
    workers = ran(ASHA, fields=SPACE, slots=2, forgets=True, late=1)
    study = workers.scene.study()
    assert study.isolated and study.state == StudyState.COMPLETED
    for trial in study.trials:
        assert value(workers, trial) == workers.alone(trial.hp, trial.steps)
    log = [stored.event for stored in workers.scene.records.log.read("plan")]
    assert replay(enumerate(log, 1), study.id).identical


def test_a_users_requests_are_repeated_after_isolation() -> None:
    workers = proving(forgets=True, late=3)
    workers.scene.submit({"kind": "external"})
    start = [c.Start(hp={"lr": decay(at)}, steps=6) for at in (4, 5)]
    workers.scene.give(c.AskForTrials(study=StudyId("study"), actions=tuple(start)))
    workers.run()
    workers.scene.give(c.AskForTrials(study=StudyId("study"), actions=(c.Extend(trial=0, steps=12),)))
    workers.run()
    study = workers.scene.study()
    assert study.isolated and [trial.requested_steps for trial in study.trials] == [[6, 12], [6]]
    for trial in study.trials:
        assert value(workers, trial) == workers.alone(trial.hp, trial.steps)


def test_a_verification_that_always_fails_delays_no_study() -> None:
    workers = proving()
    workers.scene.submit(ladder(4, 8))
    for _ in range(3):
        workers.scene.scheduler.tick()
        chain, _ = workers.scene.claim()
        ended = e.ChainEnded(chain=chain, outcome="interrupted")  # type: ignore[arg-type]
        workers.scene.record(chain, [ended], lambda rows, chain=chain: rows.chains.end(chain, FENCE))
    workers.run()
    assert workers.scene.study().state == StudyState.COMPLETED
    assert judgement(workers).verdict in (Verdict.CHECKED, Verdict.UNCHECKED)


@max_examples(25)
@given(
    ends=st.lists(st.integers(1, 11), min_size=1, max_size=5),
    late=st.integers(0, 14),
    slots=st.integers(1, 4),
    policy=st.sampled_from(["alone", "allow"]),
)
def test_no_number_without_a_mark_differs_from_the_trial_alone(
    ends: list[int], late: int, slots: int, policy: str
) -> None:
    workers = ran(ladder(*ends), slots, fields={"inexact": policy, "eval_every": 3}, forgets=True, late=late)
    study = workers.scene.study()
    assert study.state == StudyState.COMPLETED
    assert_never_wrong_in_silence(workers, study)


@example(ends=[13, 3], every=7, slots=1, steps=14)
@max_examples(25)
@given(
    ends=st.lists(st.integers(1, 17), min_size=1, max_size=5),
    every=st.integers(2, 12),
    slots=st.integers(1, 4),
    steps=st.integers(12, 18),
)
def test_faults_at_an_epochs_end_after_a_break_are_marked(ends: list[int], every: int, slots: int, steps: int) -> None:
    """One step that was compared behind such an end proved trials that had broken before it."""
    workers = ran(ladder(*ends, steps=steps), slots, fields={"eval_every": 3, "audit": 0}, every=every)
    assert_never_wrong_in_silence(workers, workers.scene.study())
    if not workers.scene.study().isolated:
        workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
        workers.run()
        assert_never_wrong_in_silence(workers, workers.scene.study())


@max_examples(25)
@given(ends=st.lists(st.integers(1, 11), min_size=1, max_size=5), late=st.integers(0, 14), slots=st.integers(1, 4))
def test_a_right_trainer_is_never_isolated(ends: list[int], late: int, slots: int) -> None:
    workers = ran(ladder(*ends), slots, fields={"eval_every": 3}, late=late)
    study = workers.scene.study()
    assert study.state == StudyState.COMPLETED and not study.isolated
    assert judgement(workers).verdict != Verdict.INEXACT
    assert study.executed == study.unique
    assert [value(workers, trial) for trial in study.trials] == [workers.alone(t.hp, t.steps) for t in study.trials]


@pytest.mark.parametrize("tuner", [ASHA, ladder(4, 6, 8), ladder(6, 8, 4)], ids=["asha", "ladder", "a ladder's middle"])
def test_a_finished_study_is_proven_when_a_user_asks(tuner: Json) -> None:
    """Each trial from step 0 without a break, also next to compared ones: a fault may be in one of them."""
    workers = proving()
    space = SPACE if tuner is ASHA else {}
    workers.scene.submit(tuner, audit=0, **space)
    workers.run()
    before = workers.scene.study().proof_steps
    workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
    workers.run()
    study, plan = workers.scene.study(), workers.scene.plan()
    assert not study.is_audited and study.state == StudyState.COMPLETED and study.proof_steps > before
    assert all(mark(workers, trial) == "" for trial in study.trials)
    without_a_break = {(test.node, test.step) for test in plan.tests if test.begin == 0 and not test.unproven}
    resumed = {(n.id, step) for n in plan.nodes.values() for step, kept in n.checkpoints.items() if kept.since}
    assert resumed and resumed <= without_a_break


def test_an_audit_finds_and_marks_hidden_faults() -> None:
    workers = ran(ladder(4, 6, 8), fields={"audit": 0}, forgets=True, late=11, sees_stray=False)
    assert not workers.scene.study().isolated, "nothing has shown in the first steps"
    workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
    workers.run()
    assert judgement(workers).verdict == Verdict.INEXACT
    assert all("may be wrong" in mark(workers, trial) for trial in workers.scene.study().trials)


def test_a_reopened_study_of_an_inexact_trainer_continues_isolated() -> None:
    workers = ran(ASHA, fields={**SPACE, "audit": 0}, forgets=True, late=6, sees_stray=False)
    assert not workers.scene.study().isolated, "nothing has shown in the first steps"
    workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
    workers.run()
    assert judgement(workers).verdict == Verdict.INEXACT
    workers.scene.give(c.ReopenStudy(study=StudyId("study"), trials=12, at=2.0))
    workers.run()
    assert workers.scene.study().isolated
    assert_never_wrong_in_silence(workers, workers.scene.study())


def test_an_audit_ends_where_proofs_are_switched_off() -> None:
    """They may be switched off after the request: no user waits for ever."""
    workers = ran(ladder(4, 6, 8), fields={"audit": 0})
    workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))
    assert workers.scene.study().is_audited
    before = kinds(workers)
    Scheduler(replace(workers.scene.ports(), proofs=False)).tick()
    assert not workers.scene.study().is_audited and kinds(workers) == before


def test_an_isolated_study_needs_no_audit() -> None:
    workers = ran(ladder(4, 6, 8), forgets=True, late=1)
    with pytest.raises(StateConflict, match="trained alone"):
        workers.scene.give(c.RequestAudit(study=StudyId("study"), at=1.0))


def test_an_unneeded_verification_makes_room() -> None:
    workers = scene_with_long_trial(steps=40, slots=2)
    (whole,) = (chain for chain in workers.scene.plan().chains.values() if chain.proof == VerificationKind.WHOLE)
    lone = rates(3.0, 4.0, 5.0, 6.0, steps=9)
    workers.scene.submit(lone, name="urgent")
    workers.scene.scheduler.tick()
    assert workers.scene.row(whole.id).stop


def test_a_proof_for_a_study_that_was_cancelled_is_stopped() -> None:
    workers = proving()
    workers.scene.submit(ladder(4, 6, 8))
    workers.scene.scheduler.tick()
    (check,) = workers.scene.plan().chains.values()
    workers.scene.give(c.CancelStudy(study=StudyId("study"), at=1.0))
    workers.scene.scheduler.tick()
    assert workers.scene.row(check.id).stop


def test_kinds_of_verifications_are_distinguished() -> None:
    assert [*VerificationKind] == ["check", "handover", "whole", "audit", "evaluation"]


def log_and_study(tuner: Json = ASHA, slots: int = 2, **workers: Any) -> tuple[list[e.Event], Study]:
    """The log of a study on toy workers."""
    found = ran(tuner, slots, SPACE, **workers)
    return [stored.event for stored in found.scene.records.log.read("plan")], found.scene.study()


@pytest.mark.parametrize("forgets", [True, False], ids=["isolated", "proven"])
@pytest.mark.parametrize("slots", [1, 2, 5])
def test_what_if_without_changes_keeps_a_log_with_verifications(slots: int, forgets: bool) -> None:
    log, study = log_and_study(slots=slots, forgets=forgets, late=1)
    assert bool(study.isolated) == forgets
    found = what_if(log, study.id, {})
    assert (found["saved"], found["needed"], found["not_known"]) == (0, 0, 0)
    assert (found["unique"], found["trials"]) == (study.unique, len(study.trials))


def test_what_if_another_tuner_uses_isolated_trials() -> None:
    log, study = log_and_study(forgets=True, late=1)
    strict = what_if(log, study.id, {"tuner.reduction_factor": 9})
    assert strict["saved"] > 0 and strict["needed"] == 0 and strict["not_known"] == 0
    longer = what_if(log, study.id, {"tuner.num_trials": 12})
    assert longer["trials"] == 12 and longer["saved"] == 0 and longer["best"] is not None
