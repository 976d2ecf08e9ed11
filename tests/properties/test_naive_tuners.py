"""Tuners against the papers: at every recorded decision, the plainest reading of the algorithm names the next one.

The naive tuners know nothing of ours: they read the history anew at each decision and sort its lines.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain.search_plan import TrialEvent
from stagetree.spec.tuners.halving import bracket_sizes
from tests.plans import max_examples
from tests.tuners.worlds import unlucky

Decision = tuple[str, int, int]
"""(start | promote | stop, trial or -1, steps)"""

Naive = Callable[[list[TrialEvent], dict[str, Any]], Decision | None]


@dataclass
class Seen:
    """A history, sorted: the step of each trial, and all results (loss, trial) at each requested step."""

    started: int
    at: dict[int, int]
    arrived: dict[int, list[tuple[float, int]]]
    order: list[tuple[int, int]]
    gone: set[int]
    decided: set[tuple[int, int]]


def read(history: list[TrialEvent], *, forget: bool = True) -> Seen:
    """`forget`: cancelled trials do not count, unless they have continued."""
    seen = Seen(0, {}, {}, [], set(), set())
    for line in history:
        match line.kind:
            case "start":
                seen.started += 1
                seen.at[line.trial] = line.steps
            case "promote":
                seen.decided.add((line.trial, seen.at[line.trial]))
                seen.at[line.trial] = line.steps
            case "stop":
                seen.decided.add((line.trial, seen.at[line.trial]))
                seen.gone.add(line.trial)
            case "result" | "fail":
                steps = seen.at[line.trial]
                loss = math.inf if line.kind == "fail" else float(line.metrics["loss"] or 0)
                seen.arrived.setdefault(steps, []).append((loss, line.trial))
                seen.order.append((line.trial, steps))
            case "cancel":
                for steps, arrivals in seen.arrived.items() if forget else ():
                    if (line.trial, steps) not in seen.decided:
                        seen.arrived[steps] = [each for each in arrivals if each[1] != line.trial]
                seen.gone.add(line.trial)
    return seen


def rungs(tuner: dict[str, Any]) -> list[int]:
    """r * eta^(s + k) below R, and R."""
    steps, found = tuner["min_steps"] * tuner["reduction_factor"] ** tuner.get("early_stopping_rate", 0), list[int]()
    while steps < tuner["max_steps"]:
        found.append(steps)
        steps *= tuner["reduction_factor"]
    return [*found, tuner["max_steps"]]


def best_first(arrived: list[tuple[float, int]], tuner: dict[str, Any], rung: int) -> list[tuple[float, int]]:
    """The results at rung number `rung`, ties by number, or by the hash of seed, rung and number."""

    def order(each: tuple[float, int]) -> tuple[float, bytes, int]:
        loss, trial = each
        draw = f"{tuner['sampling_seed']}/ties/{rung}/{trial}" if tuner.get("ties") == "seed" else ""
        return loss, sha256(draw.encode()).digest(), trial

    return sorted(arrived, key=order)


def asha(history: list[TrialEvent], tuner: dict[str, Any]) -> Decision | None:
    """get_job of Algorithm 2: from the top rung down, the best of the top 1/eta that was not promoted."""
    seen, ladder = read(history), rungs(tuner)
    for number, (lower, upper) in reversed(list(enumerate(pairwise(ladder)))):
        ranked = best_first(seen.arrived.get(lower, []), tuner, number)
        for loss, trial in ranked[: len(ranked) // tuner["reduction_factor"]]:
            if (trial, lower) not in seen.decided and math.isfinite(loss):
                return ("promote", trial, upper)
    return ("start", -1, ladder[0]) if seen.started < tuner["num_trials"] else None


def sha(history: list[TrialEvent], tuner: dict[str, Any]) -> Decision | None:
    """Algorithm 1: n_i = floor(n / eta^i) of the complete rung i - 1 are promoted together."""
    seen, ladder = read(history), rungs(tuner)
    if seen.started < tuner["num_trials"]:
        return ("start", -1, ladder[0])
    for number, (lower, upper) in enumerate(pairwise(ladder), start=1):
        if any(not has_arrived(seen, trial) for trial, at in seen.at.items() if at == lower and trial not in seen.gone):
            return None
        keep = max(1, tuner["num_trials"] // tuner["reduction_factor"] ** number)
        for loss, trial in best_first(seen.arrived.get(lower, []), tuner, number - 1)[:keep]:
            if (trial, lower) not in seen.decided and math.isfinite(loss):
                return ("promote", trial, upper)
    return None


def has_arrived(seen: Seen, trial: int) -> bool:
    return any(trial == other for _, other in seen.arrived.get(seen.at[trial], []))


def one_by_one(verdict: Callable[[Seen, int, int, dict[str, Any]], bool]) -> Naive:
    """A stopping rule: each trial is judged at its decision point by the results at that time, in order of arrival."""

    def naive(history: list[TrialEvent], tuner: dict[str, Any]) -> Decision | None:
        points = tuner["points"]
        for end in range(1, len(history) + 1):
            line = history[end - 1]
            if line.kind != "result":
                continue
            then, now = read(history[:end], forget=False), read(history)
            trial, at = line.trial, then.at[line.trial]
            if at == points[-1] or (trial, at) in now.decided or trial in now.gone:
                continue
            if any(other.kind == "fail" and other.trial == trial for other in history[end:]):
                continue
            if verdict(then, trial, at, tuner):
                return ("promote", trial, points[points.index(at) + 1])
            return ("stop", trial, at)
        return ("start", -1, points[0]) if read(history).started < tuner["num_trials"] else None

    return naive


def is_in_top(seen: Seen, trial: int, at: int, tuner: dict[str, Any]) -> bool:
    """Stopping ASHA: in the top 1/eta of the results at that step, its own included, but at least one."""
    ranked = [other for _, other in best_first(seen.arrived[at], tuner, tuner["points"].index(at))]
    return ranked.index(trial) < max(1, len(ranked) // tuner["reduction_factor"])


def near_the_best(seen: Seen, trial: int, at: int, tuner: dict[str, Any]) -> bool:
    """Bandit, for positive losses: the best of all results times 1 + epsilon is more than the trial's own best."""
    own = min(loss for arrivals in seen.arrived.values() for loss, other in arrivals if other == trial)
    best = min(loss for arrivals in seen.arrived.values() for loss, _ in arrivals)
    return own == best or best * (1 + tuner["epsilon"]) > own


