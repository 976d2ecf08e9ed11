"""Samplers are pure functions of study file and history, respect `where`, and the learning ones beat chance."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from app.api import bodies
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.registry import Catalogue
from app.search.samplers import SAMPLERS, Proposal, Sampler, optuna_sampler, unavailable
from app.search.samplers import listed as qmc
from app.search.samplers.base import Explains
from app.search.tuners import sampler_of
from app.simulation.preview import preview
from stagetree.limits import LIMITS
from stagetree.sequences import SequenceError, parse
from stagetree.spec import SpecError, StudySpec

BY_OPTUNA = ("tpe", "cmaes")
GUIDED = (*BY_OPTUNA, "gp", "trunks")
QUASI = ("sobol", "halton")
SPACE: dict[str, Any] = {
    "lr": {"loguniform": [1e-4, 1.0]},
    "wd": {"family": "exponential", "init": {"uniform": [0, 1]}, "gamma": 0.9},
    "bs": [64, {"family": "values", "values": [64, {"randint": [65, 256]}], "milestones": [5]}],
}


def spec(sampler: str, **fields: Any) -> StudySpec:
    tuner = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "sampler": sampler}
    study = {"name": "x", "trainer": "t", "metric": "m", "mode": "max", "seed": 3, "space": SPACE, "tuner": tuner}
    return StudySpec.from_dict({**study, **fields})


def source(sampler: str, seen: list[TrialEvent] | None = None, **fields: Any) -> Sampler:
    made = sampler_of(spec(sampler, **fields))
    assert made is not None
    for event in seen or ():
        made.observe(event)
    return made


def propose(made: Sampler, number: int) -> Proposal:
    found = made.propose(number)
    assert found is not None
    return found


def start(number: int, proposal: Proposal) -> TrialEvent:
    return TrialEvent(TrialEventKind.START, number, 1, reason={"by": "tuner", **proposal.reason})


def result(number: int, value: float, steps: int = 1) -> TrialEvent:
    return TrialEvent(TrialEventKind.RESULT, number, steps, metrics={"m": value})


def quality(proposal: Proposal) -> float:
    lr, wd = proposal.hp["lr"]["value"], proposal.hp["wd"]["init"]
    return -((math.log10(lr) + 2) ** 2) - (wd - 0.3) ** 2


def story(sampler: str, trials: int, **fields: Any) -> tuple[list[TrialEvent], list[Proposal]]:
    """A history in which results come two proposals late, some are replaced by later ones, and some trials fail."""
    made, seen, proposals = source(sampler, **fields), list[TrialEvent](), list[Proposal]()
    for number in range(trials):
        proposals.append(propose(made, number))
        news = [start(number, proposals[-1])]
        if number >= 2:
            late = number - 2
            news.append(
                TrialEvent(TrialEventKind.FAIL, late, 1) if late % 7 == 5 else result(late, quality(proposals[late]))
            )
        if number % 5 == 4:
            news += [
                TrialEvent(TrialEventKind.PROMOTE, number - 4, 3),
                result(number - 4, quality(proposals[number - 4]) + 0.1, 3),
            ]
        seen += news
        for event in news:
            made.observe(event)
    return seen, proposals


def observe_trial(made: Sampler, number: int, sign: float = 1.0, rungs: Sequence[int] = (1,)) -> None:
    """The sampler proposes a trial, and learns of its results."""
    proposal = propose(made, number)
    made.observe(start(number, proposal))
    for steps in rungs:
        made.observe(result(number, sign * quality(proposal), steps))


def history_before(seen: list[TrialEvent], number: int) -> list[TrialEvent]:
    """The history as it was when configuration `number` was proposed."""
    return seen[
        : next(at for at, event in enumerate(seen) if event.kind == TrialEventKind.START and event.trial == number)
    ]


# ---------------------------------------------------------------------------------------------------------- all of them


@pytest.mark.slow
@pytest.mark.parametrize("sampler", [*GUIDED, *QUASI, "random"])
def test_a_proposal_is_a_function_of_seed_and_history(sampler: str) -> None:
    trials = 24
    seen, proposals = story(sampler, trials)
    for number in (trials // 2, trials - 1):
        again = source(sampler, history_before(seen, number))
        assert propose(again, number) == proposals[number]
        assert propose(again, number) == proposals[number]
    assert propose(source(sampler, seed=4), 0) != proposals[0]


@pytest.mark.parametrize("sampler", [*GUIDED, *QUASI])
def test_where_is_respected(sampler: str) -> None:
    where = "lr < 0.05 and bs == 64"
    last = 11
    seen, proposals = story(sampler, last + 1, where=where)
    space = spec(sampler, where=where).search_space
    for proposal in proposals:
        assert space.allows({name: parse(value) for name, value in proposal.hp.items()})
    assert propose(source(sampler, history_before(seen, last), where=where), last) == proposals[last]


@pytest.mark.parametrize("sampler", [*GUIDED, *QUASI])
def test_recorded_choices_are_json_and_rebuild_the_configuration(sampler: str) -> None:
    proposal = propose(source(sampler), 0)
    assert json.loads(json.dumps(proposal.reason)) == proposal.reason
    assert json.loads(json.dumps(proposal.hp)) == proposal.hp
    if sampler in GUIDED:
        built = spec(sampler).search_space.build(proposal.reason["sample"])
        assert {name: sequence.to_json() for name, sequence in built.items()} == proposal.hp


@pytest.mark.parametrize("sampler", [*GUIDED, *QUASI])
def test_a_space_without_a_choice_has_one_configuration(sampler: str) -> None:
    tuner = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "sampler": sampler, "distinct": False}
    made = source(sampler, space={"lr": 0.1, "bs": [64]}, tuner=tuner)
    assert (
        propose(made, 0).hp
        == propose(made, 1).hp
        == {name: parse(v).to_json() for name, v in (("lr", 0.1), ("bs", 64))}
    )


# ---------------------------------------------------------------------------------------------------------------- quasi


@pytest.mark.parametrize("sampler", QUASI)
def test_points_fill_the_space_evenly(sampler: str) -> None:
    made = source(sampler, space={"a": {"uniform": [0, 1]}, "b": {"uniform": [0, 1]}})
    points = [propose(made, number).hp for number in range(64)]
    cells = {tuple(int(point[name]["value"] * 4) for name in "ab") for point in points}
    assert len(cells) == 16
    for name in "ab":
        halves = sum(point[name]["value"] < 0.5 for point in points)
        assert abs(halves - 32) <= 1


@pytest.mark.parametrize("sampler", QUASI)
def test_points_do_not_depend_on_the_order_of_requests(sampler: str) -> None:
    one, other = source(sampler), source(sampler)
    forwards = [propose(one, number) for number in range(100)]
    assert [propose(other, number) for number in reversed(range(100))][::-1] == forwards


@pytest.mark.parametrize("sampler", QUASI)
def test_a_space_without_an_allowed_point_raises(sampler: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(qmc, "ATTEMPTS", 50)
    study = spec(sampler)
    study.__dict__["search_space"] = type(study.search_space)(SPACE, lambda configuration: False)
    with pytest.raises(SequenceError, match="none of 50 points"):
        SAMPLERS[sampler](study).propose(0)


# -------------------------------------------------------------------------------------------------------------- guided


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["tpe", "gp"])
def test_it_learns_within_a_few_trials(sampler: str) -> None:
    """The later half is better, although a third of it is random."""
    _, proposals = story(sampler, 14 if sampler == "gp" else 60)
    found, half = list(map(quality, proposals)), len(proposals) // 2
    assert sum(found[half:]) / half > sum(found[:half]) / half + 0.3


def test_gp_learns_from_four_results() -> None:
    """Ten results were too many: the model proposed only two of twelve trials."""

    def proposal_after(results: int, sign: float) -> Proposal:
        made = source("gp")
        for number in range(results):
            observe_trial(made, number, sign)
        return propose(made, results)

    assert proposal_after(3, 1.0) == proposal_after(3, -1.0)
    assert proposal_after(4, 1.0) != proposal_after(4, -1.0)


@pytest.mark.parametrize("sampler", ["gp", "trunks"])
@pytest.mark.parametrize(("trials", "enough"), [(60, 12), (27, 9), (9, 4)])
def test_where_trials_are_stopped_a_model_needs_three_results_of_each_parameter(
    sampler: str, trials: int, enough: int
) -> None:
    """Or a third of all trials. With four, a search of eight parameters stayed near the first one that learned."""
    tuner = {"kind": "asha", "num_trials": trials, "min_steps": 1, "max_steps": 9, "sampler": sampler}

    def proposals_after(results: int, rungs: Sequence[int], sign: float) -> list[Mapping[str, Any]]:
        made = source(sampler, tuner=tuner)
        for number in range(results):
            observe_trial(made, number, sign, rungs)
        assert isinstance(made, Explains) and made.knowledge().enough == (enough if len(rungs) > 1 else 4)
        return [propose(made, number).hp for number in range(results, results + 10)]

    assert proposals_after(enough - 1, [1, 3], 1.0) == proposals_after(enough - 1, [1, 3], -1.0)
    assert proposals_after(enough, [1, 3], 1.0) != proposals_after(enough, [1, 3], -1.0)
    assert proposals_after(4, [1], 1.0) != proposals_after(4, [1], -1.0)


@pytest.mark.parametrize(("sampler", "trials"), [("gp", 4), ("trunks", 4), ("tpe", 12)])
def test_a_third_is_random_where_trials_are_stopped_early(sampler: str, trials: int) -> None:
    """Once a search proposed sixteen nearly equal trials, which were all stopped at the first rung."""

    def proposals(rungs: Sequence[int], sign: float, count: int) -> list[Mapping[str, Any]]:
        made: Any = source(sampler)
        made.learn([({"lr": 0.01, "wd.init": 0.5, "bs": 0}, {1: 0.1, 3: 0.2})])  # for a study that stopped trials
        for number in range(trials):
            observe_trial(made, number, sign, rungs)
        return [propose(made, number).hp for number in range(trials, trials + count)]

    def same_whatever_came_before(rungs: Sequence[int], count: int) -> int:
        good, bad = (proposals(rungs, sign, count) for sign in (1.0, -1.0))
        return sum(one == other for one, other in zip(good, bad, strict=True))

    assert same_whatever_came_before([1], 10) == 0
    assert 5 <= same_whatever_came_before([1, 3], 30) <= 15


def test_cma_es_learns_over_its_generations() -> None:
    space = {name: {"uniform": [0, 1]} for name in "ab"}
    made, mistakes = source("cmaes", space=space, mode="min"), list[float]()
    for number in range(120):
        proposal = propose(made, number)
        mistakes.append(sum((value - 0.8) ** 2 for value in proposal.reason["sample"].values()))
        made.observe(start(number, proposal))
        made.observe(result(number, mistakes[-1]))
    assert sum(mistakes[-12:]) < sum(mistakes[:12]) / 10


def _optuna_trials(seen: list[TrialEvent], sampler: str = "tpe") -> dict[int, tuple[str, float | None]]:
    """Optuna's trials, by our trial numbers."""
    tuner = asha_tuner(sampler) | ({"per_rung": False} if sampler == "tpe" else {})
    told = optuna_sampler.OptunaMirror(spec(sampler, tuner=tuner), sampler)
    told.catch_up(seen)
    known = told.study.get_trials()
    return {trial: (known[number].state.name, known[number].value) for trial, number in told.numbers.items()}


