"""Import of W&B sweeps and Optuna studies.

    fields = from_wandb("sweep.yaml")
    study = Study.create(fields, name="mine", trainer="digits", ...)

    space = space_from_optuna(optuna_study)
    first = configurations_from_optuna(optuna_study, best=5)

Options without an equivalent raise an error; nothing is dropped silently.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stagetree.errors import StagetreeError
from stagetree.space import canonical, plain
from stagetree.space.notation import lograndint, loguniform, normal, randint, uniform

if TYPE_CHECKING:
    import optuna

__all__ = ["configurations_from_optuna", "from_wandb", "space_from_optuna"]

Json = dict[str, Any]


def from_wandb(sweep: str | Path | Mapping[str, Any]) -> Json:
    """Convert a W&B sweep, as a YAML file or dict, to fields of a study: space, metric, mode and tuner.

    `bayes` becomes random search with TPE, `hyperband` early termination becomes ASHA. Raises `StagetreeError`.
    """
    content = dict(sweep) if isinstance(sweep, Mapping) else _read(Path(sweep))
    metric = content.get("metric") or {}
    if "name" not in metric:
        raise StagetreeError("metric.name: is missing: the metric that the sweep is about")
    space = _parameters(content.get("parameters") or {}, "")
    for name in _STEPS:  # here it is the tuner's max_steps
        space.pop(name, None)
    fields = {"metric": metric["name"], "mode": {"maximize": "max"}.get(metric.get("goal", ""), "min"), "space": space}
    return {**fields, "tuner": _tuner(content)}


def _read(path: Path) -> Json:
    from stagetree.spec.file import read

    values = read(path)
    if not isinstance(values, dict):
        raise StagetreeError(f"{path}: must be a W&B sweep, an object with method, metric and parameters")
    return values


def _parameters(parameters: Mapping[str, Any], path: str) -> Json:
    """The entry of each parameter; nested parameters get dotted names."""
    space: Json = {}
    for name, parameter in parameters.items():
        if "parameters" in parameter:
            space |= _parameters(parameter["parameters"], f"{path}{name}.")
        else:
            space[f"{path}{name}"] = _parameter(parameter, f"parameters.{path}{name}")
    return space


def _parameter(parameter: Mapping[str, Any], path: str) -> Any:
    """One parameter, by W&B's rules for parameters without a distribution."""
    if "value" in parameter:
        return parameter["value"]
    if "values" in parameter:
        weighted = "probabilities" in parameter
        return (
            canonical({name: parameter[name] for name in ("values", "probabilities")})
            if weighted
            else parameter["values"]
        )
    if parameter.get("distribution") in ("normal", "q_normal"):
        mean = parameter.get("mu", 0)
        return plain(normal(mean, parameter.get("sigma", 1), step=_quantum(parameter, mean, path)))
    if not {"min", "max"} <= parameter.keys():
        raise StagetreeError(f"{path}: must have value, values, or min and max")
    low, high = parameter["min"], parameter["max"]
    is_whole = isinstance(low, int) and isinstance(high, int)
    kind = parameter.get("distribution", "int_uniform" if is_whole else "uniform")
    if kind not in (kinds := [*_RANGES, *_QUANTISED, "normal", "q_normal"]):
        raise StagetreeError(f"{path}.distribution: must be one of {', '.join(kinds)}, got {kind!r}")
    step = _quantum(parameter, low, path)
    return plain(_RANGES[kind](low, high) if step is None else _QUANTISED[kind](low, high, step))


def _quantum(parameter: Mapping[str, Any], anchor: float, path: str) -> float | None:
    """Convert `q`: W&B samples multiples of it, while our steps count from a bound or the mean, which must be a
    multiple.
    """
    if not str(parameter.get("distribution", "")).startswith("q_"):
        return None
    step = parameter.get("q", 1)
    if Decimal(repr(anchor)) % Decimal(repr(step)):
        raise StagetreeError(f"{path}.q: must divide {anchor!r}, from which steps are counted here, got {step!r}")
    return float(step)


