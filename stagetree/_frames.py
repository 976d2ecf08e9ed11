"""Studies for people and for pandas."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from html import escape
from typing import TYPE_CHECKING, Any

from stagetree.client import Json, StagetreeError
from stagetree.sequences import Constant, Sequence, parse

if TYPE_CHECKING:
    from pandas import DataFrame

SHOWN = 10
"""How many trials a notebook shows."""


def best(trials: Iterable[Json], mode: str) -> Json | None:
    """The trial with the best value, ties to the lower number."""
    return next(iter(ranked(trials, mode)), None)


def ranked(trials: Iterable[Json], mode: str) -> list[Json]:
    """The trials that have a value, the best first."""
    sign = -1 if mode == "max" else 1
    valued = [trial for trial in trials if trial["value"] is not None]
    return sorted(valued, key=lambda trial: (sign * trial["value"], trial["trial"]))


def frame(trials: Iterable[Json]) -> DataFrame:
    """A row for each trial; a column `hp_NAME` holds a constant's value, and other sequences as they are."""
    try:
        import pandas
    except ImportError:
        raise StagetreeError("a DataFrame needs pandas: pip install 'stagetree[pandas]'") from None
    return pandas.DataFrame([_row(trial) for trial in sorted(trials, key=lambda trial: trial["trial"])])


def _row(trial: Json) -> dict[str, Any]:
    row = {name: trial[name] for name in ("trial", "state", "steps", "value")}
    row |= {f"hp_{name}": value for name, value in _values(trial["hp"]).items()}
    return {**row, "error": trial.get("error", "")}


def _values(hp: Mapping[str, Any]) -> dict[str, Any]:
    sequences = {name: parse(value, name) for name, value in hp.items()}
    return {name: _value(sequence) for name, sequence in sequences.items()}


def _value(sequence: Sequence) -> Any:
    return sequence.value if isinstance(sequence, Constant) else sequence


def text(name: str, url: str, study: Json, trials: Collection[Json]) -> str:
    """A study in a line."""
    if not study:
        return f"<{name} at {url}, not created or opened yet>"
    said = f"{study['state']}, {len(trials)} trials" if "state" in study else "not heard of yet"
    found = best(trials, study.get("mode", "max"))
    if found is not None:
        said += f", best {study['metric']} {found['value']:.6g} (trial {found['trial']} after {found['steps']} steps)"
    return f"<{name} {study['study']} at {url}: {said}>"


def html(line: str, study: Json, trials: Collection[Json]) -> str:
    """A study as a small table: its best trials, then others."""
    first = ranked(trials, study.get("mode", "max"))
    rows = [*first, *(trial for trial in trials if trial["value"] is None)]
    heads = ["trial", "state", "steps", str(study.get("metric", "value")), *(rows[0]["hp"] if rows else ())]
    table = "".join(map(_html_row, rows[:SHOWN]))
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    more = f"<p>{len(rows) - SHOWN} more</p>" if len(rows) > SHOWN else ""
    return f"<p>{escape(line)}</p><table><thead><tr>{head}</tr></thead><tbody>{table}</tbody></table>{more}"


def _html_row(trial: Json) -> str:
    value = "" if trial["value"] is None else f"{trial['value']:.6g}"
    cells = [trial["trial"], trial["state"], trial["steps"], value, *_values(trial["hp"]).values()]
    return "<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in cells) + "</tr>"