def is_below_median(seen: Seen, trial: int, at: int, tuner: dict[str, Any]) -> bool:
    """Vizier, 3.2.2: a trial's best value against the median of the others' running averages up to the same point."""
    earlier = [point for point in tuner["points"] if point <= at]
    losses = [{other: loss for loss, other in seen.arrived[point]} for point in earlier]
    others = [other for other in losses[-1] if other != trial]
    if at < tuner["min_steps"] or len(others) < tuner["min_trials"]:
        return True
    averages = sorted(sum(each.get(other, math.inf) for each in losses) / len(losses) for other in others)
    return min(each[trial] for each in losses) <= statistics.median(averages)


def hyperband(history: list[TrialEvent], tuner: dict[str, Any]) -> Decision | None:
    """Hyperband, Algorithm 1: all brackets of successive halving, started one after the other, over and over."""
    seen, eta, most = read(history), tuner["reduction_factor"], tuner["max_steps"]
    deepest = round(math.log(most, eta))
    widths = [math.ceil((deepest + 1) / (s + 1) * eta**s) for s in range(deepest, -1, -1)]
    first = 0
    for _ in range(tuner["loops"]):
        members = range(first, first + sum(widths))
        if seen.started < members.stop:
            place = seen.started - first
            bracket = next(number for number in range(len(widths)) if place < sum(widths[: number + 1]))
            return ("start", -1, eta**bracket)
        for number, width in enumerate(widths):
            begun = first + sum(widths[:number])
            if (promotion := next_halving(seen, range(begun, begun + width), number, tuner)) is not None:
                return promotion
        if any(not has_arrived(seen, trial) for trial in members if trial not in seen.gone):
            return None
        first = members.stop
    return None


