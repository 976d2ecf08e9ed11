"""Repeats of a trial: the plan equals the plan of separate trials, and the result is their mean."""

from __future__ import annotations

import json
from itertools import chain
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain import inexact_results, results
from app.domain.accounting import cost
from app.domain.decide.decision import price_of
from app.domain.evolve import fold
from app.domain.schedule import segment_at
from app.domain.search_plan import Node
from app.domain.terms import Refused, StudyId, TrialEventKind, TrialState
from app.events.codec import decode, encode
from app.scheduling.frontier import Frontier, Span
from app.scheduling.placement import assign, base_assignment, stages_of
from app.search.replay import replay
from app.service.views import documents
from app.simulation.simulator import Simulator
from stagetree.limits import LIMITS
from stagetree.spec import SpecError, StudySpec
from stagetree.text import value_text
from tests.plans import METRIC, OPENED, Story, max_examples, steps, study_of
from tests.strategies import Trial, spaces

WSD = {"lr": {"family": "wsd", "peak": 0.1, "warmup": 2, "stable_until": 20, "decay": 5}}
ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
SPACE = {"lr": [0.1, 0.2, {"family": "multistep", "init": 0.1, "milestones": [4], "gamma": 0.1}], "bs": [1, 2, 3]}


def random_metrics(node: Node, step: int) -> e.Metrics:
    return {METRIC: Random(f"{node.id}/{step}").random()}


def run(spec: StudySpec | dict[str, Any], measure: Any = random_metrics) -> Simulator:
    simulated = Simulator(slots=3, measure=measure, keep_every=3)
    spec = spec if isinstance(spec, dict) else spec.to_json()
    simulated.give(c.SubmitStudy(plan=OPENED, study=StudyId("study"), spec=spec, at=0.0))
    simulated.run()
    return simulated


def manual_repeat(hp: dict[str, Any], seed: int, begin: int) -> dict[str, Any]:
    return hp | {"data_seed": steps(0, seed, milestones=[begin]) if begin and seed else seed}


@max_examples(20)
@given(spaces(), st.integers(2, 4), st.integers(0, 12), st.booleans())
def test_repeats_equal_separate_trials(trials: list[Trial], count: int, begin: int, merge: bool) -> None:
    repeats = {"seeds": count, "from": begin}
    plan = run(study_of(trials, repeats=repeats, merge=merge)).plan
    listed = [(manual_repeat(hp, seed, begin), steps) for hp, steps in trials for seed in range(count)]
    plain = run(study_of(listed, merge=merge)).plan
    study, alike = plan.studies[StudyId("study")], plain.studies[StudyId("study")]
    assert (study.requested, study.unique, study.executed) == (alike.requested, alike.unique, alike.executed)
    assert cost(plan, study) == cost(plain, alike)
    for number, trial in enumerate(study.trials):
        same = alike.trials[number * count : (number + 1) * count]
        if merge:
            assert [run.path for run in trial.runs] == [each.path for each in same]
            values = {n.id: n.metrics[trial.steps][METRIC] for one in same for n in [plain.node_of(one, one.steps)]}
            found = results.last_value(plan, study, trial)
            assert found is not None and found.repeats == len(values)
            assert found.value == pytest.approx(fmean(values.values()))
            assert found.deviation == (pytest.approx(stdev(values.values())) if len(values) > 1 else None)


@max_examples(20)
@given(
    spaces(), st.lists(st.integers(0, 9), min_size=2, max_size=4, unique=True), st.integers(0, 12), st.integers(0, 4)
)
def test_listed_seeds_equal_trials_with_these_seeds(
    trials: list[Trial], seeds: list[int], begin: int, own: int
) -> None:
    plan = run(study_of(trials, repeats={"seeds": seeds, "from": begin}, seed=own)).plan
    each = [steps(own, seed, milestones=[begin]) if begin and seed != own else seed for seed in seeds]
    listed = [(hp | {"data_seed": seed}, length) for hp, length in trials for seed in each]
    alike = run(study_of(listed, seed=own)).plan.studies[StudyId("study")]
    study = plan.studies[StudyId("study")]
    assert [run.path for trial in study.trials for run in trial.runs] == [trial.path for trial in alike.trials]


