"""Stopping rules, worked out by hand from their papers."""

from __future__ import annotations

from typing import Any

import pytest

from app.domain.commands import Extend, Stop
from app.search.tuners.stopping import every
from tests.tuners.worlds import Table, spec

ASHA = {"kind": "asha", "type": "stopping", "num_trials": 9, "min_steps": 1, "max_steps": 9, "eta": 3}
MEDIAN = {"kind": "median", "num_trials": 9, "max_steps": 30, "interval": 10}
BANDIT = {"kind": "bandit", "num_trials": 9, "max_steps": 30}


def start_trials(tuner: dict[str, Any], trials: int, **fields: Any) -> Table:
    table = Table(tuner, **fields)
    for _ in range(trials):
        table.ask()
    return table


def verdict(table: Table, trial: int, loss: float) -> str:
    """What becomes of a trial after this result: "on", "stop", or "end" when it is at its last step."""
    table.result(trial, loss)
    action = table.tuner.suggest()
    if not isinstance(action, Extend | Stop):
        return "end"
    assert action.trial == trial
    table.ask()
    return "on" if isinstance(action, Extend) else "stop"


def test_asha_lets_the_top_third_on_at_once_and_always_the_best() -> None:
    table = start_trials(ASHA, 9)
    assert verdict(table, 0, 0.5) == "on"  # of 1: one place, at least
    assert verdict(table, 1, 0.6) == "stop"  # of 2
    assert verdict(table, 2, 0.5) == "stop"  # of 3, equal to the first: the earlier trial is better
    table.fail(3)  # counts, as the worst
    assert verdict(table, 4, 0.4) == "on"  # of 5
    assert verdict(table, 5, 0.5) == "stop"  # of 6, two places: 4 and 0
    assert verdict(table, 6, 0.45) == "on"
    assert table.steps[0] == table.steps[4] == table.steps[6] == 3
    assert verdict(table, 6, 0.3) == "on"
    assert verdict(table, 6, 0.2) == "end"
    assert table.tuner.suggest() is None


def test_asha_gives_its_reasons() -> None:
    table = start_trials(ASHA, 3)
    table.result(2, 0.5)
    reason = {"rank": 1, "cut": 1, "of": 1, "loss": 0.5}
    assert table.ask() == Extend(trial=2, steps=3, reason={"rung": 1, **reason})
    table.result(0, 0.75)
    assert table.ask() == Stop(trial=0, reason={"rung": 0, "rank": 2, "cut": 1, "of": 2, "loss": 0.75})


def test_decisions_come_before_new_trials_oldest_first() -> None:
    table = start_trials(ASHA, 3)
    for trial in (1, 0):
        table.result(trial, 0.5)
    table.cancel(0)
    assert [type(action).__name__ for action in table.ask_all()] == ["Extend"] + ["NewTrial"] * 6
    assert table.log[3] == ("promote", 1, 3)


def test_a_failure_on_the_way_is_no_decision() -> None:
    table = start_trials(ASHA, 9)
    for trial in range(9):
        table.fail(trial)
    assert table.ask() is None


# -------------------------------------------------------------------------------------------------------------- median


def test_the_best_so_far_against_the_median_of_running_averages() -> None:
    """Golovin et al. 2017: averages of what the others reported up to the same step."""
    table = start_trials(MEDIAN, 5)
    for trial, loss in enumerate([0.5, 0.7, 0.9]):
        assert verdict(table, trial, loss) == "on"  # fewer than three others
    assert verdict(table, 3, 0.7) == "on"  # the median is 0.7, and it is no worse
    assert verdict(table, 4, 0.75) == "stop"  # the median of 0.5, 0.7, 0.7, 0.9 is 0.7
    for trial, loss in enumerate([0.1, 0.1, 0.7]):
        assert verdict(table, trial, loss) == "on"  # averages at step 20: 0.3, 0.4, 0.8
    assert verdict(table, 3, 0.9) == "stop"  # its best, 0.7, is worse than 0.4


def test_the_best_counts_even_if_it_is_long_ago() -> None:
    table = start_trials(MEDIAN | {"min_trials": 1}, 2)
    assert verdict(table, 0, 0.5) == "on"
    assert verdict(table, 1, 0.3) == "on"
    assert verdict(table, 0, 0.5) == "on"
    assert verdict(table, 1, 0.9) == "on"  # its best, 0.3, is better than the other's average, 0.5
    assert verdict(table, 1, 0.9) == "end"


