"""The resumptions that a trial rests on, the ones that a comparison covers, and the resulting texts."""

from __future__ import annotations

from typing import Any

import pytest
from parting import Parting
from plans import Story, steps
from stacks import Json

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import Node, resumption_at
from app.domain.terms import ChainId, NodeId, Verdict, VerificationKind
from app.exactness import Judgement, judge, open_suspicions, resumptions_of, trial_marks, verdict_text


def way(*parts: tuple[int, Json], end: int = 20) -> list[tuple[Node, int]]:
    """A path of nodes that begin at these steps with these values."""
    nodes = [Node(id=NodeId(str(number)), parent=None, start=start, hp=hp) for number, (start, hp) in enumerate(parts)]
    return list(zip(nodes, [*(node.start for node in nodes[1:]), end], strict=True))


# ------------------------------------------------------------------------------------------------ kinds of values


LINEAR = {"family": "linear", "init": 0.1, "slope": -0.001}
ALIKE = [(0.1, 0.3), (64, 48), (1, 0.5), (-1.0, 2), (0.1, LINEAR), (0, 0.0), ("sgd", "sgd"), (True, True)]
UNLIKE: list[tuple[Any, Any]] = [(0, 0.3), (0.3, 0.0), ("sgd", "adam"), (True, False), (True, 1), (False, 0)]
UNLIKE += [(None, 0.1), (None, 0), ("0", 0)]


@pytest.mark.parametrize(
    ("one", "other", "is_alike"), [*((*pair, True) for pair in ALIKE), *((*pair, False) for pair in UNLIKE)]
)
def test_numbers_are_one_kind_except_zero_and_other_values_differ(one: Any, other: Any, is_alike: bool) -> None:
    resumptions = {resumption_at(way((0, {"x": value})), 5) for value in (one, other)}
    assert (len(resumptions) == 1) is is_alike


def test_a_number_that_moves_is_a_number_wherever_it_begins() -> None:
    moving = resumption_at(way((1, {"x": {"family": "linear", "init": 0.0, "slope": 0.001}})), 5)
    assert moving == resumption_at(way((1, {"x": 0.1})), 5) != resumption_at(way((1, {"x": 0})), 5)


def test_a_resumption_depends_on_the_values_before_and_after_it() -> None:
    parted = resumption_at(way((0, {"x": "sgd"}), (8, {"x": "adam"})), 8)
    assert {kind for name, kind in parted.values if name == "x"} == {"s'sgd'", "s'adam'"}
    assert resumption_at(way((0, {"x": "sgd"}), (8, {"x": "sgd"})), 8).values < parted.values


def test_only_values_around_a_resumption_count() -> None:
    long = way((0, {"x": "a"}), (4, {"x": "b"}), (12, {"x": "c"}))
    assert {kind for _, kind in resumption_at(long, 8).values} == {"s'b'", "changed"}


def test_a_change_before_a_resumption_counts_by_its_hyper_parameter() -> None:
    changed = {
        name: resumption_at(way((0, {"x": 0.1, "y": 0.1}), (4, {"x": 0.1, "y": 0.1} | {name: 0.2})), 7)
        for name in ("x", "y")
    }
    assert ("x", "changed") in changed["x"].values and ("y", "changed") not in changed["x"].values
    assert changed["x"] != changed["y"]
    at_the_change = resumption_at(way((0, {"x": 0.1}), (4, {"x": 0.2})), 4)
    assert at_the_change.values == {("x", "number")}, "it changes at the resumption, like for others"


def test_the_same_values_at_another_step_are_another_resumption() -> None:
    line = way((0, {"x": 0.1}))
    assert resumption_at(line, 8) != resumption_at(line, 11)
    assert resumption_at(line, 8).values == resumption_at(line, 11).values


# ------------------------------------------------------------------------------------------------ whole plans


def compared_but(*left_out: int, **fields: Any) -> Parting:
    """A case with compared resumptions, except at the trials `left_out`."""
    told = Parting(**fields)
    for number in {1, 2, 3} - {*left_out}:
        told.compare(number)
    return told


def test_a_trial_rests_on_the_steps_at_which_its_training_resumed() -> None:
    told = Parting()
    rests = [{each.step for each in resumptions_of(told.plan, trial)} for trial in told.it.trials]
    assert rests == [set(), {8}, {11}, {13}]
    assert [each.step for each in told.plan.uncompared_resumptions] == [8, 11, 13]


def test_a_trial_that_ends_where_others_resume_rests_on_nothing() -> None:
    story = Story()
    study = story.submit(({"lr": steps(0.1, 0.3, milestones=[8])}, 16), ({"lr": 0.1}, 8))
    trunk, leaf = story.path(study)
    story.finish(story.assign((trunk, 0, 8)))
    story.finish(story.assign((leaf, 8, 16)))
    short, long = story.trial(study, 1), story.trial(study, 0)
    assert resumptions_of(story.plan, short) == set() and len(resumptions_of(story.plan, long)) == 1
    assert trial_marks(story.plan, story.plan.studies[study])(short) == ""