@max_examples(20)
@given(spaces(), st.integers(0, 4), st.integers(1, 12))
def test_the_seed_of_the_study_is_the_data_seed_of_trials_without_one(
    trials: list[Trial], own: int, begin: int
) -> None:
    """Once `data_seed: 0` and no `data_seed` had two names, so repeats of the best trials shared nothing with them."""
    there_and_back = steps(own, own + 1, own, milestones=[begin, begin + 3])
    paths = [
        [trial.path for trial in run(study_of(listed, seed=own)).plan.studies[StudyId("study")].trials]
        for listed in (
            trials,
            [(hp | {"data_seed": own}, length) for hp, length in trials],
            [(hp | {"data_seed": float(own)}, length) for hp, length in trials],
            [(hp | {"data_seed": there_and_back}, length) for hp, length in trials],
        )
    ]
    assert paths[0] == paths[1]
    assert not {*chain(*paths[0])} & {*chain(*paths[2])}
    for (_, length), one, other in zip(trials, paths[0], paths[3], strict=True):
        assert (one == other) == (length <= begin), "a node after another seed is another one"


def test_repeats_of_the_best_trials_reuse_their_steps() -> None:
    """As in the guide. Once all of their steps were trained again."""
    simulated = run(study_of([({"lr": lr}, 20) for lr in (0.1, 0.2, 0.3)]))
    for name, repeats in (("again", 3), ("confirm", {"seeds": [1, 2, 3]})):
        spec = study_of([({"lr": 0.2}, 20)], repeats=repeats).to_json()
        simulated.give(c.SubmitStudy(plan=OPENED, study=StudyId(name), spec=spec, at=0.0))
        simulated.run()
    again, confirm = (simulated.plan.studies[StudyId(name)] for name in ("again", "confirm"))
    assert (again.requested, again.executed) == (60, 40)
    assert (confirm.requested, confirm.executed) == (60, 20)
    first = simulated.plan.studies[StudyId("study")].trials[1].path
    assert again.trials[0].path == first
    assert first not in [run.path for run in confirm.trials[0].runs], "none of them chose it"


def test_repeats_of_a_branch_are_compared_within_their_trunk() -> None:
    """Repeats of a branch lack the noise of its trunk. They were once compared across trunks."""
    ways = ((0.1, "linear"), (0.1, "sqrt"), (0.2, "linear"))
    decays = [WSD["lr"] | {"peak": peak, "shape": shape} for peak, shape in ways]
    story = Story()
    name = story.submit(*(({"lr": lr}, 25) for lr in decays), repeats={"seeds": 2, "from": "branch"})
    study = story.plan.studies[name]
    for trial in study.trials:
        for node, value in zip(story.plan.nodes_of(trial, 25), (0.5, 0.6), strict=True):
            story.happen(e.Evaluated(node=node.id, step=25, metrics={METRIC: value}))
    order = results.rank_trials(story.plan, study)
    assert results.ties_with_best(order) == [1]
    assert {value.repeats_from for _, value in order} == {21}
    shown = documents.trial(story.plan, order[0][0])
    assert value_text(shown["last"]) == "0.55 ± 0.071 (2 from step 21)"


def test_the_variance_of_a_cooldown_costs_the_cooldown() -> None:
    found = run(study_of([(WSD, 25)], repeats={"seeds": 3, "from": "branch"})).plan.studies[StudyId("study")]
    assert (found.requested, found.unique, found.executed) == (75, 21 + 3 * 4, 33)  # the rate falls from step 21 on


def test_before_they_part_repeats_have_one_value() -> None:
    simulated = run(study_of([(WSD, 25)], repeats={"seeds": 3, "from": "branch"}, value="best", eval_every=10))
    study = simulated.plan.studies[StudyId("study")]
    assert [step for step, _ in simulated.plan.curve(study.trials[0])] == [10, 20, 25]
    assert [len(simulated.plan.metrics_by_run(study.trials[0], step)) for step in (10, 20, 25)] == [1, 1, 3]


@pytest.mark.parametrize("repeats", [3, {"seeds": 2, "from": "branch"}, {"seeds": 2, "from": 7}])
def test_rungs_compare_means_and_the_log_replays(repeats: Any) -> None:
    common = {"name": "study", "trainer": "digits", "metric": METRIC, "mode": "max"}
    spec = StudySpec.from_dict({**common, "space": SPACE, "tuner": ASHA, "repeats": repeats})
    simulated = run(spec)
    plan, study = simulated.plan, simulated.plan.studies[StudyId("study")]
    lines = [line for line in study.history if line.kind == TrialEventKind.RESULT]
    assert any(line.kind == TrialEventKind.PROMOTE for line in study.history)
    for line in lines:
        each = [node.metrics[line.steps][METRIC] for node in plan.nodes_of(study.trials[line.trial], line.steps)]
        assert line.metrics[METRIC] == pytest.approx(fmean(value for value in each if value is not None))
    assert replay(enumerate(simulated.events, 1), study.id).identical
    read = fold(decode(*json.loads(json.dumps(encode(event)))) for event in simulated.events)
    assert read.studies[study.id].history == study.history


