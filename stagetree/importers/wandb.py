"""Sweep files of Weights & Biases.

Search methods: `grid`; `random`; `bayes`, which becomes the sampler `tpe`. Early termination by `hyperband` becomes
`asha` of the type `stopping`: both stop a run at a rung unless it is among the best 1/eta of the runs at that rung.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from stagetree.importers.draft import Draft, grid_size, is_length
from stagetree.importers.values import MODES, choice, constant, evenly, multiples, number, whole
from stagetree.sequences import SequenceError, did_you_mean
from stagetree.space import plain
from stagetree.space.notation import loguniform, normal, randint

Json = dict[str, Any]
Parameter = Mapping[str, Any]

METHODS = {"grid": "grid", "random": "random", "bayes": "tpe"}
"""The sampler of each method."""

LEFT_OUT = {
    "program": "{} becomes the trainer of the study, see docs/trainers.md",
    "command": "is left out: other arguments of the program belong in trainer_args: {}",
    "project": "is left out: sinks: [wandb:{}] writes the study to it",
    "entity": "is left out: WANDB_ENTITY={} says it to a sink",
    "description": "is left out: stagetree note ID TEXT keeps it with the study",
    "controller": "is left out: the scheduler decides here",
    "job": "is left out: the trainer is a file here",
    "imageuri": "is left out: slots train in the environment in which they are started",
    "image_uri": "is left out: slots train in the environment in which they are started",
    "launch": "is left out: slots are started by stagetree up, or on a cluster",
    "prior_runs": "is left out: learn_from names earlier studies",
    "display_name": "is left out: name is the name of a study",
}
USED = ["method", "metric", "parameters", "early_terminate", "run_cap", "name"]


def is_wandb(content: Any) -> bool:
    """Whether this looks like a sweep: `parameters` are objects by name, or a method of its searches stands there."""
    if not isinstance(content, Mapping):
        return False
    return isinstance(content.get("parameters"), Mapping) or ("method" in content and "metric" in content)


def read_wandb(content: Json) -> Draft:
    """The draft of a study from a sweep."""
    draft = Draft(program=str(content.get("program") or ""))
    draft.check_fields(content, USED, LEFT_OUT)
    if content.get("name"):
        draft.fields["name"] = str(content["name"])
    _read_metric(content.get("metric"), draft)
    parameters = content.get("parameters")
    if isinstance(parameters, Mapping):
        _read_parameters(parameters, draft, "", "parameters")
    else:
        draft.refuse("parameters", "must be an object from hyper-parameter to its values")
    _read_tuner(content, draft)
    return draft


def _read_metric(metric: Any, draft: Draft) -> None:
    if metric is None:
        return
    if not isinstance(metric, Mapping):
        draft.refuse("metric", f"must be an object, got {metric!r}: write metric: {{name: {metric}, goal: minimize}}")
        return
    draft.check_names(metric, ["name", "goal", "target", "impute", "impute_while_running"], "metric.")
    if "name" in metric:
        draft.fields["metric"] = metric["name"]
    goal = metric.get("goal", "minimize")  # W&B's default
    if isinstance(goal, str) and goal in MODES:
        draft.fields["mode"] = MODES[goal]
    else:
        draft.refuse("metric.goal", f"must be minimize or maximize, got {goal!r}{did_you_mean(goal, MODES)}", "mode")
    if metric.get("target") is not None:
        draft.fields["target"] = metric["target"]
    failed = "is left out: a trial that fails has no result here"
    draft.leave_out(metric, {"impute": failed, "impute_while_running": failed}, "metric.")


# ----------------------------------------------------------------------------------------------------------- parameters


def _read_parameters(parameters: Parameter, draft: Draft, before: str, place: str) -> None:
    """The entry of each parameter; nested ones get dotted names."""
    for name, parameter in parameters.items():
        at = f"{place}.{name}"
        if isinstance(parameter, Mapping) and isinstance(parameter.get("parameters"), Mapping):
            draft.check_names(parameter, ["parameters"], f"{at}.")
            _read_parameters(parameter["parameters"], draft, f"{before}{name}.", at)
        else:
            draft.add(f"{before}{name}", at, lambda parameter=parameter, at=at: _entry(parameter, at))  # type: ignore[misc]
            _note_exponents(parameter, draft, at)


def _note_exponents(parameter: Any, draft: Draft, at: str) -> None:
    """Note bounds of `log_uniform` that were meant for `log_uniform_values`."""
    if isinstance(parameter, Mapping) and parameter.get("distribution") == "log_uniform":
        low, high = parameter.get("min"), parameter.get("max")
        if isinstance(low, int | float) and isinstance(high, int | float) and 0 < low < high <= 1:
            drawn = f"{math.exp(low):.6g} to {math.exp(high):.6g}"
            draft.note(
                at, f"draws from {drawn}: log_uniform has exponents of e, log_uniform_values the bounds themselves"
            )


def _entry(parameter: Any, at: str) -> Any:
    if not isinstance(parameter, Mapping):
        example = f", got {parameter!r}: write {{value: {parameter}}}" if parameter is not None else ""
        raise SequenceError(at, f"must have value, values, or min and max{example}")
    kind = parameter.get("distribution") or _inferred(parameter, at)
    if not isinstance(kind, str) or kind not in _KINDS:
        known = f"must be one of {', '.join(_KINDS)}, got {kind!r}{did_you_mean(kind, _KINDS)}"
        raise SequenceError(f"{at}.distribution", known)
    needed, optional, convert = _KINDS[kind]
    for name in needed:
        if parameter.get(name) is None and not (name == "value" and name in parameter):
            raise SequenceError(f"{at}.{name}", f"is missing: {kind} needs {' and '.join(needed)}")
    for name in parameter:
        if name not in {"distribution", *needed, *optional} and parameter[name] is not None:
            known_names = ", ".join([*needed, *optional])
            raise SequenceError(f"{at}.{name}", f"does not go with {kind}, which has {known_names}")
    return convert(parameter, at)


def _inferred(parameter: Parameter, at: str) -> str:
    """The distribution of a parameter that names none, by W&B's rules."""
    if "value" in parameter:
        return "constant"
    if "values" in parameter:
        return "categorical_w_probabilities" if "probabilities" in parameter else "categorical"
    if not {"min", "max"} <= parameter.keys():
        raise SequenceError(at, "must have value, values, or min and max")
    is_whole = all(isinstance(parameter[name], int) for name in ("min", "max"))
    return "int_uniform" if is_whole else "uniform"


