"""What users import: sequences, spaces, study specs, trainers and the client.

Every name is imported when it is first asked for, so that `import stagetree` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stagetree.client import Client, Conflict, Invalid, NotFound, ProblemError, StagetreeError, Unreachable
    from stagetree.sequences import (
        Constant,
        Cosine,
        Cyclic,
        Exponential,
        Linear,
        MultiStep,
        Part,
        Piecewise,
        Polynomial,
        Sequence,
        SequenceError,
        Values,
        Warmup,
        Wsd,
    )
    from stagetree.space import Space, SpaceError
    from stagetree.spec import GridTuner, Problem, RandomTuner, SpecError, StudySpec, TrialSpec, TrialsTuner
    from stagetree.study import Result, Study, StudyOver, SyncStudy, TrialFailed, wait_all, wait_any
    from stagetree.torch_trainer import TorchTrainer
    from stagetree.trainer import Trainer
    from stagetree.where import WhereError

__all__ = [
    "Client",
    "Conflict",
    "Constant",
    "Cosine",
    "Cyclic",
    "Exponential",
    "GridTuner",
    "Invalid",
    "Linear",
    "MultiStep",
    "NotFound",
    "Part",
    "Piecewise",
    "Polynomial",
    "Problem",
    "ProblemError",
    "RandomTuner",
    "Result",
    "Sequence",
    "SequenceError",
    "Space",
    "SpaceError",
    "SpecError",
    "StagetreeError",
    "Study",
    "StudyOver",
    "StudySpec",
    "SyncStudy",
    "TorchTrainer",
    "Trainer",
    "TrialFailed",
    "TrialSpec",
    "TrialsTuner",
    "Unreachable",
    "Values",
    "Warmup",
    "WhereError",
    "Wsd",
    "wait_all",
    "wait_any",
]

_HOMES = {
    "client": ("Client", "Conflict", "Invalid", "NotFound", "ProblemError", "StagetreeError", "Unreachable"),
    "space": ("Space", "SpaceError"),
    "spec": ("GridTuner", "Problem", "RandomTuner", "SpecError", "StudySpec", "TrialSpec", "TrialsTuner"),
    "study": ("Result", "Study", "StudyOver", "SyncStudy", "TrialFailed", "wait_all", "wait_any"),
    "torch_trainer": ("TorchTrainer",),
    "trainer": ("Trainer",),
    "where": ("WhereError",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The name from the module it lives in; what is not listed above is a sequence."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME.get(name, 'sequences')}"), name)
