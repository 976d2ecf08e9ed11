"""Where new configurations come from: a part of its own, usable with any tuner that samples.

What a source proposes is recorded with the trial, so replay never asks it again.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.util import find_spec

from app.scheduling.tuners.sources.base import Grid, Proposal, Random, Source
from app.scheduling.tuners.sources.guided import Guided
from app.scheduling.tuners.sources.quasi import Quasi
from stagetree.spec import SamplingTuner, StudySpec

SOURCES: dict[str, Callable[[StudySpec], Source]] = {
    "random": Random,
    "grid": Grid,
    "sobol": partial(Quasi, kind="sobol"),
    "halton": partial(Quasi, kind="halton"),
    "tpe": partial(Guided, kind="tpe"),
    "cmaes": partial(Guided, kind="cmaes"),
    "gp": partial(Guided, kind="gp"),
}

NEEDED = {"tpe": ("optuna",), "cmaes": ("optuna", "cmaes"), "gp": ("optuna",)}
"""The packages that samplers need beyond what is always installed."""


def unavailable(spec: StudySpec) -> str | None:
    """Why the study's sampler cannot work here, in a sentence; None where it can."""
    sampler = spec.tuner.sampler if isinstance(spec.tuner, SamplingTuner) else ""
    if all(map(find_spec, NEEDED.get(sampler, ()))):
        return None
    return f"must be another one on this server, since {sampler} needs Optuna: pip install 'stagetree[optuna]'"


__all__ = ["NEEDED", "SOURCES", "Proposal", "Source", "unavailable"]
