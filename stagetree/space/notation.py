"""How distributions are written: our canonical form, which is recorded, and notations from other tools.

`canonical` converts all notations in an entry to that form, so the rest of the code reads only one.

>>> canonical({"min": 0.1, "max": 0.5})
{'uniform': [0.1, 0.5]}
>>> canonical({"int": [16, 128], "step": 16})
{'randint': [16, 128], 'step': 16}
>>> loguniform(1e-4, 1e-1).to_json()
{'loguniform': [0.0001, 0.1]}
>>> expand_at({"family": "values", "values": [64, 128], "at": "lr.decay_start"})
{'family': 'values', 'values': [64, 128], 'milestones': [{'of': 'lr.decay_start'}]}

Notations of other tools that mean something else are recognised, and answered with ours.

>>> other_notation({"_type": "randint", "_value": [1, 5]})
'is a notation of NNI: write {randint: [1, 4]}'
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Mapping
from typing import Any

from stagetree.sequences import SequenceError, did_you_mean, is_fraction, is_mix, matching_families
from stagetree.space.distributions import (
    TAILS,
    Choice,
    LogRandInt,
    LogUniform,
    Normal,
    RandInt,
    Range,
    SpaceError,
    Uniform,
    is_number,
    plain,
    steps_in,
)

DISTRIBUTIONS: dict[str, frozenset[str]] = {
    "uniform": frozenset({"step"}),
    "loguniform": frozenset({"step"}),
    "randint": frozenset({"step"}),
    "lograndint": frozenset(),
    "normal": frozenset({"min", "max", "step"}),
    "choice": frozenset({"weights"}),
}
"""The distributions by name, each with its optional fields."""

_RANGES = {kind.name: kind for kind in (Uniform, LogUniform, RandInt, LogRandInt)}

_ALIASES = {
    "log_uniform": "loguniform",
    "int": "randint",
    "float": "uniform",
    "log_int": "lograndint",
    "values": "choice",
}
"""Aliases of distributions."""

_LOGARITHMIC = {"uniform": "loguniform", "randint": "lograndint"}


def uniform(low: float, high: float, step: float | None = None) -> Range:
    """Uniform numbers from `low` to `high`. With a `step`, only `low`, `low + step`, ... Raises `SpaceError`."""
    return _build_range("uniform", [low, high], step=step)


def loguniform(low: float, high: float, step: float | None = None) -> Range:
    """Log-uniform numbers from `low` to `high`, which must be above 0. Raises `SpaceError`.

    step: each sample is rounded to the nearest of `low`, `low + step`, ...
    """
    return _build_range("loguniform", [low, high], step=step)


def randint(low: int, high: int, step: int | None = None) -> Range:
    """Uniform whole numbers from `low` to `high`, both included. With a `step`, only `low`, `low + step`, ...

    Raises `SpaceError`.
    """
    return _build_range("randint", [low, high], step=step)


def lograndint(low: int, high: int) -> Range:
    """Log-uniform whole numbers from `low`, above 0, to `high`, both included. Raises `SpaceError`."""
    return _build_range("lograndint", [low, high])


def normal(
    mean: float, sd: float, *, min: float | None = None, max: float | None = None, step: float | None = None
) -> Range:
    """Normally distributed numbers, cut off at `min` and `max`, and at four standard deviations.

    step: only the mean plus multiples of it. Raises `SpaceError`.
    """
    return _build_range("normal", [mean, sd], min=min, max=max, step=step)


def choice(options: Iterable[Any], weights: Iterable[float] | None = None) -> Choice:
    """One of the options, with a probability in proportion to its weight. Options are values, sequences or
    distributions.

    Raises `SpaceError`.
    """
    written = {"choice": list(options), **({} if weights is None else {"weights": list(weights)})}
    items, shares = read_choice(written, "choice", "")
    return Choice(tuple(items), weights=shares)


def _build_range(name: str, arguments: list[Any], **options: Any) -> Range:
    fields = {option: plain(value) for option, value in options.items() if value is not None}
    return read_range({name: plain(arguments), **fields}, name, "")


# ------------------------------------------------------------------------------------------ one form for all of them


def canonical(entry: Any, path: str = "") -> Any:
    """Convert every distribution and every `at` inside an entry to its canonical form. Raises `SpaceError`."""
    try:
        entry = expand_at(entry)
    except SequenceError as error:
        raise SpaceError(_path_to(path, error.field), error.problem) from None
    written = _canonical(entry, path)
    is_list_value = (
        isinstance(entry, Mapping) and "value" in entry and "when" not in entry and isinstance(written, list)
    )
    return [written] if is_list_value else written  # a list alone would be a choice


def _canonical(entry: Any, path: str) -> Any:
    if isinstance(entry, list | tuple):
        return [_canonical(item, f"{path}[{number}]") for number, item in enumerate(entry)]
    if not isinstance(entry, Mapping):
        return entry
    if "family" not in entry and (sentence := other_notation(entry)):
        raise SpaceError(path, sentence)
    if is_mix(entry) and isinstance(entry["mix"], Mapping):  # all names in it are of streams
        return {
            "mix": {name: _canonical(item, f"{_path_to(path, 'mix')}.{name}") for name, item in entry["mix"].items()}
        }
    literal = {"when"} if "value" in entry else set()
    inside = {name: item if name in literal else _canonical(item, _path_to(path, name)) for name, item in entry.items()}
    if entry.keys() == {"value"}:  # a constant of W&B's
        return inside["value"]
    if "distribution" in inside:
        inside = _convert_wandb(inside, path)
    if not isinstance(inside, dict):
        return inside
    return inside if "family" in inside or is_fraction(inside) else _rename_aliases(inside, path)


_WANDB = {
    "uniform": ("uniform", "min", "max"),
    "q_uniform": ("uniform", "min", "max"),
    "int_uniform": ("randint", "min", "max"),
    "log_uniform_values": ("loguniform", "min", "max"),
    "q_log_uniform_values": ("loguniform", "min", "max"),
    "normal": ("normal", "mu", "sigma"),
    "q_normal": ("normal", "mu", "sigma"),
    "categorical": ("choice", "values"),
    "categorical_w_probabilities": ("choice", "values"),
    "constant": ("value", "value"),
}
"""The distributions of W&B's sweeps: our name, and the fields of their arguments."""


