"""The tuners that a study file can name, with their fields. `app.search.tuners` implements them.

A new kind is a subclass of `TunerSpec` with its own `kind`, added to `Tuner`.
"""

from __future__ import annotations

from typing import Annotated, get_args

from pydantic import Field

from stagetree.spec.tuners.base import SamplingTuner, TunerSpec
from stagetree.spec.tuners.early_stopping import (
    BanditTuner,
    CurveTuner,
    EarlyTermTuner,
    MedianTuner,
    PopTuner,
    StopHopeless,
)
from stagetree.spec.tuners.fixed import CustomTuner, ExternalTuner, FixedTuner, GridTuner, RandomTuner, TrialsTuner
from stagetree.spec.tuners.halving import AshaTuner, AsynchronousTuner, AsyncHyperbandTuner, HyperbandTuner, ShaTuner
from stagetree.spec.tuners.pbt import PbtTuner

__all__ = [
    "KINDS",
    "AshaTuner",
    "AsyncHyperbandTuner",
    "AsynchronousTuner",
    "BanditTuner",
    "CurveTuner",
    "CustomTuner",
    "EarlyTermTuner",
    "ExternalTuner",
    "FixedTuner",
    "GridTuner",
    "HyperbandTuner",
    "MedianTuner",
    "PbtTuner",
    "PopTuner",
    "RandomTuner",
    "SamplingTuner",
    "ShaTuner",
    "StopHopeless",
    "TrialsTuner",
    "Tuner",
    "TunerSpec",
]

Tuner = Annotated[
    GridTuner
    | RandomTuner
    | TrialsTuner
    | ShaTuner
    | AshaTuner
    | HyperbandTuner
    | AsyncHyperbandTuner
    | MedianTuner
    | BanditTuner
    | EarlyTermTuner
    | PopTuner
    | PbtTuner
    | CustomTuner
    | ExternalTuner,
    Field(discriminator="kind"),
]

KINDS: dict[str, type[TunerSpec]] = {cls.model_fields["kind"].default: cls for cls in get_args(get_args(Tuner)[0])}