def test_a_trial_waits_for_all_of_its_repeats_and_fails_with_any() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 5), repeats=2)
    trial = story.plan.studies[study].trials[0]
    first, second = story.plan.nodes_of(trial, 5)
    story.happen(e.Evaluated(node=first.id, step=5, metrics={METRIC: 0.5}))
    assert trial.state == TrialState.ACTIVE and story.plan.metrics(trial, 5) is None
    story.happen(e.Evaluated(node=second.id, step=5, metrics={METRIC: None}))
    assert trial.state == TrialState.FAILED


@pytest.mark.parametrize(("loss", "says"), [(0.5, True), (None, False)])
def test_equal_repeats_are_remarked_where_they_are_numbers(loss: float | None, says: bool) -> None:
    """Once three repeats without a result got the annotation that their trainer did not read data_seed."""
    story = Story()
    study = story.submit(({"lr": 0.1}, 5), repeats=2)
    for node in story.plan.nodes_of(story.plan.studies[study].trials[0], 5):
        story.happen(e.Evaluated(node=node.id, step=5, metrics={METRIC: loss, "recall": 0.1}))
    remarks = inexact_results.study_inexactness(story.plan, story.plan.studies[study])
    assert any("data_seed" in each for each in remarks) is says


def test_each_repeat_is_trained_by_its_own_seed() -> None:
    story = Story()
    study = story.submit((WSD, 25), repeats={"seeds": 3, "from": "branch"})
    trial = story.plan.studies[study].trials[0]
    frontier = Frontier(story.plan)
    for number, run in enumerate(trial.runs):
        stage = e.Stage(node=run.path[-1], start=21, end=25, study=study)
        hp = base_assignment(frontier, trial, (stage,), None).hp
        assert segment_at(hp, 21).values(21)["data_seed"] == number


def test_the_first_repeat_has_a_seed_on_its_slot_as_the_others_have() -> None:
    """Once it had none: trainers that read `data_seed` failed. `TorchTrainer` fell back to the study's."""
    story = Story()
    study = story.submit(({"lr": 0.1}, 5), repeats=3)
    frontier = Frontier(story.plan)
    works = [[Span(run.path[-1], 0, 5)] for run in story.trial(study).runs]
    hps = [assign(frontier, spans, stages_of(story.plan, spans), 0).hp for spans in works]
    assert hps == [run.hp for run in story.trial(study).runs]
    assert [segment_at(hp, 0).values(0)["data_seed"] for hp in hps] == [0, 1, 2]


def test_a_trials_own_seed_is_refused_beside_repeats() -> None:
    with pytest.raises(SpecError, match="repeats: must be left out where trials have a data_seed"):
        study_of([({"lr": 0.1, "data_seed": 3}, 5)], repeats=2)
    story = Story()
    study = story.submit(({"lr": 0.1}, 5), repeats=2)
    with pytest.raises(Refused, match="data_seed: must be left out"):
        story.give(c.AddTrial(study=study, hp={"lr": 0.1, "data_seed": 1}, steps=5))


@pytest.mark.parametrize(
    "repeats",
    [
        *(0, True, 2.5, "3", None, {"from": "branch"}, {"seeds": 2, "from": -1}, [3], [3, 4]),
        *({"seeds": seeds} for seeds in ([3], [3, 3], [1, "2"], [1, -2], [1, True], [*range(65)])),
    ],
)
def test_invalid_numbers_of_repeats_are_refused(repeats: Any) -> None:
    with pytest.raises(SpecError, match="repeats: must be a number from 1 to 64, or an object"):
        study_of([({"lr": 0.1}, 5)], repeats=repeats)


def test_a_branch_has_repeats_and_its_price_counts_them() -> None:
    simulated = run(study_of([(WSD, 25)], repeats={"seeds": 3, "from": "branch"}))
    tail = {"lr": {"family": "linear", "init": 0.1, "slope": -0.01}}
    command = c.BranchTrial(study=StudyId("study"), trial=0, at=15, hp=tail, steps=20, time=1.0)
    price = price_of(simulated.plan, command, LIMITS)
    assert (price.steps, price.shared, price.new) == (60, 48, 12)