def _convert_wandb(value: dict[str, Any], path: str) -> Any:
    """Convert `{distribution: log_uniform_values, min: 1e-4, max: 0.1}`. Raises `SpaceError`."""
    kind = value["distribution"]
    if kind not in _WANDB:
        known = f"must be one of {', '.join(_WANDB)}, got {kind!r}{did_you_mean(kind, _WANDB)}"
        raise SpaceError(_path_to(path, "distribution"), known)
    name, *places = _WANDB[kind]
    if missing := [place for place in places if place not in value]:
        raise SpaceError(_path_to(path, missing[0]), f"is missing: {kind} needs {' and '.join(places)}")
    if name == "value":
        return value["value"]
    rest = {
        "step" if other == "q" else other: value[other] for other in value if other not in {*places, "distribution"}
    }
    arguments = [value[place] for place in places]
    return {name: arguments[0] if name == "choice" else arguments, **rest}


def _rename_aliases(value: dict[str, Any], path: str) -> dict[str, Any]:
    if {"min", "max"} & value.keys() and not value.keys() & {*DISTRIBUTIONS, *_ALIASES}:
        value = _convert_min_max(value, path)
    if len(names := [name for name in value if name in _ALIASES]) == 1 and _ALIASES[names[0]] not in value:
        value = {_ALIASES.get(name, name): item for name, item in value.items()}
    if "choice" in value and "probabilities" in value and "weights" not in value:
        value = {"weights" if name == "probabilities" else name: item for name, item in value.items()}
    return _convert_log(value, path)


def _convert_min_max(value: dict[str, Any], path: str) -> dict[str, Any]:
    """Convert `min` and `max` to two bounds. As in W&B's sweeps, two whole numbers make a range of whole numbers."""
    if meant := matching_families(value):
        raise SpaceError(_path_to(path, "family"), f"is missing: {meant} has these fields")
    if not {"min", "max"} <= value.keys():
        raise SpaceError(path, f"must have both min and max, got {value!r}")
    bounds = [value["min"], value["max"]]
    is_whole = all(isinstance(each, int) and not isinstance(each, bool) for each in bounds)
    is_whole = is_whole and isinstance(value.get("step", 1), int)
    rest = {name: item for name, item in value.items() if name not in ("min", "max")}
    return {"randint" if is_whole else "uniform": bounds, **rest}


def _convert_log(value: dict[str, Any], path: str) -> dict[str, Any]:
    """Convert `log: true` to the logarithmic distribution."""
    names = [name for name in value if name in _LOGARITHMIC]
    if "log" not in value or len(names) != 1:
        return value
    if not isinstance(value["log"], bool):
        raise SpaceError(_path_to(path, "log"), f"must be true or false, got {value['log']!r}")
    name = _LOGARITHMIC[names[0]] if value["log"] else names[0]
    return {name if old == names[0] else old: item for old, item in value.items() if old != "log"}


# ------------------------------------------------------------------------------------------------------------- reading