def test_a_state_that_was_loaded_only_to_be_evaluated_counts_for_the_trial_that_ends_there() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 8), ({"lr": steps(0.1, 0.3, milestones=[8])}, 16))
    [trunk] = story.path(study, 0)
    story.keep(trunk.id, 8)
    story.finish(story.assign((trunk, 8, 8)))
    assert {each.step for each in resumptions_of(story.plan, story.trial(study, 0))} == {8}


def test_one_comparison_covers_its_own_step_and_no_other() -> None:
    """Gradients accumulate over 4 steps: sound at step 8, wrong at 11 and 13, without a mark there."""
    told = Parting()
    told.compare(1)
    assert [each.step for each in told.plan.uncompared_resumptions] == [11, 13]
    marks = told.marks()
    assert (marks[0], marks[1]) == ("", "")
    assert marks[2] == "unchecked: it resumed from the state of step 11, which was not compared"
    assert marks[3] == "unchecked: it resumed from the state of step 13, which was not compared"
    reason = "trial 2 resumed from the state of step 11, which was not compared; 1 more trial is unchecked"
    assert told.judgement() == Judgement(Verdict.UNCHECKED, reason, (11, 13), 1)


def test_a_comparison_from_the_record_that_never_stopped_covers_the_step_where_it_begins() -> None:
    told = compared_but(2)
    told.compare(0, begin=11, step=20, since=0)
    assert told.plan.uncompared_resumptions == [] and told.judgement().verdict == Verdict.CHECKED


def test_a_comparison_that_trains_through_several_resumptions_covers_all_of_them() -> None:
    story = Story()
    study = story.submit(({"lr": steps(1.0, 2.0, 3.0, milestones=[4, 9])}, 12), ({"lr": 1.0}, 12))
    trunk, branch, leaf = story.path(study)
    story.finish(story.assign((trunk, 0, 4)))
    story.finish(story.assign((branch, 4, 9)))
    story.finish(story.assign((leaf, 9, 12)))
    how: Json = {"chain": ChainId("x"), "proof": VerificationKind.WHOLE, "device": "cpu", "node": leaf.id, "begin": 0}
    story.happen(e.ExactnessTested(**how, step=12, since=9))
    assert story.plan.uncompared_resumptions == []


def test_a_comparison_of_other_values_covers_only_their_kinds() -> None:
    story = Story()
    trials = [({"lr": 0.1, "opt": steps("sgd", other, milestones=[8])}, 20) for other in ("adam", "lion")]
    study = story.submit(*trials, ({"lr": 0.1, "opt": "sgd"}, 20))
    chains = {number: story.path(study, number) for number in (0, 1)}
    trunk = chains[0][0]
    story.finish(story.assign((trunk, 0, 8)))
    for nodes in chains.values():
        story.finish(story.assign((nodes[-1], 8, 20)))
    how: Json = {"chain": ChainId("x"), "proof": VerificationKind.HANDOVER, "device": "cpu", "begin": 0}
    story.happen(e.ExactnessTested(**how, node=chains[0][-1].id, step=20, since=8))
    mark = trial_marks(story.plan, story.plan.studies[study])
    assert mark(story.trial(study, 0)) == ""
    assert mark(story.trial(study, 1)).startswith("unchecked: it resumed from the state of step 8")


@pytest.mark.parametrize(
    "found",
    [
        {"unproven": "the check ended with a crash"},
        {"proof": VerificationKind.CHECK},
        {"proof": VerificationKind.EVALUATION, "begin": 20, "since": 0, "step": 20},
    ],
    ids=["unproven", "a check", "an evaluation"],
)
def test_a_comparison_without_training_covers_no_resumption(found: Json) -> None:
    told = compared_but(1)
    told.compare(1, **found)
    assert [each.step for each in told.plan.uncompared_resumptions] == [8]


def test_an_evaluation_of_a_state_that_is_kept_covers_no_resumption() -> None:
    """Its report begins at the step of that state."""
    told = Parting()
    told.keep(told.leaf(1), 16)
    told.happen(
        e.ExactnessTested(
            chain=ChainId("x"), proof=VerificationKind.EVALUATION, device="cpu", node=told.leaf(1), begin=16, step=16
        )
    )
    assert 16 not in told.plan.compared


def test_equal_metrics_without_a_kept_state_cover_nothing() -> None:
    told = compared_but(1)
    told.drop(told.leaf(1), 20)
    told.compare(1)
    assert [each.step for each in told.plan.uncompared_resumptions] == [8]


# ------------------------------------------------------------------------------------------------ words


