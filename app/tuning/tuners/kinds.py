"""The tuner of a study, by the kind in its study file."""

from __future__ import annotations

from collections.abc import Callable

from app.tuning.tuners.asha import Asha, AshaByPrediction
from app.tuning.tuners.base import Tuner
from app.tuning.tuners.custom import custom
from app.tuning.tuners.fixed import External, Fixed
from app.tuning.tuners.hyperband import AshaInBrackets, AsyncHyperband, Hyperband
from app.tuning.tuners.pop import Pop
from app.tuning.tuners.population import Pbt
from app.tuning.tuners.sha import Sha
from app.tuning.tuners.stopping import AshaStopping, Bandit, EarlyTerm, Median
from app.tuning.tuners.wrappers import Finishing, watched
from stagetree.spec import StudySpec
from stagetree.spec.tuners import AshaTuner

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
    """The tuner that a study file asks for. Raises `stagetree.spec.SpecError` where it is none that this server has."""
    tuner = _tuner_alone(spec)
    return Finishing(spec, tuner) if getattr(spec.tuner, "finish_best", None) else tuner


def _tuner_alone(spec: StudySpec) -> Tuner:
    """The tuner without `finish_best`."""
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.promote_by == "predicted":
        return watched(spec, AshaByPrediction)
    if spec.stop_hopeless is not None:
        return watched(spec, lambda spec, forecasts: _plain(spec))
    return _plain(spec)


def _plain(spec: StudySpec) -> Tuner:
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.type == "stopping":
        return AshaStopping(spec)
    if isinstance(spec.tuner, AshaTuner) and spec.tuner.brackets > 1:
        return AshaInBrackets(spec)
    return TUNERS[spec.tuner.kind](spec)
