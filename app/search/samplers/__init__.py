"""Samplers: they propose new configurations, for any tuner that samples.

A proposal is recorded with its trial, so that replay does not need the sampler.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from app.search.samplers.base import FirstConfigurations, Knowledge, KnowsTree, Proposal, Sampler
from app.search.samplers.enqueued_trials import EnqueuedTrials
from app.search.samplers.learning import NothingToLearn, results_for
from app.search.samplers.listed import Grid, QMCSampler, Random
from app.search.samplers.optuna_sampler import OptunaSampler
from stagetree.spec import StudySpec
from stagetree.spec.tuners import SamplingTuner


def _gp(spec: StudySpec) -> Sampler:
    from app.search.samplers.gp import GPSampler  # scipy takes long to import

    return GPSampler(spec)


def _trunks(spec: StudySpec) -> Sampler:
    from app.search.samplers.trunks import TrunkSampler

    return TrunkSampler(spec)


SAMPLERS: dict[str, Callable[[StudySpec], Sampler]] = {
    "random": Random,
    "grid": Grid,
    "sobol": partial(QMCSampler, kind="sobol"),
    "halton": partial(QMCSampler, kind="halton"),
    "tpe": partial(OptunaSampler, kind="tpe"),
    "cmaes": partial(OptunaSampler, kind="cmaes"),
    "gp": _gp,
    "trunks": _trunks,
}

NEEDED: dict[str, tuple[str, ...]] = {
    "tpe": ("optuna",),
    "cmaes": ("optuna", "cmaes"),
    "gp": (),
    "trunks": (),
}
"""The samplers that learn, each with the packages that it needs beyond the required ones."""


def unavailable(spec: StudySpec) -> str | None:
    """Why the study's sampler cannot work here, in a sentence; None if it can."""
    if all(map(find_spec, NEEDED.get(spec.sampler, ()))):
        return None
    return f"must be another one on this server, since {spec.sampler} needs Optuna: pip install 'stagetree[optuna]'"


def sampler_of(spec: StudySpec) -> Sampler | None:
    """The study's sampler, which begins with the configurations of `first`; None if the tuner lists its
    configurations. Random if the study names none: its submission fills in the default.
    """
    if not isinstance(spec.tuner, SamplingTuner):
        return None
    sampler = SAMPLERS[spec.tuner.sampler or "random"](spec)
    return FirstConfigurations(spec, sampler) if spec.first else sampler


def queued_sampler_of(spec: StudySpec) -> EnqueuedTrials | None:
    """As `sampler_of`, behind the queue of enqueued trials."""
    sampler = sampler_of(spec)
    return None if sampler is None else EnqueuedTrials(spec, sampler)


def find_price_sampler(sampler: Sampler | None) -> KnowsTree | None:
    """The innermost sampler, if it uses prices."""
    while isinstance(sampler, EnqueuedTrials | FirstConfigurations):
        sampler = sampler.then
    return sampler if isinstance(sampler, KnowsTree) else None


__all__ = [
    "NEEDED",
    "SAMPLERS",
    "EnqueuedTrials",
    "FirstConfigurations",
    "Knowledge",
    "NothingToLearn",
    "Proposal",
    "Sampler",
    "find_price_sampler",
    "queued_sampler_of",
    "results_for",
    "sampler_of",
    "unavailable",
]