@pytest.mark.parametrize("sampler", ["tpe", "cmaes"])
def test_optuna_is_told_all_results(sampler: str) -> None:
    made = source("tpe")
    seen = [start(number, propose(made, number)) for number in range(6)]
    seen += [
        result(0, 0.5),
        result(0, 0.7, 3),
        TrialEvent(TrialEventKind.FAIL, 1, 1),
        TrialEvent(TrialEventKind.STOP, 2, 1),
        result(3, 0.4),
    ]
    seen += [TrialEvent(TrialEventKind.CANCEL, 3, 1), result(4, 0.9), TrialEvent(TrialEventKind.FAIL, 4, 3)]
    highest = {0: ("COMPLETE", 0.7), 4: ("FAIL", None)}
    first = {0: ("COMPLETE", 0.5), 4: ("COMPLETE", 0.9)}
    others = {1: ("FAIL", None), 2: ("FAIL", None), 3: ("COMPLETE", 0.4), 5: ("RUNNING", None)}
    expected = {**others, **(first if sampler == "cmaes" else highest)}
    assert _optuna_trials(seen, sampler) == expected


def test_trials_of_other_sources_are_not_told() -> None:
    seen = [
        TrialEvent(TrialEventKind.START, 0, 1, reason={"by": "tuner"}),
        result(0, 0.5),
        start(1, propose(source("tpe"), 1)),
    ]
    assert _optuna_trials(seen) == {1: ("RUNNING", None)}


