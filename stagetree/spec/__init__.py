"""The study file and the body of `POST /studies`: one object, `StudySpec`, checked whole before anything runs.

>>> spec = StudySpec.from_dict({
...     "name": "demo", "trainer": "digits", "metric": "accuracy", "mode": "max",
...     "space": {"lr": [0.1, 0.01], "bs": 64}, "tuner": {"kind": "grid", "max_steps": 40},
... })
>>> [{name: sequence.at(0) for name, sequence in hp.items()} for hp in spec.configurations()]
[{'lr': 0.1, 'bs': 64}, {'lr': 0.01, 'bs': 64}]

An invalid study raises one `SpecError` with a `Problem` for each wrong field. The tuners are in
`stagetree.spec.tuners`.
"""

from __future__ import annotations

from stagetree.spec.errors import Problem, SpecError, shorten
from stagetree.spec.fields import OTHER_NAMES
from stagetree.spec.study import StudySpec
from stagetree.spec.trainer_inputs import BeginFrom, reduction_name
from stagetree.spec.tuners.early_stopping import StopHopeless
from stagetree.spec.tuners.fixed import TrialSpec
from stagetree.spec.tuners.pbt import MAX_DRAWS

__all__ = [
    "MAX_DRAWS",
    "OTHER_NAMES",
    "BeginFrom",
    "Problem",
    "SpecError",
    "StopHopeless",
    "StudySpec",
    "TrialSpec",
    "reduction_name",
    "shorten",
]
