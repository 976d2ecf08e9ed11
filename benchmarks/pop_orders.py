"""How POP chooses among trials that wait: by which order was chosen, on made-up curves and without a plan.

    python benchmarks/pop_orders.py [--worlds 20] [--orders 3] [--slots 5]

The rules of `app/search/tuners/pop.py`, but that no p ends a trial, played in milliseconds. Times are the geometric
mean of the times with `order_by: rank`, the order of 0.1.0, over worlds of 100 trials and their orders; after the sign
is the standard error of its logarithm. The target is what three in a hundred trials reach.

The first table is about turns of opportunistic trials: by value, also of different steps, with each third turn, or
each one (round robin, as in the paper), for the trial that has waited longest; and by the rank at the step. The second
is about equal values: they share their best rank, or the mean of their ranks; the same, but where all at a step are
equal they have a worth of one half (`rank_at_step`, the default); or a draw for each trial breaks ties.
"""

from __future__ import annotations

import argparse
import math
import random
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from typing import Any

import numpy as np
import numpy.typing as npt
import pop
import pop_choosing
from pop_choosing import STEPS, trace

from app.search.tuners.pop import ORDERS, Judgement, WaitingOrder, mean_rank
from app.search.tuners.promising import divide, rank_confidence
from app.simulation.traces import Trace, Workload

SWITCH = 0.1
"""The cost of leaving a trial and resuming it, in steps."""


@dataclass(frozen=True)
class Variant:
    """A rule. longest_wait: with n, each nth turn is that of the trial that has waited longest; 0 for no such turn."""

    order: WaitingOrder
    longest_wait: int = 0
    breaks_ties: bool = False


@dataclass
class _Trial:
    number: int
    trace: Trace
    draw: float
    step: int = 0
    loss: float = math.inf
    judged: dict[str, Any] = field(default_factory=dict)
    is_training: bool = True
    left_at: float = -1.0


