"""Values as text, and trials sorted by a field or listed by column.

Lone surrogates are escaped, so that all text can be encoded. The command line's help names the fields, so answers and
sequences are imported only where they are used.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import chain, groupby, islice
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from stagetree.sequences.text_cache import cached_by_text
from stagetree.text import RANKED_LAST, float_text

if TYPE_CHECKING:
    from stagetree.models import Answer, Trial
    from stagetree.models.pages import Columns
    from stagetree.sequences import Form


Json = dict[str, Any]
Shown = TypeVar("Shown", Json, "Trial")
"""A trial as an answer or as JSON."""

KEYS = ("trial", "state", "steps", "trained", "value", "best", "last", "rung", "rank", "p")
PARAMETER = "hp."
"""The prefix of hyper-parameter columns."""

SHAPE = "shape."
"""The prefix of columns with schedules as text, for hyper-parameters that vary within some trial."""

RESULTS = ("value", "best", "last")


def fields_of(trials: Iterable[Trial], names: Iterable[str]) -> list[str]:
    """The sort keys: fields, and columns of hyper-parameters, of `names` before there are trials."""
    columns = {name for trial in trials for name in flatten(trial.hp, PARAMETER)}
    return [*KEYS, *sorted(columns.union(PARAMETER + name for name in names))]


def sort_trials(trials: Sequence[Shown], sort: str, mode: str) -> list[Shown]:
    """Sort by a key, or by a column such as `hp.lr`. Trials without a value come last.

    Results sort the best first, p the likeliest first; `-KEY` reverses the order. Numbers come before text. By results,
    failed trials come after the others in both orders.
    """
    name = sort.removeprefix("-")
    keys = [(_key(trial, name), trial) for trial in trials]
    present = [each for each in keys if each[0] is not None]
    best_first = name == "p" or (name in RESULTS and mode != "min")
    present.sort(key=lambda each: (isinstance(each[0], str), each[0]), reverse=sort.startswith("-") != best_first)
    if name in RESULTS:
        present.sort(key=lambda each: each[1]["state"] == RANKED_LAST)
    return [trial for _, trial in present] + [trial for key, trial in keys if key is None]


def _key(trial: Json | Trial, name: str) -> Any:
    if name.startswith(PARAMETER):
        return flatten(trial["hp"], PARAMETER).get(name)
    field = (trial.get("prediction") or {}).get("p") if name == "p" else trial.get(name)
    return field["value"] if field is not None and hasattr(field, "keys") else field


def columns(trials: Sequence[Trial], digits: int | None = None) -> Columns:
    """A list for each field of the trials. digits: the most digits of a number.

    A hyper-parameter that varies within some trial also has a column of schedules as text, such as `shape.lr`.
    """
    from stagetree.models.pages import Columns

    rows = [flatten(trial) | shapes for trial, shapes in zip(trials, _shapes(trials), strict=True)]
    names = dict.fromkeys(chain.from_iterable(rows))
    by_name = {name: [row.get(name) for row in rows] for name in names}
    if digits is not None:
        for column in by_name.values():
            column[:] = [float(f"{value:.{digits}g}") if isinstance(value, float) else value for value in column]
    return Columns(count=len(rows), columns=by_name)


def _shapes(trials: Sequence[Trial]) -> Iterator[Json]:
    """For each trial its schedules as text, of hyper-parameters that vary within some trial."""
    moving = {name for trial in trials for name, value in trial["hp"].items() if _is_moving(value)}
    steps = max((trial["steps"] for trial in trials), default=1)
    written = [{name: json.dumps(value) for name, value in trial["hp"].items() if name in moving} for trial in trials]
    words = {name: _distinct_texts({each[name] for each in written if name in each}, steps) for name in moving}
    for trial in written:
        yield {SHAPE + name: words[name][text] for name, text in trial.items()}


def _distinct_texts(schedules: Iterable[str], steps: int) -> dict[str, str]:
    """Each schedule as text, with its steps if another schedule has the same text without them."""
    words = {schedule: _schedule_text(schedule, steps) for schedule in schedules}
    often = Counter(words.values())
    return {each: _schedule_text(each, steps, often[text] > 1) for each, text in words.items()}


def _is_moving(value: Any) -> bool:
    return isinstance(value, dict) and value.get("family") != "constant"


def flatten(item: Json | Answer, prefix: str = "") -> Json:
    """The item with nested fields under dotted names, and lists as JSON. A constant sequence is its value."""
    fields: Json = {}
    for name, value in item.items() if isinstance(item, dict) else item.sent():
        if isinstance(value, dict) and value.get("family") == "constant":
            fields[prefix + name] = value["value"]
        elif value is None or isinstance(value, str | int | float):
            fields[prefix + name] = value
        else:
            fields |= (
                {prefix + name: json.dumps(value)} if isinstance(value, list) else flatten(value, f"{prefix}{name}.")
            )
    return fields


FAMILIES = {
    "Line": "linear",
    "Geometric": "exponential",
    "PowerLaw": "power",
    "Ramp": "warm-up",
    "Slide": "linear",
    "OneMinusSqrt": "sqrt",
}
"""The names of forms in study files, if they differ from the class names."""


def form_text(form: Form) -> str:
    """A form as text, in six digits: `0.1`, or `half cosine (init 0.1, low 0, period 20) from step 5`."""
    if form.is_held:
        held = form.at(0)
        return float_text(held, 6) if isinstance(held, float) else json.dumps(held)
    name = type(form).__name__
    family = FAMILIES.get(name) or re.sub(r"(?<!^)(?=[A-Z])", " ", name).lower()
    given = (field.name for field in fields(form) if field.init)  # type: ignore[arg-type]
    values = {name: _text(getattr(form, name)) for name in given}
    origin = values.pop("origin")
    return f"{family} ({', '.join(f'{name} {value}' for name, value in values.items())}) from step {origin}"


def _text(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else json.dumps(value)


MOST_TURNS, MOST_WORDS = 64, 4


def schedule_text(value: Any, steps: int, says_when: bool = False) -> str:
    """The values of a hyper-parameter over the steps of a trial, in three digits: `64 → 128`.

    They are its first value, its turning points, and its last value. Of more than four, the first, the highest, the
    lowest and the last are kept: `0.05 → 0.2 → 0.001`. says_when: add the steps, as in `64 → 128 at step 6`.
    """
    turns = [
        next(same) for _, same in groupby(_turning_points([*_ends(value, steps)]), key=lambda turn: repr(turn.value))
    ]
    values = [turn.value for turn in turns]
    if len(values) > MOST_WORDS and all(map(_is_number, values)):
        places = {0, values.index(max(values)), values.index(min(values)), len(values) - 1}
        turns = [turns[place] for place in sorted(places)]
    words = [next(same) for _, same in groupby(turns, key=lambda turn: _brief(turn.value))]
    return " → ".join(_brief(turn.value) + (turn.step_text if says_when else "") for turn in words)


class _Turn(NamedTuple):
    value: Any
    step: int
    is_held: bool

    @property
    def step_text(self) -> str:
        return f" at step {self.step}" if self.step else ""


def _turning_points(ends: Sequence[_Turn]) -> Iterator[_Turn]:
    """The turning points. The end of a piece is none if the next piece continues in the same direction."""
    for place, end in enumerate(ends):
        beside = [each.value for each in ends[place - 1 : place + 2]] if 0 < place < len(ends) - 1 else []
        if end.is_held or not (beside and all(map(_is_number, beside)) and sorted(beside)[1] == end.value):
            yield end


def _ends(value: Any, steps: int) -> Iterator[_Turn]:
    """Both ends of each piece, and whether it is constant. A piece that continues the one before begins there."""
    from stagetree.sequences import parse, with_ends

    is_begun = False
    for piece, end in islice(with_ends(parse(value).pieces()), MOST_TURNS):
        if piece.start >= steps:
            return
        last = (steps if end is None else min(end, steps)) - 1
        if not is_begun:
            yield _Turn(piece.form.at(piece.start), piece.start, piece.form.is_held)
        if is_begun or last > piece.start:
            at = piece.start if piece.form.is_held else last
            yield _Turn(piece.form.at(last), at, piece.form.is_held)
        is_begun = last == piece.start


@cached_by_text(1 << 16)
def _schedule_text(value: str, steps: int, says_when: bool = False) -> str:
    """`schedule_text` of JSON, cached: pages show the same trials again, and some share a schedule."""
    return json_safe(schedule_text(json.loads(value), steps, says_when))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _brief(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


T = TypeVar("T")
HALVES = re.compile("[\ud800-\udfff]")


def json_safe(value: T) -> T:
    """The value with lone surrogates escaped in all text: a traceback may hold any bytes."""
    return _json_safe(value)  # type: ignore[no-any-return]


def _json_safe(value: Any) -> Any:
    if isinstance(value, str):
        return HALVES.sub(lambda match: f"\\u{ord(match.group()):04x}", value) if not value.isascii() else value
    if isinstance(value, dict):
        return {_json_safe(name): _json_safe(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_json_safe(inner) for inner in value]
    return value
