"""How good p is in a study in which few trials have ended, and whether it is proven there: for benchmarks/curves.py.

In such a study trials come to a tenth of their steps, the best of them continue to the next, and so on, so a number
of them is left at the end (by halving, evenly). The model learns from all of them as far as they came. At each tenth
each trial is judged, as by `pop`, and `ForecastProof` says of the history of that whether p is proven.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

import numpy as np
import numpy.typing as npt

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.curves import Curve
from app.search.tuners.forecasts import Forecasts
from app.search.tuners.promising import FORETOLD, ForecastProof
from stagetree.spec import StudySpec

Array = npt.NDArray[np.float64]
METRIC = "value"


class Begun:
    """A study in which `ended` of the curves came to their end, and the others were stopped on the way."""

    def __init__(self, curves: Array, ended: int) -> None:
        self.curves, self.horizon = curves, curves.shape[1] - 1
        tuner = {"kind": "pop", "num_trials": len(curves), "max_steps": self.horizon, "bounds": [0, 1]}
        study = {"name": "begun", "trainer": "recorded", "metric": METRIC, "mode": "max", "space": {"trial": 0}}
        self.forecasts = Forecasts(StudySpec.from_dict(study | {"tuner": tuner}), [0, 1], self.horizon)
        self.proof, self._best = ForecastProof(METRIC, -1.0, self.horizon), -np.inf
        tenth = max(1, self.horizon // 10)
        boundaries = [*range(tenth, self.horizon, tenth), self.horizon]
        alive = list(range(len(curves)))
        for trial in alive:
            self._take(TrialEvent(TrialEventKind.START, trial, tenth, hp={}))
        for number, step in enumerate(boundaries):
            for trial in alive:
                self._come(trial, boundaries[number - 1] if number else 0, step)
                if step < self.horizon:
                    self._judge(trial, step, boundaries[number + 1])
            left = _left(len(curves), ended, (number + 2) / len(boundaries))
            alive = sorted(sorted(alive, key=lambda trial: -curves[trial, step])[:left])

    def _take(self, event: TrialEvent) -> None:
        self.forecasts.observe(event)
        self.proof.observe(event)

    def _come(self, trial: int, before: int, step: int) -> None:
        for each in range(before + 1, step + 1):
            value = float(self.curves[trial, each])
            self._best = max(self._best, value)
            self._take(TrialEvent(TrialEventKind.RESULT, trial, each, metrics={METRIC: value}))

    def _judge(self, trial: int, step: int, then: int) -> None:
        p_next, p_end = self.forecasts.posterior([trial]).prob_reaches([then, self.horizon], self._best)[0]
        claim = {"mark": self._best, "next": then, "p_next": float(p_next), "p_end": float(p_end)}
        self._take(TrialEvent(TrialEventKind.PRIORITIZE, trial, step, reason={FORETOLD: claim}))

    def foretell(self, others: Array, cut: int, target: float) -> Array:
        """p of trials that have come to step number `cut`, of which the study knows nothing else."""
        steps = tuple(range(1, cut + 1))
        curves = [Curve(steps, tuple(map(float, values[1 : cut + 1]))) for values in others]
        return self.forecasts.predict(curves).prob_reaches([self.horizon], target)[:, 0]


def _left(number: int, ended: int, part: float) -> int:
    """How many are to come to a part of the way: from all at the first tenth to `ended` at the end."""
    if part >= 1:
        return ended
    return max(ended, int(number * (max(ended, 1) / number) ** part + 0.5))


def table(several: Iterator[tuple[Array, Array]], ended: int, cuts: Sequence[int]) -> None:
    """Brier scores by cut: of the base rate, the last value's verdict, p, and p and verdict where p is proven."""
    scores: dict[tuple[int, str], list[float]] = defaultdict(list)
    proven = number = 0
    for own, others in several:
        target = float(np.quantile(np.concatenate([own, others])[:, -1], 0.9))
        study, came = Begun(own, ended), others[:, -1] >= target
        number, proven = number + 1, proven + study.proof.is_given
        for cut in cuts:
            p, verdict = study.foretell(others, cut, target), others[:, cut] >= target
            found = {"base rate": came.var(), "last": np.mean(verdict != came), "p": np.mean((p - came) ** 2)}
            if study.proof.is_given:
                found |= {"p, shown": found["p"], "last, there": found["last"]}
            for name, score in found.items():
                scores[cut, name].append(float(score))
    print(f"\n{ended} ended: p is proven, and shown, in {proven} of {number} studies")
    for name in ("base rate", "last", "p", "last, there", "p, shown"):
        if (cuts[0], name) in scores:
            print(f"  {name:14}" + "".join(f"{np.mean(scores[cut, name]):9.4f}" for cut in cuts), flush=True)
