"""Values in words, and trials in the order of a field and by column.

Halves of characters, which no encoding has, are spelled out, so that all text can be written. The command line's help
names the fields, so this imports answers and sequences only where it makes one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import fields
from itertools import chain
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from stagetree.models import Answer, Trial
    from stagetree.models.pages import Columns
    from stagetree.sequences import Form


Json = dict[str, Any]
Shown = TypeVar("Shown", Json, "Trial")
"""A trial, as an answer or as the JSON of one."""

KEYS = ("trial", "state", "steps", "trained", "value", "best", "last", "rung", "rank", "p")
PARAMETER = "hp."
"""What the columns of hyper-parameters begin with."""

RESULTS = ("value", "best", "last")


def fields_of(trials: Iterable[Trial], names: Iterable[str]) -> list[str]:
    """What trials can be ordered by: columns of their hyper-parameters are in it, or those of `names` before any."""
    columns = {name for trial in trials for name in flat(trial.hp, PARAMETER)}
    return [*KEYS, *sorted(columns.union(PARAMETER + name for name in names))]


def ordered(trials: Sequence[Shown], sort: str, mode: str) -> list[Shown]:
    """By a key, or by a column such as `hp.lr`; what has none there comes last.

    Results come with the best first, p with the likeliest; `-KEY` turns it round. Numbers come before text.
    """
    name = sort.removeprefix("-")
    keys = [(_key(trial, name), trial) for trial in trials]
    present = [each for each in keys if each[0] is not None]
    best_first = name == "p" or (name in RESULTS and mode != "min")
    present.sort(key=lambda each: (isinstance(each[0], str), each[0]), reverse=sort.startswith("-") != best_first)
    return [trial for _, trial in present] + [trial for key, trial in keys if key is None]


def _key(trial: Json | Trial, name: str) -> Any:
    if name.startswith(PARAMETER):
        return flat(trial["hp"], PARAMETER).get(name)
    field = (trial.get("prediction") or {}).get("p") if name == "p" else trial.get(name)
    return field["value"] if field is not None and hasattr(field, "keys") else field


def columns(trials: Sequence[Trial], digits: int | None = None) -> Columns:
    """The number of trials, and a list for each field that one of them has; numbers with at most so many digits."""
    from stagetree.models.pages import Columns

    rows = [flat(trial) for trial in trials]
    names = dict.fromkeys(chain.from_iterable(rows))
    by_name = {name: [row.get(name) for row in rows] for name in names}
    if digits is not None:
        by_name = {name: [_shortened(value, digits) for value in column] for name, column in by_name.items()}
    return Columns(count=len(rows), columns=by_name)


def _shortened(value: Any, digits: int) -> Any:
    return float(f"{value:.{digits}g}") if isinstance(value, float) else value


def flat(item: Json | Answer, prefix: str = "") -> Json:
    """The item with its objects taken apart, and lists as JSON. A sequence is its constant, or else its fields."""
    fields: Json = {}
    for name, value in item.items() if isinstance(item, dict) else item.sent():
        if isinstance(value, dict) and value.get("family") == "constant":
            fields[prefix + name] = value["value"]
        elif value is None or isinstance(value, str | int | float):
            fields[prefix + name] = value
        else:
            fields |= {prefix + name: json.dumps(value)} if isinstance(value, list) else flat(value, f"{prefix}{name}.")
    return fields


FAMILIES = {"Line": "linear", "Power": "exponential"}
"""What study files call a form, where that is another word than its own."""


def form_text(form: Form) -> str:
    """A form for people, in six digits: `0.1`, or `half cosine (init 0.1, low 0, period 20) from step 5`."""
    if form.is_held:
        return _text(form.at(0))
    name = type(form).__name__
    family = FAMILIES.get(name) or re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    values = {field.name: _text(getattr(form, field.name)) for field in fields(form)}  # type: ignore[arg-type]
    origin = values.pop("origin")
    return f"{family} ({', '.join(f'{name} {value}' for name, value in values.items())}) from step {origin}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


T = TypeVar("T")
HALVES = re.compile("[\ud800-\udfff]")


def json_safe(value: T) -> T:
    """The same, with the halves of characters in all its text spelled out: a traceback may hold bytes of anything."""
    return _json_safe(value)  # type: ignore[no-any-return]


def _json_safe(value: Any) -> Any:
    if isinstance(value, str):
        return HALVES.sub(lambda match: f"\\u{ord(match.group()):04x}", value) if not value.isascii() else value
    if isinstance(value, dict):
        return {_json_safe(name): _json_safe(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(inner) for inner in value]
    return value