def next_halving(seen: Seen, members: range, number: int, tuner: dict[str, Any]) -> Decision | None:
    """The next promotion in one bracket, as in Algorithm 1 of the SHA paper."""
    ladder = rungs({**tuner, "min_steps": tuner["reduction_factor"] ** number})
    for rung, (lower, upper) in enumerate(pairwise(ladder), start=1):
        here = [trial for trial in members if seen.at[trial] == lower and trial not in seen.gone]
        if any(not has_arrived(seen, trial) for trial in here):
            return None
        ranked = best_first([each for each in seen.arrived.get(lower, []) if each[1] in members], tuner, rung - 1)
        for loss, trial in ranked[: max(1, len(members) // tuner["reduction_factor"] ** rung)]:
            if (trial, lower) not in seen.decided and math.isfinite(loss):
                return ("promote", trial, upper)
    return None


def async_hyperband(history: list[TrialEvent], tuner: dict[str, Any]) -> Decision | None:
    """ASHA in each bracket; a new configuration for the bracket that has least of its share (ASHA paper, 5.1)."""
    eta, starts = tuner["reduction_factor"], [line for line in history if line.kind == "start"]
    deepest = round(math.log(tuner["max_steps"], eta))
    brackets = [eta**number for number in range(tuner["brackets"])]
    for bottom in brackets:
        mine = {line.trial for line in starts if line.steps == bottom}
        action = asha([line for line in history if line.trial in mine], {**tuner, "min_steps": bottom})
        if action is not None and action[0] == "promote":
            return action
    if len(starts) >= tuner["num_trials"]:
        return None
    widths = bracket_sizes(tuner["num_trials"], deepest + 1, eta, tuner["brackets"])
    behind = [
        sum(line.steps == bottom for line in starts) / width for bottom, width in zip(brackets, widths, strict=True)
    ]
    return ("start", -1, brackets[behind.index(min(behind))])


CASES: dict[str, tuple[dict[str, Any], Naive]] = {
    "asha": ({"kind": "asha", "num_trials": 25, "min_steps": 1, "max_steps": 20, "reduction_factor": 3}, asha),
    "asha, s = 1": (
        {"kind": "asha", "num_trials": 20, "min_steps": 1, "max_steps": 16, "reduction_factor": 2}
        | {"early_stopping_rate": 1},
        asha,
    ),
    "sha": ({"kind": "sha", "num_trials": 20, "min_steps": 1, "max_steps": 16, "reduction_factor": 2}, sha),
    "stopping asha": (
        {"kind": "asha", "type": "stopping", "num_trials": 20, "min_steps": 1, "max_steps": 16, "reduction_factor": 2},
        one_by_one(is_in_top),
    ),
    "median": (
        {"kind": "median", "num_trials": 15, "max_steps": 11, "interval": 3, "min_trials": 3, "min_steps": 6},
        one_by_one(is_below_median),
    ),
    "hyperband": ({"kind": "hyperband", "min_steps": 1, "max_steps": 9, "reduction_factor": 3, "loops": 2}, hyperband),
    "async hyperband": (
        {"kind": "async_hyperband", "num_trials": 25, "min_steps": 1, "max_steps": 27, "reduction_factor": 3}
        | {"brackets": 3},
        async_hyperband,
    ),
    "bandit": (
        {"kind": "bandit", "num_trials": 15, "max_steps": 11, "interval": 3, "epsilon": 0.3},
        one_by_one(near_the_best),
    ),
}
DRAWN = {"ties": "seed", "sampling_seed": 11}
CASES |= {
    f"{name}, drawn": (tuner | DRAWN, naive)
    for name, (tuner, naive) in CASES.items()
    if tuner["kind"] in ("sha", "asha", "hyperband", "async_hyperband")
}


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@max_examples(6)
@given(seed=st.integers(0, 10**6), slots=st.sampled_from([1, 2, 5, 40]))
def test_every_decision_follows_the_papers(case: str, seed: int, slots: int) -> None:
    """With ties, failures, lost workers and trials that users cancel."""
    tuner, naive = CASES[case]
    study = unlucky(tuner, seed, slots)
    fields = tuner | {"points": points(tuner)}
    for number, line in enumerate(study.history):
        if line.kind in ("start", "promote", "stop"):
            trial = -1 if line.kind == "start" else line.trial
            assert naive(study.history[:number], fields) == (str(line.kind), trial, line.steps), number
    if study.state == "completed":
        assert naive(study.history, fields) is None


def points(tuner: dict[str, Any]) -> list[int]:
    if "interval" in tuner:
        return [*range(tuner["interval"], tuner["max_steps"], tuner["interval"]), tuner["max_steps"]]
    return rungs(tuner)