def written_name(value: Mapping[str, Any], path: str) -> str | None:
    """The distribution that an object writes, or None. Raises `SpaceError`."""
    names = [name for name in value if name in DISTRIBUTIONS]
    if "family" in value or not names:
        if len(value) == 1 and (hint := did_you_mean(next(iter(value)), DISTRIBUTIONS)):
            got = next(iter(value))
            raise SpaceError(path, f"must be a value or one of {', '.join(DISTRIBUTIONS)}, got {got!r}{hint}")
        return None
    name = names[0]
    for other in value:
        if other != name and other not in DISTRIBUTIONS[name]:
            beside = " or ".join(sorted(DISTRIBUTIONS[name]))
            may = f"must be left out: beside {name} there may be {beside}" if beside else f"must not be beside {name}"
            raise SpaceError(_path_to(path, other), may)
    return name


def read_choice(value: Mapping[str, Any], path: str, owner: str) -> tuple[list[Any], tuple[float, ...] | None]:
    """The options at `path`, and their weights if there are any. Raises `SpaceError`."""
    options, weights = value["choice"], value.get("weights")
    if not isinstance(options, list) or not options:
        raise SpaceError(path, f"must be a list of at least one option, got {options!r}")
    if weights is None:
        return options, None
    at = _path_to(owner, "weights")
    if not isinstance(weights, list) or len(weights) != len(options):
        raise SpaceError(at, f"must be a list of {len(options)} numbers, one for each option, got {weights!r}")
    if not all(is_number(weight) and weight >= 0 for weight in weights) or not 0 < math.fsum(weights) < math.inf:
        raise SpaceError(at, f"must be numbers, 0 or more, of which one is above 0, got {weights!r}")
    return options, tuple(weights)


def read_range(value: Mapping[str, Any], name: str, path: str) -> Range:
    """Parse a numeric distribution. Raises `SpaceError`."""
    at, bounds = _path_to(path, name), value[name]
    if not isinstance(bounds, list) or len(bounds) != 2 or not all(map(is_number, bounds)):
        expected = "[mean, standard deviation]" if name == "normal" else "[lowest, highest]"
        quoted = isinstance(bounds, list) and any(isinstance(each, str) for each in bounds)
        hint = ": write numbers without quotes" if quoted else ""
        raise SpaceError(at, f"must be {expected}, two finite numbers, got {bounds!r}{hint}")
    step = _step(value, name, path)
    return _normal(bounds, value, step, path) if name == "normal" else _bounded_range(bounds, name, step, at)


def _bounded_range(bounds: list[Any], name: str, step: Any, at: str) -> Range:
    low, high = bounds
    kind = _RANGES[name]
    if high < low:
        raise SpaceError(at, f"must be [lowest, highest], but {low!r} is more than {high!r}")
    if kind.is_whole and not (isinstance(low, int) and isinstance(high, int)):
        raise SpaceError(at, f"must be [lowest, highest], two whole numbers, got {bounds!r}")
    if kind.is_log and low <= 0:
        raise SpaceError(at, f"must have bounds above 0, since their logarithms are used, got {bounds!r}")
    if step is None:
        return kind(low, high)
    bound = kind(low, high, step)
    return kind(low, bound.value(steps_in(low, high, step)), step)  # nothing above the last step is drawn


def _step(value: Mapping[str, Any], name: str, path: str) -> Any:
    if (step := value.get("step")) is None:
        return None
    is_whole = name == "randint"
    if not is_number(step) or step <= 0 or (is_whole and not isinstance(step, int)):
        raise SpaceError(_path_to(path, "step"), f"must be a {'whole ' * is_whole}number above 0, got {step!r}")
    return step


def _normal(moments: list[Any], value: Mapping[str, Any], step: Any, path: str) -> Normal:
    (mean, sd), at = moments, _path_to(path, "normal")
    if sd <= 0:
        raise SpaceError(at, f"must be [mean, standard deviation], the second above 0, got {moments!r}")
    low, high = _cutoff(value, "min", mean - TAILS * sd, path), _cutoff(value, "max", mean + TAILS * sd, path)
    low, high = max(low, mean - TAILS * sd), min(high, mean + TAILS * sd)
    if step is not None and low <= high:
        grid = Uniform(mean, math.inf, step)
        low, high = (
            grid.value(number) for number in (math.ceil((low - mean) / step), math.floor((high - mean) / step))
        )
    if high < low:
        raise SpaceError(
            at, f"must leave a number within its bounds and {TAILS} deviations of its mean, got {moments!r}"
        )
    options = tuple((name, value[name]) for name in ("min", "max", "step") if name in value)
    return Normal(low, high, step, mean, sd, options)


def _cutoff(value: Mapping[str, Any], name: str, otherwise: float, path: str) -> Any:
    cut = value.get(name, otherwise)
    if not is_number(cut):
        raise SpaceError(_path_to(path, name), f"must be a finite number, got {cut!r}")
    return cut