def test_no_trial_is_stopped_before_min_steps() -> None:
    table = start_trials(MEDIAN | {"grace_period": 20, "min_trials": 1}, 2)
    assert [verdict(table, 0, 0.1), verdict(table, 1, 0.9)] == ["on", "on"]
    assert [verdict(table, 0, 0.1), verdict(table, 1, 0.9)] == ["on", "stop"]


def test_failed_trials_count_as_the_worst_in_the_median() -> None:
    table = start_trials(MEDIAN | {"min_trials": 2}, 5)
    table.fail(0)
    table.fail(1)
    assert verdict(table, 2, 9.0) == "on"
    assert table.tuner.suggest() == table.tuner.suggest()
    assert verdict(table, 3, 9.5) == "on"  # the median of 9 and two failures is a failure
    assert verdict(table, 4, 9.6) == "on"  # 9, 9.5 and two failures: the upper middle one failed


def test_median_of_accuracies() -> None:
    table = Table(MEDIAN | {"min_trials": 1}, mode="max")
    table.ask_all()
    assert [verdict(table, 0, 0.8), verdict(table, 1, 0.9), verdict(table, 2, 0.7)] == ["on", "on", "stop"]
    table.result(3, 0.6)
    assert table.ask() == Stop(trial=3, reason={"rung": 0, "of": 3, "best": 0.6, "median": 0.8})


@pytest.mark.parametrize("value", [0.1, 0.3, 1 / 3, 0.7, 0.9])
@pytest.mark.parametrize("mode", ["min", "max"])
def test_the_median_rule_stops_no_trial_that_is_equal_to_all_others(mode: str, value: float) -> None:
    """The average of three times 0.1 is 0.1, not 0.10000000000000002."""
    table = Table({"kind": "median", "num_trials": 10, "max_steps": 12, "interval": 1}, mode=mode)
    table.ask_all()
    for _ in range(11):
        assert {verdict(table, trial, value) for trial in range(10)} == {"on"}


def test_decision_points_of_the_median_are_those_of_eval_every() -> None:
    table = Table({"kind": "median", "num_trials": 2, "max_steps": 9}, eval_every=4)
    assert list(table.tuner.points) == [4, 8, 9]  # type: ignore[attr-defined]
    assert every(10, 30) == [10, 20, 30]
    assert every(10, 7) == [7]


# -------------------------------------------------------------------------------------------------------------- bandit


def test_the_defaults_of_hyperdrive() -> None:
    found = spec(BANDIT).tuner
    assert (found.epsilon, found.interval) == (0.5, 10)  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("mode", "best", "other", "outcome"),
    [
        ("max", 0.6, 0.41, "on"),  # 0.41 * 1.5 = 0.615 > 0.6
        ("max", 0.6, 0.4, "on"),  # 0.4 * 1.5 = 0.6000000000000001
        ("max", 0.75, 0.5, "stop"),  # 0.5 * 1.5 is not more than 0.75
        ("max", 0.6, 0.0, "stop"),
        ("max", -100.0, -140.0, "on"),  # a reward: 100 * 1.5 > 140
        ("max", -100.0, -150.0, "stop"),
        ("max", 1.0, -0.1, "stop"),
        ("min", 0.5, 0.74, "on"),
        ("min", 0.5, 0.75, "stop"),
        ("min", 0.0, 0.1, "stop"),
        ("min", 0.0, 0.0, "on"),
    ],
)
def test_bandit(mode: str, best: float, other: float, outcome: str) -> None:
    table = start_trials(BANDIT, 2, mode=mode)
    assert verdict(table, 0, best) == "on"
    assert verdict(table, 1, other) == outcome


def test_bandit_compares_the_best_of_each_at_any_step() -> None:
    table = start_trials(BANDIT, 2, mode="max")
    assert [verdict(table, 0, 0.5), verdict(table, 0, 0.8)] == ["on", "on"]
    assert verdict(table, 1, 0.6) == "on"
    table.result(0, 0.9)  # its last step
    table.result(1, 0.1)
    assert table.ask() == Stop(trial=1, reason={"rung": 1, "best": 0.6, "best_of_all": 0.9})
