"""Views are functions of the plan: values, the best trial, states, forms as text."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from assignments import stage, work

from app.domain import commands as c
from app.domain import events as e
from app.domain import results
from app.domain.decide import decide
from app.domain.evolve import fold
from app.domain.leaderboard import build_leaderboard
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainId, NodeId, StudyId
from app.events.rows import ChainRecord, StudyRecord
from app.service.views import documents, outcomes, plans
from app.service.views.progress import progress as progress_of
from app.service.views.trial_order import form_text
from app.simulation.forecast import Forecast, forecast
from app.simulation.pace import even_packs
from app.simulation.simulator import Simulator
from stagetree.sequences import Cosine, Linear, Sequence, Values, Wsd
from tests.plans import Story, steps

S = StudyId("s")


def progress(plan: SearchPlan, expected: Forecast | None = None) -> Any:
    study = plan.studies[S]
    return progress_of(plan, study, {}, expected, build_leaderboard(study))


def plan_of(*trials: tuple[dict[str, Any], int], mode: str = "max") -> SearchPlan:
    """A plan with one study of these trials."""
    opened = e.PlanOpened(trainer="t", trainer_version="1", trainer_args={}, seed=0)
    plan = SearchPlan()
    give(plan, c.SubmitStudy(plan=opened, study=S, spec={"name": "n", "metric": "m", "mode": mode}, at=10.0))
    give(plan, c.ApplyTunerActions(study=S, actions=tuple(c.Start(hp=hp, steps=steps) for hp, steps in trials)))
    return plan


def give(plan: SearchPlan, command: c.Command) -> None:
    fold(decide(plan, command), plan)


def evaluate(plan: SearchPlan, trial: int, step: int, value: float | None) -> None:
    node = plan.node_of(plan.studies[S].trials[trial], step).id
    fold([e.Evaluated(node=node, step=step, metrics={"m": value})], plan)


def test_the_value_is_that_of_the_last_step_asked_for_that_has_one() -> None:
    plan = plan_of(({"lr": 0.1}, 10))
    evaluate(plan, 0, 5, 0.9)
    assert results.last_value(plan, plan.studies[S], plan.studies[S].trials[0]) is None
    evaluate(plan, 0, 10, 0.4)
    give(plan, c.ApplyTunerActions(study=S, actions=(c.Extend(trial=0, steps=20),)))
    evaluate(plan, 0, 15, 0.8)
    assert results.last_value(plan, plan.studies[S], plan.studies[S].trials[0]) == results.MeasuredValue(10, 0.4)
    evaluate(plan, 0, 20, 0.6)
    assert results.last_value(plan, plan.studies[S], plan.studies[S].trials[0]) == results.MeasuredValue(20, 0.6)


@pytest.mark.parametrize(("mode", "best"), [("max", 1), ("min", 0)])
def test_the_best_by_mode_with_ties_to_the_lower_number(mode: str, best: int) -> None:
    plan = plan_of(*(({"lr": lr}, 10) for lr in (0.1, 0.2, 0.3, 0.4)), mode=mode)
    for trial, value in enumerate((0.1, 0.5, 0.5, 0.1)):
        evaluate(plan, trial, 10, value)
    found = outcomes.best(plan, plan.studies[S])
    assert found is not None
    assert found["trial"] == best


@pytest.mark.parametrize("value", [None, float("nan"), float("inf")])
def test_infinite_values_are_no_values(value: float | None) -> None:
    plan = plan_of(({"lr": 0.1}, 10))
    evaluate(plan, 0, 10, value)
    shown = documents.study(plan, S, now=11.0)
    assert (shown["best"], shown["trials"][0]["value"]) == (None, None)
    assert documents.trial(plan, plan.studies[S].trials[0])["curve"] == [{"step": 10, "metrics": {"m": None}}]


@pytest.mark.parametrize(("value", "best", "marked"), [(0.9, 0, False), (0.1, 1, True)])
def test_the_best_trial_is_marked_as_it_is_in_the_list(value: float, best: int, marked: bool) -> None:
    """It had the mark of another trial beside its value, and none in the table."""
    story = Story()
    decay = steps(0.1, 0.2, milestones=[4])
    study = story.submit(({"lr": 0.5}, 8), ({"lr": decay}, 8), ({"lr": 0.1}, 8))
    beginning, rest = story.path(study, 1)
    story.keep(beginning.id, 4)
    story.assign((rest, 4, 8))
    for number, measured in enumerate((value, 0.5, 0.4)):
        story.evaluate(story.path(study, number)[-1].id, 8, measured)
    shown = documents.study(story.plan, study, now=1.0)
    assert shown["best"]["trial"] == best and shown["exactness"]["mark"]
    assert bool(shown["best"]["exactness"]) == bool(shown["trials"][best].get("exactness")) == marked


def test_a_trial_runs_when_a_chain_passes_its_path_and_waits_when_one_only_passes_nearby() -> None:
    decay = {"family": "multistep", "init": 0.1, "milestones": [20], "gamma": 0.1}
    plan = plan_of(({"lr": 0.1}, 40), ({"lr": decay}, 40), ({"lr": 0.1}, 30), ({"lr": 0.3}, 40))
    constant = plan.studies[S].trials[0].path
    stages = (e.Stage(node=constant[-1], start=30, end=40, study=S, evaluate=(40,)),)
    kept = e.CheckpointKept(node=constant[-1], step=30, key="k", sha256="0", size=1)
    fold([kept, e.ChainAssigned(chain=ChainId("c"), slot="gpu0", stages=stages, at=1.0)], plan)
    states = [trial["state"] for trial in documents.trials(plan, plan.studies[S])]
    assert states == ["running", "waiting", "waiting", "waiting"]


def test_a_stage_that_only_evaluates_runs_for_those_who_wait_there() -> None:
    plan = plan_of(({"lr": 0.1}, 40), ({"lr": 0.3}, 40))
    node = plan.studies[S].trials[0].path[-1]
    stage = e.Stage(node=node, start=40, end=40, study=S, evaluate=(40,))
    fold([e.ChainAssigned(chain=ChainId("c"), slot="gpu0", stages=(stage,), at=1.0)], plan)
    assert [trial["state"] for trial in documents.trials(plan, plan.studies[S])] == ["running", "waiting"]
    assert documents.study(plan, S, now=1.0)["progress"]["running"][0]["step"] == 40


@pytest.mark.parametrize(("reached", "step"), [({}, 0), ({"c": 13}, 13), ({"c": 99}, 40), ({"other": 5}, 0)])
def test_progress_stays_within_the_stage(reached: dict[ChainId, int], step: int) -> None:
    plan = plan_of(({"lr": 0.1}, 40))
    stage = e.Stage(node=plan.studies[S].trials[0].path[0], start=0, end=40, study=S)
    fold([e.ChainAssigned(chain=ChainId("c"), slot="gpu0", stages=(stage,), at=1.0)], plan)
    assert documents.study(plan, S, now=1.0, reached=reached)["progress"]["running"][0]["step"] == step


def test_a_saving_chain_is_not_running() -> None:
    plan = plan_of(({"lr": 0.1}, 40))
    stage = e.Stage(node=plan.studies[S].trials[0].path[0], start=0, end=40, study=S)
    assigned = e.ChainAssigned(chain=ChainId("c"), slot="gpu0", stages=(stage,), at=1.0)
    fold([assigned, e.StageCompleted(chain=ChainId("c"), index=0, seconds=2.0)], plan)
    shown = documents.study(plan, S, now=1.0)
    assert shown["progress"]["running"] == []
    assert shown["steps"]["executed"] == 40
    assert shown["gpu_seconds"] == 2.0


def test_wall_seconds_go_from_submission_to_the_end_or_to_now() -> None:
    plan = plan_of(({"lr": 0.1}, 40))
    assert documents.study(plan, S, now=12.5)["wall_seconds"] == 2.5
    assert documents.study(plan, S, now=9.0)["wall_seconds"] == 0.0
    give(plan, c.CancelStudy(study=S, at=11.0))
    assert documents.study(plan, S, now=99.0)["wall_seconds"] == 1.0


def test_the_time_between_two_runs_is_none_that_a_study_took() -> None:
    """A study that was reopened the next day took a day."""
    plan = plan_of(({"lr": 0.1}, 40))
    spec = plan.studies[S].spec.json
    fold([e.StudyCompleted(study=S, at=15.0), e.StudyReopened(study=S, spec=spec, at=86_000.0)], plan)
    assert documents.study(plan, S, now=86_002.0)["wall_seconds"] == 7.0


@pytest.mark.parametrize(
    ("sequence", "number", "text"),
    [
        (Values(["adam", "sgd"], [5]), 0, '"adam"'),
        (Values([64, 128], [5]), 1, "128"),
        (Linear(0.5, 0.25), 1, "linear (init 0.5, slope 0.25) from step 0"),
        (Wsd(peak=0.5, warmup=2, stable_until=4, decay=4), 1, "warm-up (low 0, high 0.5, steps 2) from step 0"),
        (Wsd(peak=0.5, warmup=2, stable_until=4, decay=4), 3, "linear (first 0.5, last 0, steps 4) from step 4"),
        (
            Wsd(peak=0.5, warmup=2, stable_until=4, decay=4, shape="sqrt"),
            3,
            "sqrt (peak 0.5, final 0, steps 4) from step 4",
        ),
        (Cosine(1.0, 0.0, 10), 1, "half cosine (init 1, low 0, period 10) from step 0"),
    ],
)
def test_forms_can_be_read(sequence: Sequence, number: int, text: str) -> None:
    pieces = list(zip(range(number + 1), sequence.pieces(), strict=False))
    assert form_text(pieces[number][1].form) == text


def test_every_place_in_the_stage_tree_of_a_study_leads_to_one_of_its_trials() -> None:
    plan = plan_of(({"lr": 0.1}, 40), ({"lr": 0.1}, 10))
    shown = plans.stage_tree(plan, plan.studies[S])
    assert [(stage["start"], stage["end"]) for stage in shown["stages"]] == [(0, 10), (10, 40)]
    give(plan, c.CancelTrial(study=S, trial=1))
    assert [(stage["start"], stage["end"]) for stage in plans.stage_tree(plan, plan.studies[S])["stages"]] == [(0, 40)]
    assert NodeId(shown["stages"][0]["node"]) in plan.nodes


def test_trials_that_are_sent_on_stay_counted() -> None:
    """The bar of a study under ASHA went from 9 of 12 back to 8."""
    plan = plan_of(*(({"lr": lr}, 10) for lr in (0.1, 0.2)))
    shown = []

    def look() -> None:
        shown.append(progress(plan)["trials"]["done"])

    look()
    for trial in (0, 1):
        evaluate(plan, trial, 10, 0.5)
        look()
    give(plan, c.ApplyTunerActions(study=S, actions=(c.Extend(trial=0, steps=20),)))
    look()
    evaluate(plan, 0, 20, 0.6)
    look()
    give(plan, c.CancelStudy(study=S, at=11.0))
    look()
    assert shown == [0, 1, 2, 2, 2, 2]


def test_a_whole_study_under_asha_never_goes_back() -> None:
    """Trials done and the share of the steps, looked at after every event, and who rests at a rung."""
    tuner = {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 9, "reduction_factor": 3}
    spec = {
        "name": "n",
        "trainer": "t",
        "metric": "m",
        "mode": "max",
        "tuner": tuner,
        "space": {"lr": {"uniform": [0, 1]}},
    }
    chance = Random(4)
    simulator = Simulator(slots=3, measure=lambda node, step: {"m": chance.random()})
    opened = e.PlanOpened(trainer="t", trainer_version="1", trainer_args={}, seed=0)
    simulator.give(c.SubmitStudy(plan=opened, study=S, spec=spec, at=0.0))
    looks, expected = [], forecast(spec)
    while simulator.advance():
        looks.append(progress(simulator.plan, expected))
    looks.append(progress(simulator.plan, expected))
    done = [look["trials"]["done"] for look in looks]
    steps = [look["steps"]["done"] for look in looks]
    assert done == sorted(done) and done[-1] == 12
    assert steps == sorted(steps) and steps[-1] == looks[-1]["steps"]["expected"]
    resting = [look["trials"]["resting"] for look in looks]
    assert max(resting) > 3 and resting[-1] == 0


def test_steps_of_trials_that_failed_are_not_expected() -> None:
    """The bar of a completed study stood at 37 %."""
    plan = plan_of(*(({"lr": lr}, 10) for lr in (0.1, 0.2)))
    assert progress(plan)["steps"] == {"done": 0, "expected": 20}
    give(plan, c.CancelTrial(study=S, trial=1))
    assert progress(plan)["steps"] == {"done": 0, "expected": 10}


@pytest.mark.parametrize("packing", [0, 2, 4])
def test_the_time_left_is_that_of_the_slots_whatever_they_train_at_once(packing: int) -> None:
    """Eight trials of ten steps on one slot, of which some are done; a pass takes as long as a trial alone."""
    simulator = Simulator(slots=1, measure=lambda node, step: {"m": 0.0}, profile=even_packs(1.0))
    opened = e.PlanOpened(trainer="t", trainer_version="", trainer_args={}, seed=0, packing=packing)
    trials = [{"hp": {"lr": rate / 10}, "steps": 10} for rate in range(8)]
    named = {"name": "n", "trainer": "t", "metric": "m", "mode": "max"}
    spec = {**named, "tuner": {"kind": "trials", "trials": trials}}
    simulator.give(c.SubmitStudy(plan=opened, study=S, spec=spec, at=0.0))
    simulator.run_until(10.0)
    shown = progress(simulator.plan)
    assert shown["seconds_left"] == simulator.run() - 10.0


def test_a_slot_that_trains_several_trials_at_once_is_one() -> None:
    elsewhere = {"stream": "plan", "lease_until": 0.0, "dispatched_at": 0.0}

    def chain(name: str, slot: str, study: str) -> ChainRecord:
        return ChainRecord(chain=name, slot=slot, state="running", assignment=work(stage(study=study)), **elsewhere)

    live = [chain("a", "gpu0", "s"), chain("b", "gpu0", "s"), chain("c", "gpu1", "s"), chain("d", "gpu2", "other")]
    row = StudyRecord(id="s", stream="plan", name="n", state="running", submitted_at=0.0)
    assert documents.share(row, live) == {"used": 2, "due": None}