def test_marks_stand_only_at_trials_that_were_not_compared() -> None:
    told = compared_but(3)
    marks = told.marks()
    assert [number for number, mark in marks.items() if mark] == [3]
    assert told.judgement().unchecked == (13,) and told.judgement().compared == 2


def test_a_mark_says_why_it_could_not_be_compared() -> None:
    told = compared_but(3)
    told.compare(3, unproven="the trainer used cumsum, which has no deterministic form")
    assert told.marks()[3] == (
        "unchecked: it resumed from the state of step 13, which could not be compared: "
        "the trainer used cumsum, which has no deterministic form"
    )


def test_a_compared_study_has_no_mark_and_a_verdict() -> None:
    told = compared_but()
    assert not any(told.marks().values())
    assert told.judgement() == Judgement(Verdict.CHECKED, compared=3)
    assert verdict_text(told.it, told.judgement()) == "checked: every step at which trials part was compared"


def test_a_whole_trial_of_the_study_verifies_it() -> None:
    told = compared_but()
    told.compare(2, proof=VerificationKind.WHOLE)
    assert told.judgement().verdict == Verdict.VERIFIED
    assert verdict_text(told.it, told.judgement()).startswith("verified: ")


@pytest.mark.parametrize("found", [{"begin": 11}, {"unproven": "no memory left"}, {"step": 17}])
def test_a_trial_is_verified_by_nothing_less(found: Json) -> None:
    told = compared_but()
    if "step" in found:
        told.keep(told.leaf(2), 17)
    told.compare(2, proof=VerificationKind.WHOLE, **found)
    assert told.judgement().verdict == Verdict.CHECKED


def test_a_whole_trial_of_another_study_verifies_only_that() -> None:
    told = compared_but()
    other = told.submit(({"lr": steps(0.1, 0.3, milestones=[8])}, 14), ({"lr": 0.1}, 20))
    told.compare(2, proof=VerificationKind.WHOLE)
    assert told.judgement().verdict == Verdict.VERIFIED
    assert judge(told.plan, told.plan.studies[other]).verdict != Verdict.VERIFIED


def test_a_study_without_sharing_has_its_own_verdict() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 4), ({"lr": 0.2}, 4))
    for number in (0, 1):
        story.finish(story.assign((story.path(study, number)[0], 0, 4)))
    it = story.plan.studies[study]
    assert judge(story.plan, it) == Judgement(Verdict.UNSHARED)
    assert verdict_text(it, judge(story.plan, it)) == "nothing is shared: no result rests on a saved state"
    assert not any(map(trial_marks(story.plan, it), it.trials))


def test_a_difference_makes_the_trainer_inexact_and_marks_what_rests_on_sharing() -> None:
    told = compared_but(2, inexact="allow")
    lone = told.submit(({"lr": 0.9}, 5), name="lone")
    told.finish(told.assign((told.path(lone)[0], 0, 5), study=lone))
    told.compare(2, difference="1 of 2 leaves differ. Likely: self.count not restored")
    assert told.judgement().verdict == Verdict.INEXACT and "self.count" in told.judgement().reason
    assert all(mark.startswith("may be wrong: the trainer is not exact: 1 of 2") for mark in told.marks().values())
    its_own = told.plan.studies[lone]
    assert judge(told.plan, its_own).verdict == Verdict.UNSHARED
    assert trial_marks(told.plan, its_own)(its_own.trials[0]) == ""


def test_trials_trained_alone_have_no_mark() -> None:
    told = compared_but(2)
    told.compare(2, difference="1 of 2 leaves differ")
    told.give(c.IsolateStudy(study=told.study, at=1.0))
    assert told.it.isolated and not any(told.marks().values())
    assert verdict_text(told.it, told.judgement()) == "inexact, so each trial is trained alone: 1 of 2 leaves differ"


def test_a_few_steps_are_named_and_the_others_counted() -> None:
    story = Story()
    ends = [*range(2, 16, 2)]
    ladder = [({"lr": steps(*range(1, 9), milestones=ends)}, 20)]
    study = story.submit(*ladder, *(({"lr": steps(*range(1, n), milestones=ends[: n - 2])}, 20) for n in range(2, 9)))
    for node, end in story.plan.path_to(story.trial(study).path[-1], 20):
        story.finish(story.assign((node, node.start, end)))
    mark = trial_marks(story.plan, story.plan.studies[study])(story.trial(study))
    assert mark == "unchecked: it resumed from the states of steps 2, 4, 6, 8, 10 and 2 more, which were not compared"


# ------------------------------------------------------------------------------------------------ suspicions


def suspicious_case(**more: Any) -> Parting:
    """A case in which values that the trainer holds besides its state differed after step 11."""
    told = compared_but(2)
    told.compare(2, stray={"self.sched": "did not come back with the state"}, **more)
    return told


