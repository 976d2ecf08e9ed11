"""On recorded curves: `pop` is no later than by rank, and the p that it shows no worse than the last value."""

from __future__ import annotations

import gzip
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from app.domain import events as e
from app.search.tuners.promising import NEAR
from app.simulation.traces import Player, Workload, read

BENCHMARKS = Path(__file__).parent.parent.parent / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
from proven import Begun  # noqa: E402

RECORDED = ("charlm", "digits")


@cache
def load_workload(name: str) -> Workload:
    """A loss of 60 configurations that stands still for long, or an accuracy of 100; 40 steps each."""
    with gzip.open(BENCHMARKS / "data" / f"{name}.jsonl.gz", "rt") as lines:
        workload = read(lines)
    return workload.select(map(int, np.random.default_rng(0).permutation(len(workload.traces))))


@cache
def play(name: str, **tuner: Any) -> Player:
    """The study from beginning to end. A target is what three configurations in a hundred reach."""
    workload = load_workload(name)
    best = sorted((workload.best(trace) for trace in workload.traces), reverse=workload.mode == "max")
    target = best[round(0.03 * len(best)) - 1]
    asked = {"kind": "pop", "num_trials": len(best), "max_steps": workload.max_steps, "boundary": 4} | tuner
    if asked.pop("is_told"):
        asked["target"] = target
    player = Player(workload, asked, slots=5, target=target, eval_every=4)
    player.simulator.run()
    return player


def shown_forecasts(name: str, player: Player) -> Iterator[tuple[float, bool, bool]]:
    """Each p that was shown, whether the trial was at its target, and whether it would have come there."""
    workload, seen = load_workload(name), set[tuple[int, int]]()
    for event in player.simulator.events:
        if not isinstance(event, e.TrialPrioritized | e.TrialStopped) or not event.reason.get("proven"):
            continue
        trace, step, target = workload.traces[event.trial], int(event.reason["steps"]), event.reason["target"]
        if (event.trial, step) not in seen:
            seen.add((event.trial, step))
            came = any(workload.is_reached(trace.value(later), target) for later in trace.steps if later > step)
            yield float(event.reason["p"]), workload.is_reached(trace.value(step), target), came


def brier(said: npt.ArrayLike, came: npt.ArrayLike) -> float:
    return float(np.mean((np.asarray(said, float) - np.asarray(came, float)) ** 2))


@pytest.mark.slow
@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("is_told", [True, pytest.param(False, marks=pytest.mark.night)])
def test_pop_is_no_later_than_by_rank(name: str, is_told: bool) -> None:
    pop, rank = (play(name, is_told=is_told, lower_bound=least) for least in (0.05, 0.0))
    assert pop.reached_at <= rank.reached_at < np.inf
    assert pop.simulator.now <= rank.simulator.now


@pytest.mark.slow
@pytest.mark.parametrize("least", [0.05, pytest.param(0.0, marks=pytest.mark.night)])
def test_the_p_that_is_shown_is_no_worse_than_the_last_value(least: float) -> None:
    """Over all recorded curves: of one study alone, few trials come true, and the scores are mostly of their luck."""
    judged = [each for name in RECORDED for each in shown_forecasts(name, play(name, is_told=False, lower_bound=least))]
    assert len(judged) > 100
    p, is_there, came = zip(*judged, strict=True)
    assert brier(p, came) <= brier(is_there, came) + NEAR


@pytest.mark.slow
@pytest.mark.parametrize("ended", [0, 2, 5, 10, 30])
@pytest.mark.parametrize("name", RECORDED)
def test_where_few_have_ended(name: str, ended: int) -> None:
    """Two thirds of the trials are a study in which that many came to the end; p is of the others."""
    workload = load_workload(name)
    values = np.array([[np.nan, *(trace.value(step) for step in range(1, 41))] for trace in workload.traces], float)
    curves = values if workload.mode == "max" else np.exp(-values)
    curves = curves[np.isfinite(curves[:, 1:]).all(axis=1)]
    own, others = np.split(curves, [len(curves) * 2 // 3])
    study, target = Begun(own, ended), float(np.quantile(curves[:, -1], 0.9))
    came = others[:, -1] >= target
    for cut in (4, 8, 16, 24):
        p, is_there = study.foretell(others, cut, target), others[:, cut] >= target
        assert not study.proof.is_given or brier(p, came) <= brier(is_there, came)