def test_a_proposal_that_came_to_nothing_leaves_no_trace() -> None:
    seen, proposals = story("cmaes", 12)
    made = source("cmaes", history_before(seen, 8))
    propose(made, 8)
    for event in [more := result(7, 0.1), *seen[len(history_before(seen, 8)) :]]:
        made.observe(event)
    assert propose(made, 12) == propose(
        source("cmaes", [*history_before(seen, 8), more, *seen[len(history_before(seen, 8)) :]]), 12
    )
    assert len(proposals) == 12


def test_random_sampling_takes_over_after_refused_proposals(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optuna_sampler, "ATTEMPTS", 2)
    where = "lr < 0.0003"
    seen, proposals = story("tpe", 12, where=where)
    assert any(proposal.reason["asked"] == 2 for proposal in proposals)
    assert all(proposal.reason["sample"]["lr"] < 0.0003 for proposal in proposals)
    assert propose(source("tpe", history_before(seen, 11), where=where), 11) == proposals[11]


# ------------------------------------------------------------------------------------------------------- without Optuna


@pytest.fixture
def no_optuna(monkeypatch: pytest.MonkeyPatch) -> None:
    from app.search import samplers

    monkeypatch.setattr(samplers, "find_spec", lambda name: None)
    monkeypatch.setitem(__import__("sys").modules, "optuna", None)
    optuna_sampler.load_optuna.cache_clear()