def test_a_suspicion_is_no_difference_and_stands_at_the_trials_that_it_concerns() -> None:
    told = suspicious_case()
    assert told.plan.uncompared_resumptions == []
    [suspicion] = open_suspicions(told.plan)
    assert (suspicion.step, suspicion.names) == (11, {"self.sched"})
    assert [number for number, mark in told.marks().items() if mark] == [2]
    assert told.marks()[2] == (
        "unchecked: self.sched did not come back with the state of step 11, and no whole trial was compared"
    )
    assert told.judgement().verdict == Verdict.UNCHECKED


def test_a_whole_trial_through_it_settles_a_suspicion() -> None:
    told = suspicious_case()
    told.compare(2, proof=VerificationKind.WHOLE)
    assert open_suspicions(told.plan) == [] and not any(told.marks().values())
    assert told.judgement().verdict == Verdict.VERIFIED


def test_a_whole_trial_elsewhere_settles_none() -> None:
    told = suspicious_case()
    told.compare(1, proof=VerificationKind.WHOLE)
    assert len(open_suspicions(told.plan)) == 1 and told.marks()[2]


def test_a_settled_suspicion_covers_later_resumptions() -> None:
    told = suspicious_case()
    told.compare(3, stray={"self.sched": "did not come back with the state"})
    told.compare(2, proof=VerificationKind.WHOLE)
    assert open_suspicions(told.plan) == []


def test_a_suspicion_settled_late_stays_open_for_longer_continuations() -> None:
    """Once a whole trial with one step after its resumption removed the mark of a differing one with 13 steps."""
    told = suspicious_case()
    told.compare(3, stray={"self.sched": "did not come back with the state"})
    told.compare(3, proof=VerificationKind.WHOLE)
    [left] = open_suspicions(told.plan)
    assert left.step == 11 and [number for number, mark in told.marks().items() if mark] == [2]


def test_a_suspicion_settled_for_short_trials_stays_open_for_longer_ones() -> None:
    told = suspicious_case()
    told.compare(2, proof=VerificationKind.WHOLE)
    told.give(c.AddTrial(study=told.study, hp=told.trial(told.study, 2).hp, steps=30))
    assert [number for number, mark in told.marks().items() if mark] == [4]
    assert told.marks()[4].startswith("unchecked: self.sched did not come back with the state of step 11")


def test_other_names_at_another_step_remain() -> None:
    told = suspicious_case()
    told.compare(3, stray={"self.other": "did not come back with the state"})
    told.compare(2, proof=VerificationKind.WHOLE)
    assert [each.names for each in open_suspicions(told.plan)] == [{"self.other"}]


def evaluated_late(story: Parting, step: int = 16) -> None:
    """Another study evaluates the branch at 8, which changes the state."""
    how: Json = {"chain": ChainId("x"), "proof": VerificationKind.EVALUATION, "device": "cpu"}
    changed = {"trainer.calls": "is changed by evaluate()"}
    story.happen(e.ExactnessTested(**how, node=story.leaf(1), begin=step, step=step, stray=changed))


def test_an_evaluation_that_changes_the_state_is_suspected_for_other_trials() -> None:
    told = compared_but()
    evaluated_late(told)
    assert [number for number, mark in told.marks().items() if mark] == [1]
    assert told.marks()[1] == "unchecked: evaluate() changed trainer.calls at step 16, and no whole trial was compared"
    told.compare(1, proof=VerificationKind.WHOLE)
    assert not any(told.marks().values())


def test_a_trials_own_evaluation_is_not_suspected() -> None:
    told = compared_but(eval_every=4)
    evaluated_late(told)
    assert not any(told.marks().values())


def test_the_evaluation_at_a_trials_end_affects_no_step() -> None:
    told = compared_but()
    evaluated_late(told, step=20)
    assert not any(told.marks().values())


def test_packs_are_not_compared() -> None:
    told = compared_but()
    told.plan.packing = 2
    assert told.judgement().verdict == Verdict.UNCHECKED
    assert set(told.marks().values()) == {"unchecked: training in packs is not compared"}


# ------------------------------------------------------------------------------------------------ states that compare


def test_a_state_inside_a_stage_that_is_on_record_after_the_stage_compares_its_resumption() -> None:
    """Once its upload took longer than the rest of the stage, and the resumption was never compared."""
    story = Story()
    study = story.submit(({"lr": steps(0.1, 0.3, milestones=[8])}, 20), ({"lr": 0.1}, 20))
    trunk, leaf = story.path(study)
    story.finish(story.assign((trunk, 0, 8)))
    chain = story.assign((leaf, 8, 20))
    story.train(chain)
    story.keep(leaf.id, 10, intermediate=True)
    assert leaf.checkpoints[10].since == 8
    assert [(each.step, each.since, each.begin) for each in story.plan.witnesses[8]] == [(10, 8, 0)]
