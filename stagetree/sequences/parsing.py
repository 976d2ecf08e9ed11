"""From JSON to sequences, with errors that say where and what would be right."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import MISSING, Field, fields
from difflib import get_close_matches
from typing import Any

from stagetree.sequences.base import Sequence, SequenceError, check_scalar

FAMILIES: dict[str, type[Sequence]] = {}
"""The families by name; the package fills it, since some of them hold sequences of any family."""


def parse(value: Any, path: str = "") -> Sequence:
    """The sequence that JSON writes: a bare scalar is a constant, an object names its `family` and its fields.

    Raises `SequenceError` whose `field` begins with `path`.
    """
    if isinstance(value, Sequence):
        return value
    if not isinstance(value, Mapping):
        check_scalar(path, value)
        return FAMILIES["constant"](value)  # type: ignore[call-arg]
    try:
        return _family(value)(**{name: item for name, item in value.items() if name != "family"})
    except SequenceError as error:
        raise SequenceError(".".join(filter(None, (path, error.field))), error.problem) from None


def _family(value: Mapping[str, Any]) -> type[Sequence]:
    """The class that `value` names, after a look at the names of its fields."""
    name = value.get("family")
    if name is None and (hint := _meant(value)):
        raise SequenceError("", f"must be a sequence, which names its family, or a distribution: {hint}")
    if not isinstance(name, str) or name not in FAMILIES:
        raise SequenceError(
            "family", f"must be one of {', '.join(FAMILIES)}, got {name!r}{did_you_mean(name, FAMILIES)}"
        )
    known: tuple[Field[Any], ...] = fields(FAMILIES[name])  # type: ignore[arg-type]
    for given in sorted(map(str, value.keys() - {"family", *(field.name for field in known)})):
        hint = did_you_mean(given, [field.name for field in known])
        raise SequenceError(given, f"is not a field of {name}, which has {_listed(known)}{hint}")
    for field in known:
        if field.name not in value and field.default is MISSING:
            raise SequenceError(field.name, f"is missing: {name} needs {_listed(known)}")
    return FAMILIES[name]


def _meant(value: Mapping[str, Any]) -> str:
    """How to write what other tools write otherwise; empty if it is none of that."""
    if "grid_search" in value:
        return "write the list alone, with the tuner grid, in place of grid_search"
    if "values" in value and value.keys() <= {"values", "distribution"}:
        return "write {choice: [...]}, or the list alone"
    if not value.keys() & {"low", "high", "log", "uniform"}:
        return ""
    return f"write {{{'loguniform' if value.get('log') else 'uniform'}: [low, high]}}"


def _listed(known: tuple[Field[Any], ...]) -> str:
    return ", ".join(field.name for field in known)


def did_you_mean(name: Any, known: Iterable[str]) -> str:
    """The end of a sentence that refuses `name`: the one it was probably meant to be, if any is close."""
    close = get_close_matches(str(name), list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