def _bounds(parameter: Parameter, at: str) -> tuple[float, float]:
    return number(parameter["min"], f"{at}.min"), number(parameter["max"], f"{at}.max")


def _uniform(parameter: Parameter, at: str) -> Any:
    return evenly(*_bounds(parameter, at))


def _int_uniform(parameter: Parameter, at: str) -> Any:
    low, high = (int(each) if each == int(each) else whole(each, at) for each in _bounds(parameter, at))
    return plain(randint(low, high))


def _q_uniform(parameter: Parameter, at: str) -> Any:
    return multiples(*_bounds(parameter, at), _quantum(parameter, at), f"{at}.q")


def _log_uniform_values(parameter: Parameter, at: str) -> Any:
    return plain(loguniform(*_bounds(parameter, at)))


def _q_log_uniform_values(parameter: Parameter, at: str) -> Any:
    return multiples(*_bounds(parameter, at), _quantum(parameter, at), f"{at}.q", is_log=True)


def _log_uniform(parameter: Parameter, at: str) -> Any:
    """The bounds are exponents of e."""
    low, high = _bounds(parameter, at)
    if high > 700:
        raise SequenceError(
            f"{at}.max", f"is an exponent of e, got {high}: log_uniform_values has the bounds themselves"
        )
    return plain(loguniform(math.exp(low), math.exp(high)))


def _inv_log_uniform(parameter: Parameter, at: str) -> Any:
    """1/x is log-uniform between powers of e, and so is x."""
    low, high = _bounds(parameter, at)
    return plain(loguniform(math.exp(-high), math.exp(-low)))


def _normal(parameter: Parameter, at: str) -> Any:
    return plain(normal(parameter.get("mu", 0), parameter.get("sigma", 1)))


def _q_normal(parameter: Parameter, at: str) -> Any:
    mean, step = number(parameter.get("mu", 0), f"{at}.mu"), _quantum(parameter, at)
    if isinstance(step, int):
        raise SequenceError(
            f"{at}.q", f"gives whole numbers, and normal gives floats here: write a choice, or q: {step}.0"
        )
    multiples(mean, mean, step, f"{at}.q")
    return plain(normal(mean, parameter.get("sigma", 1), step=step))


def _quantum(parameter: Parameter, at: str) -> float:
    return number(parameter.get("q", 1), f"{at}.q")


def _constant(parameter: Parameter, at: str) -> Any:
    return constant(parameter["value"], f"{at}.value")


def _categorical(parameter: Parameter, at: str) -> Any:
    return choice(parameter["values"], f"{at}.values", parameter.get("probabilities"))


def _refused(why: str) -> Callable[[Parameter, str], Any]:
    def refuse(parameter: Parameter, at: str) -> Any:
        raise SequenceError(f"{at}.distribution", f"{parameter['distribution']} has no counterpart: {why}")

    return refuse


