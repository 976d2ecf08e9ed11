"""What users import: sequences, spaces, study specs, trainers, studies and the client.

Every name is imported when it is first asked for, so that `import stagetree` costs nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    __version__: str
    from stagetree.client import AsyncClient, Client
    from stagetree.client.blocking import wait_all, wait_any
    from stagetree.client.trial_requests import Result
    from stagetree.errors import (
        Conflict,
        FailedStudy,
        Invalid,
        NotFound,
        ProblemError,
        StagetreeError,
        StudyOver,
        TrialFailed,
        Unreachable,
    )
    from stagetree.functions import FunctionTrainer, Run, attach, function_trainer
    from stagetree.local_server import LocalServer, local
    from stagetree.results import Results
    from stagetree.runtime.checkpoints.weight_files import export_weights, load_state, load_weights
    from stagetree.sequences import (
        Constant,
        Cosine,
        Cyclic,
        Exponential,
        InverseSqrt,
        Linear,
        MultiStep,
        OneCycle,
        Part,
        Piecewise,
        Polynomial,
        Power,
        Sequence,
        SequenceError,
        Values,
        Warmup,
        Wsd,
    )
    from stagetree.sequences.fractions import fraction
    from stagetree.sequences.values import mix, shares
    from stagetree.space import Space
    from stagetree.space.conditions import when
    from stagetree.space.distributions import Choice, LogRandInt, LogUniform, Normal, RandInt, SpaceError, Uniform
    from stagetree.space.notation import choice, lograndint, loguniform, normal, randint, uniform
    from stagetree.space.where import WhereError
    from stagetree.spec import Problem, SpecError, StudySpec, TrialSpec
    from stagetree.spec.tuners import (
        AshaTuner,
        AsyncHyperbandTuner,
        BanditTuner,
        CustomTuner,
        EarlyTermTuner,
        ExternalTuner,
        GridTuner,
        HyperbandTuner,
        MedianTuner,
        PbtTuner,
        PopTuner,
        RandomTuner,
        ShaTuner,
        TrialsTuner,
    )
    from stagetree.study import AsyncStudy, Study
    from stagetree.trainer import Trainer
    from stagetree.trainer.command import CommandTrainer
    from stagetree.trainer.torch_trainer import TorchTrainer

__all__ = [
    "AshaTuner",
    "AsyncClient",
    "AsyncHyperbandTuner",
    "AsyncStudy",
    "BanditTuner",
    "Choice",
    "Client",
    "CommandTrainer",
    "Conflict",
    "Constant",
    "Cosine",
    "CustomTuner",
    "Cyclic",
    "EarlyTermTuner",
    "Exponential",
    "ExternalTuner",
    "FailedStudy",
    "FunctionTrainer",
    "GridTuner",
    "HyperbandTuner",
    "Invalid",
    "InverseSqrt",
    "Linear",
    "LocalServer",
    "LogRandInt",
    "LogUniform",
    "MedianTuner",
    "MultiStep",
    "Normal",
    "NotFound",
    "OneCycle",
    "Part",
    "PbtTuner",
    "Piecewise",
    "Polynomial",
    "PopTuner",
    "Power",
    "Problem",
    "ProblemError",
    "RandInt",
    "RandomTuner",
    "Result",
    "Results",
    "Run",
    "Sequence",
    "SequenceError",
    "ShaTuner",
    "Space",
    "SpaceError",
    "SpecError",
    "StagetreeError",
    "Study",
    "StudyOver",
    "StudySpec",
    "TorchTrainer",
    "Trainer",
    "TrialFailed",
    "TrialSpec",
    "TrialsTuner",
    "Uniform",
    "Unreachable",
    "Values",
    "Warmup",
    "WhereError",
    "Wsd",
    "__version__",
    "attach",
    "choice",
    "export_weights",
    "fraction",
    "function_trainer",
    "load_state",
    "load_weights",
    "local",
    "lograndint",
    "loguniform",
    "mix",
    "normal",
    "randint",
    "shares",
    "uniform",
    "wait_all",
    "wait_any",
    "when",
]

_HOMES = {
    "client": ("AsyncClient", "Client"),
    "client.blocking": ("wait_all", "wait_any"),
    "client.trial_requests": ("Result",),
    "trainer.command": ("CommandTrainer",),
    "space.conditions": ("when",),
    "space.distributions": ("Choice", "LogRandInt", "LogUniform", "Normal", "RandInt", "SpaceError", "Uniform"),
    "space.notation": ("choice", "lograndint", "loguniform", "normal", "randint", "uniform"),
    "errors": (
        "Conflict",
        "FailedStudy",
        "Invalid",
        "NotFound",
        "ProblemError",
        "StagetreeError",
        "StudyOver",
        "TrialFailed",
        "Unreachable",
    ),
    "functions": ("FunctionTrainer", "Run", "attach", "function_trainer"),
    "local_server": ("LocalServer", "local"),
    "results": ("Results",),
    "sequences": (
        "Constant",
        "Cosine",
        "Cyclic",
        "Exponential",
        "InverseSqrt",
        "Linear",
        "MultiStep",
        "OneCycle",
        "Part",
        "Piecewise",
        "Polynomial",
        "Power",
        "Sequence",
        "SequenceError",
        "Values",
        "Warmup",
        "Wsd",
    ),
    "sequences.fractions": ("fraction",),
    "sequences.values": ("mix", "shares"),
    "space": ("Space",),
    "spec": ("Problem", "SpecError", "StudySpec", "TrialSpec"),
    "spec.tuners": (
        "AshaTuner",
        "AsyncHyperbandTuner",
        "BanditTuner",
        "CustomTuner",
        "EarlyTermTuner",
        "ExternalTuner",
        "GridTuner",
        "HyperbandTuner",
        "MedianTuner",
        "PbtTuner",
        "PopTuner",
        "RandomTuner",
        "ShaTuner",
        "TrialsTuner",
    ),
    "study": ("AsyncStudy", "Study"),
    "trainer.torch_trainer": ("TorchTrainer",),
    "trainer": ("Trainer",),
    "runtime.checkpoints.weight_files": ("export_weights", "load_state", "load_weights"),
    "space.where": ("WhereError",),
}
_HOME = {name: home for home, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """The name, from the module it lives in."""
    if name == "__version__":
        from importlib.metadata import version

        return version("stagetree")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    """What there is to import, for an editor or a prompt that completes names."""
    return __all__