@pytest.mark.usefixtures("no_optuna")
@pytest.mark.parametrize("sampler", BY_OPTUNA)
def test_a_server_without_optuna_says_so_at_once(sampler: str, tmp_path: Path) -> None:
    sentence = f"must be another one on this server, since {sampler} needs Optuna: pip install 'stagetree[optuna]'"
    assert unavailable(spec(sampler)) == sentence
    path = tmp_path / "trainer.py"
    path.write_text("from stagetree import Trainer\nclass T(Trainer):\n    name = 't'\n")
    with pytest.raises(SpecError) as refused:
        bodies.parse_study(spec(sampler).to_json(), Catalogue([str(path)]), LIMITS)
    assert [(problem.field, problem.problem) for problem in refused.value.problems] == [("tuner.sampler", sentence)]
    with pytest.raises(RuntimeError, match=r"pip install 'stagetree\[optuna\]'$"):
        source(sampler).propose(0)


@pytest.mark.usefixtures("no_optuna")
def test_studies_without_proposals_need_no_optuna() -> None:
    made = source("tpe", [TrialEvent(TrialEventKind.START, 0, 1, reason={"sample": {}, "asked": 1}), result(0, 0.5)])
    assert made.size() is None
    assert unavailable(spec("sobol")) is None
    assert preview(spec("tpe"), slots=1)["trials"] == 9


# --------------------------------------------------------------------------------------------------- known ones first

KNOWN = [{"lr": 0.01, "wd": {"family": "exponential", "init": 0.3, "gamma": 0.9}, "bs": 64}]


@pytest.mark.parametrize("sampler", [each for each in SAMPLERS if each != "grid"])
def test_known_trials_come_first_and_change_no_later_random_sample(sampler: str) -> None:
    tuner = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "sampler": sampler}
    with_known, without = source(sampler, tuner={**tuner, "first": KNOWN}), source(sampler)
    first = propose(with_known, 0)
    assert first.hp["lr"]["value"] == 0.01 and first.hp["bs"]["value"] == 64
    assert first.reason["first"] == 0
    if sampler not in GUIDED:
        assert propose(with_known, 1).hp == propose(without, 0).hp


@pytest.mark.parametrize("sampler", BY_OPTUNA)
def test_learning_samplers_use_known_trials(sampler: str) -> None:
    tuner = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "sampler": sampler}
    known = [{**KNOWN[0], "lr": 0.01 * (1 + n / 100)} for n in range(40)]
    made = source(sampler, tuner={**tuner, "num_trials": 60, "first": known})
    for number in range(40):
        observe_trial(made, number)
    learned = propose(made, 40)
    assert learned.reason["asked"] >= 1 and "sample" in learned.reason
    mirror = made.then.mirror  # type: ignore[attr-defined]
    assert [trial.value for trial in mirror.study.trials[:40]] == [quality(propose(made, n)) for n in range(40)]


