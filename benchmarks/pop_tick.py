"""What a result costs the tuner of a `pop` study in which 1,000 trials are active: the judgement and the next turn.

    python benchmarks/pop_tick.py [--trials 1000] [--results 400]

Curves are made up. A hundred others were trained to the end. What those teach is learnt anew when a tenth more of them
were, and the slowest results are the ones after which that happens. Times are of the processor: other processes do
not count.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: the benchmark measures one core

import argparse
import math
import time
from random import Random

from app.domain.commands import Extend, Prioritize, Stop
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import Context
from app.search.tuners.pop import Pop
from stagetree.spec import StudySpec

ENDED, STEPS, BOUNDARY = 100, 100, 5


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--results", type=int, default=400)
    arguments = parser.parse_args()
    study = Study(arguments.trials + ENDED)
    for trial in range(arguments.trials + ENDED):
        study.start(trial, until=STEPS if trial < ENDED else 3 * BOUNDARY)
    study.settle()
    milliseconds = sorted(1e3 * study.step() for _ in range(arguments.results))
    median, most = milliseconds[len(milliseconds) // 2], milliseconds[len(milliseconds) * 99 // 100]
    print(f"{len(study.steps)} active trials; a result, its judgement and the next turn:")
    print(f"  median {median:.1f} ms, 99 % within {most:.1f} ms, the slowest {milliseconds[-1]:.1f} ms")
    print(f"  trained to the end: {ENDED} before, {study.ended - ENDED} more meanwhile")


class Study:
    """A history that is made up as it goes, and the tuner that reads it."""

    def __init__(self, trials: int) -> None:
        self._rng, self.steps, self.ended = Random(0), dict[int, int](), 0
        self.tuner = Pop(spec(trials))
        self.tuner.set_context(Context(elapsed=100.0, slots=32, seconds_per_step=lambda trial: 1.0))
        self._ends = [0.9 * self._rng.betavariate(3, 3) for _ in range(trials)]

    def start(self, trial: int, until: int) -> None:
        self._tell(TrialEventKind.START, trial, BOUNDARY)
        for steps in range(BOUNDARY, until + 1, BOUNDARY):
            if steps > BOUNDARY:
                self._tell(TrialEventKind.PROMOTE, trial, steps)
            self._result(trial, steps)
        if until < STEPS:
            self.steps[trial] = until

    def settle(self) -> None:
        """Until every trial is judged, and one has the next turn."""
        while not isinstance(action := self.tuner.suggest(), Extend):
            if not isinstance(action, Prioritize | Stop):
                raise SystemExit("there are too few trials for this number of results")
            self._grant(action)
        self._turn = action

    def step(self) -> float:
        """Let the result of the turn come, judge it, and give the next turn; the seconds of the processor it took."""
        begin = time.process_time()
        self._grant(self._turn)
        self._result(self._turn.trial, self._turn.steps)
        self.settle()
        return time.process_time() - begin

    def _grant(self, action: Extend | Prioritize | Stop) -> None:
        kinds = {Extend: TrialEventKind.PROMOTE, Prioritize: TrialEventKind.PRIORITIZE, Stop: TrialEventKind.STOP}
        self._tell(kinds[type(action)], action.trial, getattr(action, "steps", 0), action.reason)
        if isinstance(action, Stop):
            self.steps.pop(action.trial, None)

    def _result(self, trial: int, steps: int) -> None:
        self.ended += steps == STEPS
        value = self._ends[trial] * (1 - math.exp(-steps / 20)) + self._rng.gauss(0, 0.005)
        event = TrialEvent(TrialEventKind.RESULT, trial, steps, metrics={"accuracy": value})
        self.tuner.observe(event)

    def _tell(self, kind: TrialEventKind, trial: int, steps: int, reason: object = None) -> None:
        self.tuner.observe(TrialEvent(kind, trial, steps, reason=reason or {}, hp={}))  # type: ignore[arg-type]


def spec(trials: int) -> StudySpec:
    tuner = {"kind": "pop", "num_trials": trials, "max_steps": STEPS, "boundary": BOUNDARY}
    tuner |= {"target": 0.95, "lower_bound": 0.0, "bounds": [0, 1]}
    study = {"name": "pop", "trainer": "made-up", "metric": "accuracy", "mode": "max", "space": {"lr": 0.1}}
    return StudySpec.from_dict(study | {"tuner": tuner})


if __name__ == "__main__":
    main()
