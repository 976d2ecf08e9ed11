"""Figures and defaults as printed in the papers: SHA and ASHA (Li et al. 2020), Hyperband (Li et al. 2018)."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain import commands as c
from app.domain.search_plan import Study
from app.search.tuners import tuner_of
from app.search.tuners.hyperband import AsyncHyperband, Hyperband
from stagetree.spec import StudySpec
from stagetree.spec.tuners import KINDS, AshaTuner, AsyncHyperbandTuner
from stagetree.spec.tuners.halving import bracket_sizes, rung_steps
from tests.tuners.worlds import STUDY, run_simulator, simulator, spec, trials_at

FIGURE_1 = {"num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3}


def simulate(study: StudySpec, **options: Any) -> Study:
    return run_simulator(study, **options).plan.studies[STUDY]


def tuner(kind: str, **fields: Any) -> Any:
    return tuner_of(spec({"kind": kind, **fields}))


@pytest.mark.parametrize("kind", ["sha", "asha"])
@pytest.mark.parametrize(
    ("bracket", "table"), [(0, [(9, 1, 9), (3, 3, 9), (1, 9, 9)]), (1, [(9, 3, 27), (3, 9, 27)]), (2, [(9, 9, 81)])]
)
def test_figure_1(kind: str, bracket: int, table: list[tuple[int, int, int]]) -> None:
    """n = 9, r = 1, R = 9, eta = 3: rung by rung n_i, r_i and the total budget n_i * r_i, for each bracket s.

    With one slot, ASHA that has seen all nine has promoted as many; early wrong promotions would only add to it, and
    there are none where each result is better than those before.
    """
    study = spec({"kind": kind, "early_stopping_rate": bracket, **FIGURE_1})
    falling = simulator(study, slots=1, measure=lambda node, step: {"loss": 1.0})  # ties: the first trials are promoted
    falling.run()
    found = falling.plan.studies[STUDY]
    assert [(trials_at(found, steps), steps, trials_at(found, steps) * steps) for _, steps, _ in table] == table
    assert len(found.trials) == 9
    assert {trial.steps for trial in found.trials} <= {steps for _, steps, _ in table}


def test_a_bracket_that_cannot_reach_the_top_is_refused() -> None:
    """Algorithm 1 asserts n >= eta^(s_max - s)."""
    with pytest.raises(ValueError, match="num_trials: must be at least 9, so that one is trained for max_steps, got 8"):
        spec({"kind": "sha", **FIGURE_1, "num_trials": 8})
    spec({"kind": "sha", **FIGURE_1, "num_trials": 8, "early_stopping_rate": 1})


def test_hyperband_by_its_table() -> None:
    """Li et al. 2018, Table 1: R = 81, eta = 3, (n_i, r_i) for s = 4, 3, 2, 1, 0."""
    printed = [
        [(81, 1), (27, 3), (9, 9), (3, 27), (1, 81)],
        [(34, 3), (11, 9), (3, 27), (1, 81)],
        [(15, 9), (5, 27), (1, 81)],
        [(8, 27), (2, 81)],
        [(5, 81)],
    ]
    study = simulate(spec({"kind": "hyperband", "max_steps": 81}), slots=7)
    for number, rungs in enumerate(printed):
        members = [trial for trial in study.trials if trial.reason["bracket"] == number]
        asked = [(sum(steps in trial.requested_steps for trial in members), steps) for _, steps in rungs]
        assert asked == rungs


def test_defaults_of_section_5_1() -> None:
    assert AshaTuner(num_trials=1, min_steps=1).reduction_factor == 4
    default = AsyncHyperbandTuner(num_trials=1, max_steps=256)
    assert (default.reduction_factor, default.brackets) == (4, 3)
    found = tuner("async_hyperband", num_trials=1000, max_steps=256)
    assert isinstance(found, AsyncHyperband)
    assert [bracket.steps for bracket in found.brackets] == [[1, 4, 16, 64, 256], [4, 16, 64, 256], [16, 64, 256]]


def test_shares_of_section_5_1() -> None:
    """Averages of 5/256, 4/64 and 3/16 of R a configuration; printed as 70.5, 22.1 and 7.1 %, which adds up to 99.7."""
    inverse = [256 / 5, 64 / 4, 16 / 3]
    percent = [100 * share / sum(inverse) for share in inverse]
    assert percent == pytest.approx([70.5, 22.1, 7.1], abs=0.3)
    assert bracket_sizes(1000, 5, 4, 3) == [706, 221, 73]


@pytest.mark.parametrize("trials", range(1, 12))
def test_few_trials_are_shared_out_whole_and_the_first_bracket_comes_first(trials: int) -> None:
    found = bracket_sizes(trials, 5, 4, 3)
    assert sum(found) == trials
    assert found[0] >= found[1] >= found[2] >= 0 and found[0] > 0


@pytest.mark.parametrize("most", [10, 81, 100, 300, 1000, 30000])
def test_there_are_at_most_five_rungs_by_default_and_the_highest_is_max_steps(most: int) -> None:
    for bracket in tuner("async_hyperband", num_trials=9, max_steps=most).brackets:
        assert len(bracket.steps) <= 5
        assert bracket.steps[-1] == most
        assert bracket.steps == sorted(set(bracket.steps))


def test_every_bracket_of_hyperband_reaches_max_steps_where_it_is_no_power() -> None:
    found = tuner("hyperband", min_steps=1, max_steps=10)
    assert isinstance(found, Hyperband)
    assert [bracket.steps for bracket in found.brackets] == [[1, 3, 10], [3, 10], [10]]
    study = simulate(spec({"kind": "hyperband", "min_steps": 1, "max_steps": 10}))
    assert {trial.reason["bracket"] for trial in study.trials if trial.steps == 10} == {0, 1, 2}


def test_rungs_between_powers() -> None:
    """min 15, max 120, reduction 4: the settings of the TreeML thesis, Table 6.2."""
    assert rung_steps(15, 120, 4) == [15, 60, 120]
    assert rung_steps(1, 9, 3, early_stopping_rate=2) == [9]
    assert rung_steps(6, 6, 4) == [6]
    assert rung_steps(1, None, 4)[:5] == [1, 4, 16, 64, 256]


@pytest.mark.parametrize(("rungs", "eta", "brackets"), [(5, 4, 3), (4, 3, 4), (4, 2, 3), (6, 3, 5)])
def test_no_bracket_loses_a_trial_when_there_are_more(rungs: int, eta: int, brackets: int) -> None:
    """Shares that compare remainders do: of 6 trials one bracket has 1, of 7 it has none (the Alabama paradox)."""
    inverse = [eta ** (rungs - 1 - s) / (rungs - s) for s in range(brackets)]
    before = [0] * brackets
    for trials in range(1, 400):
        after = bracket_sizes(trials, rungs, eta, brackets)
        assert sum(after) == trials and all(map(int.__ge__, after, before))
        exact = [trials * share / sum(inverse) for share in inverse]
        assert all(abs(mine - share) < 1 for mine, share in zip(after, exact, strict=True))
        before = after


def test_a_reopened_async_hyperband_starts_as_many_as_it_is_told() -> None:
    tuner = {"kind": "async_hyperband", "num_trials": 6, "max_steps": 27, "min_steps": 1, "eta": 3, "brackets": 4}
    world = run_simulator(spec(tuner))
    world.give(c.ReopenStudy(study=STUDY, trials=7, at=0.0))
    world.run()
    assert len(world.plan.studies[STUDY].trials) == 7


def test_asha_in_brackets_is_asynchronous_hyperband() -> None:
    fields = {"num_trials": 40, "max_steps": 64, "reduction_factor": 4, "brackets": 3, "min_steps": 1}
    one, other = tuner("asha", **fields), tuner("async_hyperband", **fields)
    assert (one.widths, [b.steps for b in one.brackets]) == (other.widths, [b.steps for b in other.brackets])
    assert [b.steps for b in tuner("asha", **{**fields, "min_steps": 3}).brackets] == [
        [3, 12, 48, 64],
        [12, 48, 64],
        [48, 64],
    ]


def test_hyperband_can_be_looped() -> None:
    once = simulate(spec({"kind": "hyperband", "max_steps": 9}), slots=7)
    twice = run_simulator(spec({"kind": "hyperband", "max_steps": 9, "loops": 2}), slots=7).plan.studies[STUDY]
    assert len(twice.trials) == 2 * len(once.trials)
    half = len(once.history)
    assert twice.history[:half] == once.history, "the second loop begins when the first is over"
    assert {trial.reason["bracket"] for trial in twice.trials[len(once.trials) :]} == {3, 4, 5}


@pytest.mark.parametrize("fields", [{"sampler": "random"}, {"sampler": "sobol"}, {"sampler": "halton"}])
@pytest.mark.parametrize("kind", ["sha", "asha", "hyperband", "pbt", "random"])
def test_a_sampling_seed_draws_and_no_other(kind: str, fields: dict[str, Any]) -> None:
    sizes = {"num_trials": 9, "population_size": 4, "min_steps": 1, "max_steps": 9, "ready_steps": 3}
    sizes |= {"reduction_factor": 3}
    known = set(KINDS[kind].model_fields)

    def configurations(seed: int, sampling_seed: int | None) -> list[Any]:
        given = {name: value for name, value in sizes.items() if name in known}
        own = {} if sampling_seed is None else {"sampling_seed": sampling_seed}
        sampler = {} if kind == "random" else fields
        return [trial.hp for trial in simulate(spec({"kind": kind, **given, **sampler, **own}, seed=seed)).trials]

    assert configurations(1, 7) == configurations(2, 7)
    assert configurations(1, 7) != configurations(1, 8)
    assert configurations(7, None) == configurations(1, 7)