_BETA = _refused("write {uniform: [0, 1]}, or {normal: [mean, deviation], min: 0, max: 1}")
_LOG_NORMAL = _refused("write {loguniform: [lowest, highest]}, such as e to the power of mu - 2 sigma and mu + 2 sigma")
_Q_LOG = _refused("its bounds are exponents: write q_log_uniform_values with the bounds themselves")
_RANGE = ("min", "max")

_KINDS: dict[str, tuple[tuple[str, ...], tuple[str, ...], Callable[[Parameter, str], Any]]] = {
    "constant": (("value",), (), _constant),
    "categorical": (("values",), (), _categorical),
    "categorical_w_probabilities": (("values", "probabilities"), (), _categorical),
    "int_uniform": (_RANGE, (), _int_uniform),
    "uniform": (_RANGE, (), _uniform),
    "q_uniform": (_RANGE, ("q",), _q_uniform),
    "log_uniform": (_RANGE, (), _log_uniform),
    "log_uniform_values": (_RANGE, (), _log_uniform_values),
    "q_log_uniform": (_RANGE, ("q",), _Q_LOG),
    "q_log_uniform_values": (_RANGE, ("q",), _q_log_uniform_values),
    "inv_log_uniform": (_RANGE, (), _inv_log_uniform),
    "inv_log_uniform_values": (_RANGE, (), _log_uniform_values),
    "normal": ((), ("mu", "sigma"), _normal),
    "q_normal": ((), ("mu", "sigma", "q"), _q_normal),
    "log_normal": ((), ("mu", "sigma"), _LOG_NORMAL),
    "q_log_normal": ((), ("mu", "sigma", "q"), _LOG_NORMAL),
    "beta": ((), ("a", "b"), _BETA),
    "q_beta": ((), ("a", "b", "q"), _BETA),
}
"""The distributions of W&B: the fields that each needs, the others that it has, and its conversion."""


# ---------------------------------------------------------------------------------------------------------------- tuner


def _read_tuner(content: Json, draft: Draft) -> None:
    method, stopping, cap = content.get("method"), content.get("early_terminate"), content.get("run_cap")
    if not isinstance(method, str) or method not in METHODS:
        draft.refuse("method", f"must be one of {', '.join(METHODS)}, got {method!r}{did_you_mean(method, METHODS)}")
        return
    if cap is not None:
        try:
            draft.tuner["num_trials"] = whole(cap, "run_cap")
        except SequenceError as error:
            draft.refuse(error.field, error.problem)
    is_capped_grid = method == "grid" and cap is not None
    if stopping is None and method != "bayes" and not is_capped_grid:
        draft.tuner["kind"] = method
        return
    draft.tuner |= {"kind": "asha", "sampler": METHODS[method]}
    if method == "grid" and cap is None and not draft.problems:
        draft.tuner["num_trials"] = grid_size({name: each for name, each in draft.space.items() if not is_length(name)})
    if stopping is not None:
        _read_stopping(stopping, draft)


def _read_stopping(stopping: Any, draft: Draft) -> None:
    """Rungs. W&B has them from `min_iter` on, times eta; or at `max_iter` divided by eta, `s` times."""
    if not isinstance(stopping, Mapping) or stopping.get("type") != "hyperband":
        got = stopping.get("type") if isinstance(stopping, Mapping) else stopping
        draft.refuse("early_terminate.type", f"must be hyperband, got {got!r}")
        return
    draft.check_names(stopping, ["type", "min_iter", "max_iter", "s", "eta", "strict"], "early_terminate.")
    try:
        rungs = _rungs(stopping, draft)
    except SequenceError as error:
        draft.refuse(f"early_terminate.{error.field}", error.problem)
        return
    draft.tuner |= {"type": "stopping", **rungs}
    if stopping.get("strict"):
        draft.fields["value"] = "last"  # the value at the rung
    elif "strict" in stopping:
        draft.note("early_terminate.strict", "is left out: value: best compares best results, as without strict")


def _rungs(stopping: Parameter, draft: Draft) -> Json:
    eta = whole(stopping.get("eta", 3), "eta")
    if "max_iter" not in stopping:
        if "min_iter" not in stopping:
            raise SequenceError("min_iter", "is missing: the first step at which runs are stopped, or max_iter")
        if "s" in stopping:
            draft.note("early_terminate.s", "is left out: beside min_iter it has no effect")
        return {"min_steps": whole(stopping["min_iter"], "min_iter"), "reduction_factor": eta}
    most, brackets = whole(stopping["max_iter"], "max_iter"), whole(stopping.get("s", 1), "s")
    if "min_iter" in stopping:
        draft.note("early_terminate.min_iter", "is left out: beside max_iter it has no effect")
    has_length = any(map(is_length, draft.space))
    length = {} if has_length else {"max_steps": most}
    return {"min_steps": max(1, most // eta**brackets), "reduction_factor": eta, **length}
