"""Search spaces: the configurations that a study may try.

A space maps each hyper-parameter to a scalar, a sequence, a distribution, a family object with distributions in any of
its fields, or a list of such entries to choose from. Hyper-parameters can be conditional: see
`stagetree.space.where`.

>>> decays = {"family": "exponential", "init": {"choice": [0.1, 0.2]}, "gamma": 0.9}
>>> space = Space({"lr": [decays, 0.1], "bs": [64, 128]})
>>> space.size()
6
>>> {name: sequence.at(0) for name, sequence in next(space.grid()).items()}
{'lr': 0.1, 'bs': 64}
>>> lr = Space({"lr": {"loguniform": [1e-4, 1e-1]}}).sample(seed=0, number=7)["lr"]
>>> 1e-4 <= lr.at(0) <= 1e-1
True
"""

from __future__ import annotations

from stagetree.space.distributions import (
    Choice,
    Distribution,
    LogRandInt,
    LogUniform,
    Normal,
    RandInt,
    Range,
    SpaceError,
    Uniform,
    plain,
)
from stagetree.space.entries import read_entry
from stagetree.space.lengths import LENGTH
from stagetree.space.notation import DISTRIBUTIONS, canonical
from stagetree.space.patterns import Choose, random_choices
from stagetree.space.space import Space
from stagetree.space.where import Where, WhereError

__all__ = [
    "DISTRIBUTIONS",
    "LENGTH",
    "Choice",
    "Choose",
    "Distribution",
    "LogRandInt",
    "LogUniform",
    "Normal",
    "RandInt",
    "Range",
    "Space",
    "SpaceError",
    "Uniform",
    "Where",
    "WhereError",
    "canonical",
    "plain",
    "random_choices",
    "read_entry",
]