_RANGES: dict[str, Callable[[Any, Any], Any]] = {
    "uniform": uniform,
    "int_uniform": randint,
    "log_uniform_values": loguniform,
    "log_uniform": lambda low, high: loguniform(math.exp(low), math.exp(high)),
}

_QUANTISED: dict[str, Callable[[Any, Any, Any], Any]] = {"q_uniform": uniform, "q_log_uniform_values": loguniform}


def _tuner(content: Mapping[str, Any]) -> Json:
    """The tuner for a sweep's method, run cap and early termination. W&B's iterations are our steps."""
    method, stopping = content.get("method"), content.get("early_terminate")
    if method not in ("grid", "random", "bayes"):
        raise StagetreeError(f"method: must be one of grid, random, bayes, got {method!r}")
    trials = {"num_trials": int(content["run_cap"])} if "run_cap" in content else {}
    if stopping is None:
        steps = _steps(content)
        if method == "grid":
            return {"kind": "grid", "max_steps": steps}
        if method == "random":
            return {"kind": "random", "max_steps": steps, **_check_cap(trials)}
        return {"kind": "asha", "sampler": "tpe", "min_steps": steps, "max_steps": steps, **_check_cap(trials)}
    if stopping.get("type") != "hyperband":
        raise StagetreeError(f"early_terminate.type: must be hyperband, got {stopping.get('type')!r}")
    sampler = {"grid": "grid", "random": "random", "bayes": "tpe"}[method]
    eta, rungs = int(stopping.get("eta", 3)), int(stopping.get("s", 1))
    most = int(stopping["max_iter"]) if "max_iter" in stopping else int(stopping["min_iter"]) * eta**rungs
    least = int(stopping["min_iter"]) if "min_iter" in stopping else max(1, most // eta**rungs)
    return {
        "kind": "asha",
        "type": "stopping",
        "sampler": sampler,
        "min_steps": least,
        "max_steps": most,
        "reduction_factor": eta,
        **_check_cap(trials),
    }


_STEPS = ("epochs", "max_steps", "steps")
"""Names of the constant that sets the length of runs in sweeps."""


def _steps(content: Mapping[str, Any]) -> int:
    """A sweep does not contain the length of its runs, unless as a constant with one of these names."""
    for name in _STEPS:
        value = (content.get("parameters") or {}).get(name, {}).get("value")
        if isinstance(value, int):
            return value
    raise StagetreeError("parameters.epochs.value: is missing: a study says for how many steps its trials are trained")


def _check_cap(trials: Json) -> Json:
    if not trials:
        raise StagetreeError("run_cap: is missing: a study says how many trials it has")
    return trials


# -------------------------------------------------------------------------------------------------------------- Optuna


def space_from_optuna(study: optuna.Study) -> Json:
    """The space of an Optuna study: each parameter with its last distribution."""
    space: Json = {}
    for trial in study.trials:
        for name, distribution in trial.distributions.items():
            space[name] = _distribution(name, distribution)
    if not space:
        raise StagetreeError("the Optuna study has no trials yet, and so no space")
    return space


def _distribution(name: str, distribution: Any) -> Any:
    kind = type(distribution).__name__
    if kind == "CategoricalDistribution":
        return {"choice": list(distribution.choices)}
    if kind == "IntDistribution" and distribution.log:
        return plain(lograndint(distribution.low, distribution.high))
    if kind == "IntDistribution":
        return plain(randint(distribution.low, distribution.high, distribution.step if distribution.step > 1 else None))
    return plain((loguniform if distribution.log else uniform)(distribution.low, distribution.high, distribution.step))


def configurations_from_optuna(study: optuna.Study, best: int | None = None) -> list[Json]:
    """The configurations of completed trials, best first, as a tuner's `first` and `eval` accept them."""
    from optuna.trial import TrialState

    done = study.get_trials(deepcopy=False, states=(TrialState.COMPLETE,))
    is_max = study.direction.name == "MAXIMIZE"
    ranked = sorted(done, key=lambda trial: trial.value or 0.0, reverse=is_max)
    return [dict(trial.params) for trial in ranked[:best]]
