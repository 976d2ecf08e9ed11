"""The tuner of a study, by the kind in its study file."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from app.domain.commands import Start
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import Tuner, custom
from app.search.tuners.hyperband import AsyncHyperband, Hyperband
from app.search.tuners.pop import Pop
from app.search.tuners.population import Pbt
from app.search.tuners.sha import Asha, AshaByPrediction, Sha
from app.search.tuners.stopping import AshaStopping, Bandit, EarlyTerm, Median
from app.search.tuners.wrappers import Finishing, RankedByRungValues, watch
from stagetree.space.distinct import Configuration
from stagetree.spec import StudySpec
from stagetree.spec.tuners import AshaTuner, FixedTuner, TrialsTuner


class Fixed(Tuner):
    """Requests all its trials at once, in the order of the study file."""

    eager = takes_objectives = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self._started = 0
        self._starts = tuple(
            Start(hp={name: sequence.to_json() for name, sequence in configuration.items()}, steps=steps)
            for configuration, steps in _trials(spec)
        )

    def observe(self, event: TrialEvent) -> None:
        self._started += event.kind == TrialEventKind.START

    def suggest(self) -> Start | None:
        return self._starts[self._started] if self._started < len(self._starts) else None

    def suggest_many(self, most: int) -> tuple[Start, ...]:
        return self._starts[self._started : self._started + most]


def _trials(spec: StudySpec) -> Iterable[tuple[Configuration, int]]:
    """Each configuration with its number of steps."""
    if isinstance(spec.tuner, TrialsTuner):
        return ((trial.configuration(), trial.steps) for trial in spec.tuner.trials)
    assert isinstance(spec.tuner, FixedTuner)
    return spec.tuner.configurations_with_steps(spec)


class External(Tuner):
    """Ask and tell from outside. The study stays open until it is closed on request (`CloseStudy`) or cancelled."""

    open_ended = takes_objectives = True

    def observe(self, event: TrialEvent) -> None:
        """Nothing to learn: the client that adds the trials decides."""

    def suggest(self) -> None:
        return None


TUNERS: dict[str, Callable[[StudySpec], Tuner]] = {
    "grid": Fixed,
    "random": Fixed,
    "trials": Fixed,
    "sha": Sha,
    "asha": Asha,
    "hyperband": Hyperband,
    "async_hyperband": AsyncHyperband,
    "median": Median,
    "bandit": Bandit,
    "early_term": EarlyTerm,
    "pop": Pop,
    "pbt": Pbt,
    "custom": custom,
    "external": External,
}


def tuner_of(spec: StudySpec) -> Tuner:
    """The tuner of a study file. Raises `stagetree.spec.SpecError` if this server does not have it."""
    tuner = _tuner_alone(spec)
    tuner = Finishing(spec, tuner) if getattr(spec.tuner, "finish_best", None) else tuner
    return RankedByRungValues(spec, tuner) if getattr(spec.tuner, "rung_value", None) else tuner


def _tuner_alone(spec: StudySpec) -> Tuner:
    """The tuner without `finish_best` and `rung_value`."""
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.promote_by == "predicted":
        return watch(spec, AshaByPrediction)
    if spec.stop_hopeless is not None:
        return watch(spec, lambda spec, forecasts: _plain(spec))
    return _plain(spec)


def _plain(spec: StudySpec) -> Tuner:
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.type == "stopping":
        return AshaStopping(spec)
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.brackets > 1:
        return AsyncHyperband(spec)
    return TUNERS[spec.tuner.kind](spec)