class Light:
    """One study of POP on recorded trials."""

    def __init__(self, workload: Workload, target: float, slots: int, variant: Variant, seed: int) -> None:
        draws = random.Random(seed)
        order = np.random.default_rng(seed).permutation(len(workload.traces))
        traces = [workload.traces[number] for number in order]
        self._new = [_Trial(number, each, draws.random()) for number, each in enumerate(traces)][::-1]
        self._workload, self._target, self._slots, self._variant = workload, target, slots, variant
        boundary, end = max(1, workload.max_steps // 12), workload.max_steps
        points = sorted({*range(boundary, end + 1, boundary), end})
        self._next = dict(zip([0, *points], points, strict=False))
        self._switch = SWITCH * float(np.mean([each.seconds[0] for each in traces]))
        self._losses: dict[int, list[tuple[float, float]]] = defaultdict(list)
        self._alive: dict[int, _Trial] = {}
        self._waiting: dict[int, _Trial] = {}
        self._pools, self._turns, self._now, self._reached = divide([], slots), 0, 0.0, math.inf
        self._running: list[tuple[float, int, _Trial]] = []

    def time_to_target(self) -> float:
        """Seconds; infinite if no trial reaches it."""
        while True:
            while len(self._running) < self._slots and (trial := self._choose()) is not None:
                self._train(trial)
            if not self._running:
                return self._reached
            self._now, _, trial = heappop(self._running)
            if self._reached <= self._now:
                return self._reached
            self._judge(trial)

    def _choose(self) -> _Trial | None:
        promising = [trial for trial in self._waiting.values() if self._is_promising(trial)]
        training = sum(trial.is_training and self._is_promising(trial) for trial in self._alive.values())
        if promising and training < self._pools.slots:
            return min(promising, key=self._place)
        if self._new:
            trial = self._new.pop()
            self._alive[trial.number] = trial
            return trial
        others = [trial for trial in self._waiting.values() if not self._is_promising(trial)]
        if not others:
            return min(promising, key=self._place, default=None)
        self._turns += 1
        is_longest = self._variant.longest_wait and self._turns % self._variant.longest_wait == 0
        return others[0] if is_longest else min(others, key=self._place)

    def _is_promising(self, trial: _Trial) -> bool:
        return bool(trial.judged) and self._variant.order.worth(trial.judged) >= self._pools.threshold

    def _place(self, trial: _Trial) -> tuple[float, ...]:
        order, last = self._variant.order, trial.draw if self._variant.breaks_ties else trial.number
        return -order.worth(trial.judged), *order.among_equals(trial.judged), trial.loss, last

    def _train(self, trial: _Trial) -> None:
        begin, end = trial.step, self._next[trial.step]
        seconds = trial.trace.time(end) - trial.trace.time(begin)
        seconds += self._switch if begin and trial.left_at != self._now else 0.0
        for step in range(begin + 1, end + 1):
            if self._workload.is_reached(trial.trace.value(step), self._target):
                left = trial.trace.time(end) - trial.trace.time(step)
                self._reached = min(self._reached, self._now + seconds - left)
                break
        self._waiting.pop(trial.number, None)
        trial.is_training, trial.left_at = True, self._now + seconds
        heappush(self._running, (trial.left_at, trial.number, trial))

    def _judge(self, trial: _Trial) -> None:
        trial.step, trial.is_training = self._next[trial.step], False
        value = trial.trace.value(trial.step)
        assert value is not None
        trial.loss = -value if self._workload.mode == "max" else value
        score, others = (trial.loss, trial.draw if self._variant.breaks_ties else 0.0), self._losses[trial.step]
        insort(others, score)
        before = bisect_left(others, score)
        tied = bisect_right(others, score) - before
        trial.judged = {"rank": before + 1, "tied": tied, "of": len(others), "steps": trial.step}
        if trial.step == self._workload.max_steps:
            del self._alive[trial.number]
        else:
            self._waiting[trial.number] = trial
        worths = (self._variant.order.worth(each.judged) for each in self._alive.values() if each.judged)
        self._pools = divide(worths, self._slots)


# ------------------------------------------------------------------------------------------------------------ variants


def _best_place(judged: Judgement) -> tuple[float, ...]:
    return (judged["rank"] - 1) / judged["of"], -judged["steps"]


def _mean_rank(judged: Judgement) -> float:
    return rank_confidence(mean_rank(judged), judged["of"])


DEFAULT = Variant(ORDERS["rank_at_step"])
TURNS = {
    "rank": Variant(ORDERS["rank"]),
    "a third waits": Variant(ORDERS["rank"], longest_wait=3),
    "round robin": Variant(ORDERS["rank"], longest_wait=1),
    "rank_at_step": DEFAULT,
    "and a third": Variant(ORDERS["rank_at_step"], longest_wait=3),
}
TIES = {
    "rank": Variant(ORDERS["rank"]),
    "best rank": Variant(WaitingOrder(ORDERS["rank"].worth, _best_place)),
    "mean rank": Variant(WaitingOrder(_mean_rank, ORDERS["rank_at_step"].among_equals)),
    "rank_at_step": DEFAULT,
    "draw": Variant(WaitingOrder(ORDERS["rank"].worth, _best_place), breaks_ties=True),
}

# -------------------------------------------------------------------------------------------------------------- worlds


def slow_starters(seed: int, rho: float) -> Iterator[Trace]:
    """100 accuracies. rho: the correlation of final accuracy and slowness."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        z = rng.normal()
        end = 0.7 + 0.07 * (rho * z + math.sqrt(1 - rho**2) * rng.normal())
        rising = 1 - np.exp(-STEPS / (6 * math.exp(0.6 * z)))
        yield trace(end * rising + rng.normal(0, 0.004, 40), 60 * rng.uniform(0.6, 1.5))


def at_chance(seed: int, share: float, latest: float = 0.0) -> Iterator[Trace]:
    """100 accuracies, of which a share stays at 0.1; the others leave it after up to `latest` steps."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        if rng.random() < share:
            yield trace(np.full(40, 0.1), 60 * rng.uniform(0.6, 1.5))
            continue
        onset, end, half = rng.uniform(0, latest), 1 - rng.lognormal(-1.8, 0.6), rng.lognormal(1.5, 0.8)
        values = _after(onset, end, half) + rng.normal(0, 0.01, 40)
        yield trace(np.where(onset < STEPS, np.maximum(0.1, values), 0.1), 60 * rng.uniform(0.6, 1.5))


def sparse_rewards(seed: int, share: float) -> Iterator[Trace]:
    """100 rates of success, of which a share stays at 0; the others leave it after 4 to 30 steps."""
    rng = np.random.default_rng(seed)
    for _ in range(100):
        if rng.random() < share:
            yield trace(np.zeros(40), 60.0)
            continue
        onset, end, half = rng.uniform(4, 30), rng.uniform(0.2, 1), rng.lognormal(1.0, 0.5)
        noise = np.where(onset < STEPS, rng.normal(0, 0.03, 40), 0)
        yield trace(np.clip(np.round(_after(onset, end, half) + noise, 2), 0, 1), 60.0)


def _after(onset: float, end: float, half: float) -> npt.NDArray[np.float64]:
    return np.asarray(end * (1 - np.exp(-np.maximum(STEPS - onset, 0) / half)))


MakeTraces = Callable[[int], Iterator[Trace]]
TURN_WORLDS: dict[str, MakeTraces] = {
    **{f"slow starters, {rho}": lambda seed, rho=rho: slow_starters(seed, rho) for rho in (0.0, 0.3, 0.6)},
    "stands still": pop_choosing.standing_still,
}
TIE_WORLDS: dict[str, MakeTraces] = {
    **{f"chance {share:.0%}": lambda seed, share=share: at_chance(seed, share) for share in (0.5, 0.9, 0.97)},
    **{f"late {share:.0%}": lambda seed, share=share: at_chance(seed, share, 12) for share in (0.5, 0.9, 0.97)},
    **{f"sparse {share:.0%}": lambda seed, share=share: sparse_rewards(seed, share) for share in (0.0, 0.5, 0.9)},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", type=int, default=20)
    parser.add_argument("--orders", type=int, default=3)
    parser.add_argument("--slots", type=int, default=5)
    arguments = parser.parse_args()
    for variants, worlds in ((TURNS, TURN_WORLDS), (TIES, TIE_WORLDS)):
        print(f"\n{'':20}" + "".join(f"{name:>18}" for name in variants))
        for name, make in worlds.items():
            mode = "min" if make is pop_choosing.standing_still else "max"
            made = (
                Workload(name, "made up", mode, 40, tuple(make(seed))) for seed in range(100, 100 + arguments.worlds)
            )
            print(f"{name:20}" + "".join(f"{each:>18}" for each in row(list(made), variants, arguments)), flush=True)


def row(worlds: list[Workload], variants: dict[str, Variant], arguments: argparse.Namespace) -> Iterator[str]:
    """The times of each variant, as multiples of the first one's."""
    logs = {
        name: np.array([times(world, variant, arguments) for world in worlds]) for name, variant in variants.items()
    }
    first = next(iter(logs.values()))
    for found in logs.values():
        means = (found - first).mean(axis=1)
        yield f"{math.exp(means.mean()):.2f} ± {means.std() / math.sqrt(len(worlds)):.2f}"


def times(world: Workload, variant: Variant, arguments: argparse.Namespace) -> list[float]:
    """The logarithm of the time to the target in each order."""
    target = pop.target_of(world)
    played = (Light(world, target, arguments.slots, variant, seed) for seed in range(arguments.orders))
    return [math.log(each.time_to_target()) for each in played]


if __name__ == "__main__":
    main()