def _path_to(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


_NNI = {"uniform": "uniform", "quniform": "uniform", "loguniform": "loguniform", "normal": "normal", "choice": "choice"}


def other_notation(entry: Mapping[str, Any]) -> str:
    """A sentence for an object in another tool's notation; empty for any other object."""
    names = entry.keys()
    if "_type" in names:
        return f"is a notation of NNI: write {_nni(entry)}"
    if "type" in names and names & {"minval", "maxval", "vals", "val"}:
        return f"is a notation of Determined: write {_determined(entry)}"
    if "feasibleSpace" in names:
        return f"is a notation of Katib: write {_katib(entry['feasibleSpace'])}"
    if names & {"min_value", "max_value"}:
        low, high = entry.get("min_value", "lowest"), entry.get("max_value", "highest")
        return f"is a notation of KerasTuner: write {_range(low, high, entry.get('sampling') == 'log')}"
    if len(names) == 1:
        name, inside = next(iter(entry.items()))
        return _single(str(name), inside)
    return ""


def _single(name: str, inside: Any) -> str:
    """A sentence for an object with one field, which names a distribution of another tool."""
    if name in ("Float", "Int", "Choice", "Boolean") and isinstance(inside, Mapping):
        return other_notation(inside) or "is a notation of KerasTuner: write {choice: [...]}"
    if name == "grid_search":
        return f"is a notation of Ray Tune: write the list alone, {_json(inside)}, with the tuner grid"
    tool = {"suggest_": "Optuna", "hp.": "Hyperopt", "tune.": "Ray Tune"}
    for beginning, title in tool.items():
        if name.startswith(beginning):
            return f"is a notation of {title}: write {_called(name[len(beginning) :], _json(inside))}"
    return ""


def _called(name: str, arguments: str) -> str:
    """Our notation for a function of another tool with these arguments."""
    ours = {"categorical": "choice", "float": "uniform", "int": "randint"}.get(name, name)
    known = ours if ours in ("choice", "loguniform", "lograndint", "randint", "uniform") else "uniform"
    return f"{{{known}: {arguments if arguments.startswith('[') else f'[{arguments}]'}}}"


_CALL = re.compile(
    r"\s*(?:tune\.|hp\.|np\.random\.|trial\.suggest_)?"
    r"(choice|uniform|loguniform|log_uniform|randint|lograndint|interval|range|float|int|categorical)\((.*)\)\s*"
)


def call_hint(text: str) -> str:
    """How to write a text such as `choice(1, 2)`; empty for other texts."""
    found = _CALL.fullmatch(text[:200])
    if found is None:
        return ""
    name = {"interval": "uniform", "range": "randint", "log_uniform": "loguniform"}.get(found[1], found[1])
    return _called(name, found[2].strip())


def _nni(entry: Mapping[str, Any]) -> str:
    kind, value = entry["_type"], entry.get("_value", [])
    is_pair = isinstance(value, list) and len(value) == 2 and all(isinstance(each, int) for each in value)
    if kind == "randint" and is_pair:
        return f"{{randint: {[value[0], value[1] - 1]}}}"
    return f"{{{_NNI.get(kind, 'uniform')}: {_json(value[:2] if kind != 'choice' else value)}}}"


def _determined(entry: Mapping[str, Any]) -> str:
    if "vals" in entry or "val" in entry:
        return _json(entry.get("vals", entry.get("val")))
    low, high = entry.get("minval", "lowest"), entry.get("maxval", "highest")
    if entry["type"] == "log" and all(isinstance(each, int | float) for each in (low, high)):
        base = entry.get("base", 10)
        return _range(f"{base**low:g}", f"{base**high:g}", is_log=True)
    return f"{{randint: [{low}, {high}]}}" if entry["type"] == "int" else _range(low, high)


def _katib(inside: Any) -> str:
    if isinstance(inside, Mapping) and "list" in inside:
        return _json(inside["list"])
    low, high = (inside.get(name, "...") if isinstance(inside, Mapping) else "..." for name in ("min", "max"))
    return _range(low, high)


def _range(low: Any, high: Any, is_log: bool = False) -> str:
    return f"{{{'loguniform' if is_log else 'uniform'}: [{low}, {high}]}}"


def _json(value: Any) -> str:
    return json.dumps(value, default=str)


def expand_at(value: Any) -> Any:
    """Replace `at`, one milestone or a list, in `values` and `multistep`. A text names a step of another
    hyper-parameter. Raises `SequenceError`.
    """
    if isinstance(value, list | tuple):
        return [expand_at(item) for item in value]
    if not isinstance(value, Mapping) or is_mix(value):
        return value
    value = {name: expand_at(item) for name, item in value.items()}
    if "at" not in value or value.get("family") not in ("values", "multistep"):
        return value
    if "milestones" in value:
        raise SequenceError("at", "must be left out beside milestones, which say the same")
    at = value.pop("at")
    listed = at if isinstance(at, list) else [at]
    return {**value, "milestones": [{"of": each} if isinstance(each, str) else each for each in listed]}