def test_known_trials_outside_the_space_run() -> None:
    tuner = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "sampler": "tpe"}
    made = source("tpe", tuner={**tuner, "first": [{**KNOWN[0], "lr": 5.0}]})
    proposal = propose(made, 0)
    assert proposal.hp["lr"]["value"] == 5.0 and "sample" not in proposal.reason
    made.observe(start(0, proposal))
    made.observe(result(0, 1.0))
    assert "sample" in propose(made, 1).reason


def test_tpe_models_each_parameter_by_itself() -> None:
    """Optuna's default, a joint model, is worse on recorded curves: benchmarks/search.py."""
    seen, _ = story("tpe", 15)
    told = optuna_sampler.OptunaMirror(spec("tpe"), "tpe")
    told.catch_up(seen)
    told.ask("next")
    assert told.open is not None and told.open.relative_params == {}


# ------------------------------------------------------------------------------------------------ a model for each rung


def asha_tuner(sampler: str = "tpe") -> dict[str, Any]:
    return {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "sampler": sampler}


def results_in_model(mirror: optuna_sampler.OptunaMirror) -> list[float]:
    return [trial.value for trial in mirror.study.trials if trial.state.name == "COMPLETE"]


def test_results_of_one_rung_are_in_one_model() -> None:
    """Twelve trials reach the first rung, then more and more of them the second, where all results are better."""
    seen, proposals = list[TrialEvent](), source("random")
    for number in range(12):
        sample = {"lr": 0.01 * (number + 1), "wd.init": 0.5, "bs": 0}
        event = start(number, Proposal(propose(proposals, number).hp, {"sample": sample, "asked": 0}))
        seen += [event, result(number, float(number))]
    by_rung = asha_tuner() | {"per_rung": True}
    told = optuna_sampler.OptunaMirror(spec("tpe", tuner=by_rung), "tpe")
    for number in range(10):
        seen.append(result(number, 100.0 + number, 3))
        told.catch_up(seen)
        if number < 9:
            assert told.level == 1 and results_in_model(told) == [float(each) for each in range(12)], (
                "a promotion changes nothing"
            )
    assert told.level == 3 and results_in_model(told) == [100.0 + each for each in range(10)]
    at_once = optuna_sampler.OptunaMirror(spec("tpe", tuner=by_rung), "tpe")
    at_once.catch_up(seen)
    assert results_in_model(at_once) == results_in_model(told)
    in_one = optuna_sampler.OptunaMirror(spec("tpe", tuner=asha_tuner() | {"per_rung": False}), "tpe")
    in_one.catch_up(seen)
    assert results_in_model(in_one) == [*(100.0 + each for each in range(10)), 10.0, 11.0]


def test_every_result_counts_for_tpe_by_the_steps_reached_and_the_value_there() -> None:
    """So a trial that was stopped early counts as a bad one, and a failed one as the worst."""
    made = source("tpe")
    seen = [start(number, propose(made, number)) for number in range(5)]
    seen += [result(0, 0.9), result(1, 0.5), result(1, 0.4, 9), result(2, 0.3), result(2, 0.2, 3)]
    seen += [TrialEvent(TrialEventKind.STOP, 0, 1), TrialEvent(TrialEventKind.FAIL, 3, 1)]
    told = optuna_sampler.OptunaMirror(spec("tpe", tuner=asha_tuner()), "tpe")
    told.catch_up(seen)
    trials = [told.study.trials[number] for number in told.numbers.values()]
    assert [trial.state.name for trial in trials] == ["PRUNED", "COMPLETE", "PRUNED", "PRUNED", "RUNNING"]
    assert [trial.intermediate_values for trial in trials] == [{1: 0.9}, {}, {3: 0.2}, {}, {}]
    assert (trials[1].value, told.level, told.results()) == (0.4, None, 4)


@pytest.mark.parametrize(("sampler", "fields"), [("tpe", {}), ("tpe", {"per_rung": True}), ("gp", {})])
def test_a_proposal_is_a_function_of_history_at_any_rung(sampler: str, fields: dict[str, Any]) -> None:
    tuner = asha_tuner(sampler) | fields
    seen, proposals = story(sampler, 16, tuner=tuner)
    for number in (9, 15):
        assert propose(source(sampler, history_before(seen, number), tuner=tuner), number) == proposals[number]


def test_per_rung_is_refused_for_other_samplers() -> None:
    with pytest.raises(SpecError, match=r"per_rung: must be left out for random: it is of the sampler tpe"):
        spec("random", tuner=asha_tuner("random") | {"per_rung": True})
