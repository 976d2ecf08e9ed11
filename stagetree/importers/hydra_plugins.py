"""Hydra's sweepers by Ax and by Nevergrad, whose spaces have notations of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stagetree.importers.draft import Draft
from stagetree.importers.values import choice, constant, evenly, number, whole
from stagetree.sequences import SequenceError
from stagetree.space import plain
from stagetree.space.notation import lograndint, loguniform, randint

Json = dict[str, Any]

OF_AX = {
    "early_stop": "is left out: target and patience end a study",
    "client": "is left out: it configures Ax",
    "is_noisy": "is left out: repeats train each trial several times",
}
OF_AX_EXPERIMENT = {
    "name": "is left out: name is that of the study",
    "objective_name": "is left out, as a word of Ax alone: {}",
    "parameter_constraints": "is left out: where says which combinations are wanted: {}",
    "outcome_constraints": "is left out: constraints compare metrics: {}",
    "status_quo": "is left out: first lists configurations to try before any are sampled",
}
OF_NEVERGRAD = {"noisy": "is left out: repeats train each trial several times"}


def read_ax(config: Json, draft: Draft, place: str) -> None:
    """`ax_config`: ranges, choices and fixed values, sampled by a Gaussian process."""
    experiment = dict(config.get("experiment") or {})
    draft.fields["mode"] = "min" if experiment.pop("minimize", True) else "max"
    draft.check_fields(experiment, [], OF_AX_EXPERIMENT, f"{place}experiment.")
    draft.tuner |= {"kind": "asha", "sampler": "gp", "num_trials": config.get("max_trials")}
    draft.check_fields(config, ["max_trials", "experiment", "params"], OF_AX, place)
    _read_each(config.get("params"), draft, f"{place}params", _ax_entry)


def _ax_entry(value: Any, at: str) -> Any:
    if not isinstance(value, Mapping):
        return constant(value, at)
    kind = value.get("type")
    if kind == "choice":
        return choice(value.get("values"), f"{at}.values")
    if kind == "fixed":
        return constant(value.get("value"), f"{at}.value")
    if kind != "range":
        raise SequenceError(f"{at}.type", f"must be range, choice or fixed, got {kind!r}")
    bounds = value.get("bounds")
    if not isinstance(bounds, list) or len(bounds) != 2:
        raise SequenceError(f"{at}.bounds", f"must be two numbers, got {bounds!r}")
    is_whole = value.get("value_type", "int" if all(isinstance(each, int) for each in bounds) else "float") == "int"
    low, high = bounds
    return _range(low, high, f"{at}.bounds", is_whole=is_whole, is_log=bool(value.get("log_scale")))


def read_nevergrad(sweeper: Json, draft: Draft, place: str) -> None:
    """`optim` and `parametrization`: bounded numbers, and lists of values. No optimizer of it has a counterpart."""
    optim = dict(sweeper.get("optim") or {})
    draft.fields["mode"] = "max" if optim.pop("maximize", False) else "min"
    draft.tuner |= {"kind": "random", "num_trials": optim.pop("budget", None)}
    if optim.get("num_workers"):
        draft.fields["max_slots"] = optim.pop("num_workers")
    if isinstance(seed := optim.pop("seed", None), int):
        draft.tuner["sampling_seed"] = seed
    name = optim.pop("optimizer", "NGOpt")  # the plugin's default
    draft.note(
        f"{place}optim.optimizer", f"{name} has no counterpart: configurations are sampled; see docs/samplers.md"
    )
    draft.check_fields(optim, [], OF_NEVERGRAD, f"{place}optim.")
    draft.check_names(sweeper, ["_target_", "defaults", "optim", "parametrization", "version"], place)
    _read_each(sweeper.get("parametrization"), draft, f"{place}parametrization", _nevergrad_entry)
    for name, value in (sweeper.get("parametrization") or {}).items():
        if isinstance(value, Mapping) and value.get("init") is not None:
            hint = f"is left out: tuner.first: [{{{name}: {value['init']}}}] tries it first"
            draft.note(f"{place}parametrization.{name}.init", hint)


def _nevergrad_entry(value: Any, at: str) -> Any:
    if isinstance(value, list):
        return choice(value, at)
    if not isinstance(value, Mapping):
        return constant(value, at)
    if value.get("lower") is None or value.get("upper") is None:
        raise SequenceError(at, "has no bounds: give it lower and upper, or write {normal: [mean, deviation]} by hand")
    is_whole, is_log = bool(value.get("integer")), bool(value.get("log"))
    return _range(value["lower"], value["upper"], at, is_whole=is_whole, is_log=is_log)


def _range(low: Any, high: Any, at: str, *, is_whole: bool, is_log: bool) -> Any:
    if is_whole:
        return plain((lograndint if is_log else randint)(whole(low, at), whole(high, at)))
    low, high = number(low, at), number(high, at)
    return plain(loguniform(low, high)) if is_log else evenly(low, high)


def _read_each(params: Any, draft: Draft, place: str, convert: Callable[[Any, str], Any]) -> None:
    for name, value in (params or {}).items():
        at = f"{place}.{name}"
        draft.add(str(name), at, lambda value=value, at=at: convert(value, at))  # type: ignore[misc]
