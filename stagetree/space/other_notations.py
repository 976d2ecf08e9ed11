"""Notations of other tools inside a space: recognised, and answered with ours.

Notations that mean the same are understood instead, see `stagetree.space.notation`.

>>> other_notation({"_type": "randint", "_value": [1, 5]})
'is a notation of NNI: write {randint: [1, 4]}'
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

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
