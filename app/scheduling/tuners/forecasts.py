"""What the trials of a study will come to, as its history tells it: for tuners that predict learning curves."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.scheduling.curves import Bend, Curve, CurveModel, Posterior
from app.scheduling.tuners.bends import bends_of
from stagetree.spec import StudySpec
from stagetree.spec.boundaries import LEAST_POINTS

REFIT_SHARE = 0.1
REFIT_LEAST = 5
"""What trials teach is learnt anew when a tenth more of them have come to the end, but no fewer than five."""


class Forecasts:
    """The curves of a study, and a model that learns from those that were trained to the end.

    Trials that were ended before, which are most, never showed how they would have gone on: learnt from, they make it
    look as if nothing ever rose later. When the model learns follows from the history.

    bounds: the least and the greatest value of the metric. horizon: the steps of a whole trial.
    """

    def __init__(self, spec: StudySpec, bounds: Sequence[float | None], horizon: int) -> None:
        self._metric, self.horizon = spec.metric, horizon
        self._model = CurveModel(spec.mode, self.horizon, (bounds[0], bounds[1]))
        self._points: dict[int, dict[int, float]] = {}
        self._bends: dict[int, tuple[Bend, ...]] = {}
        self._complete: list[Curve] = []
        self._learnt = 0  # from how many of them
        self._lesson: list[Curve] | None = None  # what is to be learnt before the next prediction

    @property
    def has_learnt(self) -> bool:
        """Whether there were enough trials to teach what curves come to in this study."""
        return self._learnt > 0

    def observe(self, event: TrialEvent) -> None:
        """Take in a line of the study's history."""
        if event.kind == TrialEventKind.START:
            self._points[event.trial] = {}
            self._bends[event.trial] = bends_of(event.hp, self.horizon)
        elif event.kind == TrialEventKind.RESULT and (value := event.metrics[self._metric]) is not None:
            self._points[event.trial][event.steps] = value
            if event.steps == self.horizon:
                self._learn_from(event.trial)

    def curve(self, trial: int) -> Curve:
        """The evaluations of a trial so far."""
        points = sorted(self._points[trial].items())
        return Curve(tuple(step for step, _ in points), tuple(value for _, value in points), self._bends[trial])

    def has_shape(self, trial: int) -> bool:
        """Whether there are enough evaluations to end a trial by what is foretold of it."""
        return len(self._points[trial]) >= LEAST_POINTS

    def posterior(self, trials: Iterable[int]) -> Posterior:
        """What some trials will come to."""
        if self._lesson is not None:
            self._model.fit(self._lesson)
            self._lesson = None
        return self._model.predict([self.curve(trial) for trial in trials])

    def prob_reaches(self, trial: int, target: float) -> float:
        """P(y_m >= target) of a trial at step m, its horizon, with the four digits that are recorded."""
        return round(float(self.posterior([trial]).prob_reaches([self.horizon], target)[0, 0]), 4)

    def _learn_from(self, trial: int) -> None:
        self._complete.append(self.curve(trial))
        if len(self._complete) >= self._learnt + max(REFIT_LEAST, REFIT_SHARE * self._learnt):
            self._learnt = len(self._complete)
            self._lesson = self._complete[:]
