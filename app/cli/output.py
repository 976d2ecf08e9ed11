"""How results are printed: tables for people, exactly one JSON document for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from enum import StrEnum
from typing import Any

Json = dict[str, Any]


class Format(StrEnum):
    """What to print on stdout."""

    table = "table"
    json = "json"


def print_json(value: Any) -> None:
    """One JSON document on stdout."""
    json.dump(value, sys.stdout, indent=2, ensure_ascii=False)
    sys.stdout.write("\n")


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they must be; numbers to the right."""
    cells = [[_cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    print("  ".join(name.ljust(width) for name, width in zip(header, widths, strict=True)).rstrip())
    for row, values in zip(cells, rows, strict=True):
        print(
            "  ".join(
                _align(cell, value, width) for cell, value, width in zip(row, values, widths, strict=True)
            ).rstrip()
        )


def short_hp(hp: Json) -> str:
    """Hyper-parameters on one line."""
    return "  ".join(f"{name}={short_sequence(sequence)}" for name, sequence in hp.items())


def short_sequence(sequence: Any) -> str:
    """A sequence as one would write it in Python."""
    if not isinstance(sequence, dict):
        return _short(sequence)
    fields = {name: value for name, value in sequence.items() if name != "family"}
    if sequence["family"] == "constant":
        return _short(fields["value"])
    inner = ", ".join(_argument(name, value) for name, value in fields.items())
    return f"{sequence['family']}({inner})"


def _argument(name: str, value: Any) -> str:
    if isinstance(value, dict) and "family" in value:
        return short_sequence(value)
    if isinstance(value, list) and value and isinstance(value[0], dict):
        return "[" + ", ".join(_part(part) for part in value) + "]"
    return f"{name}={_short(value)}"


def _short(value: Any) -> str:
    """A number with the digits that one can tell apart."""
    if isinstance(value, list):
        return "[" + ", ".join(map(_short, value)) + "]"
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _part(part: Json) -> str:
    steps = f"{part['steps']}: " if "steps" in part else ""
    return steps + short_sequence(part["sequence"])


def duration(seconds: float) -> str:
    """3:05 or 2:03:05."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"


def print_result(study: Json) -> None:
    """The outcome of a study: the best trials, what was asked for, needed and run, and what that saved."""
    print_best(study)
    steps = study["steps"]
    print(f"\nsteps      {steps['requested']} asked for, {steps['unique']} different, {steps['executed']} run")
    if steps["executed"]:
        print(f"saved      {_saved(study)}")
    print(f"time       {duration(study['wall_seconds'])} in all, {duration(study['gpu_seconds'])} on the slots")
    for trial in [trial for trial in study["trials"] if trial["state"] == "failed"][:5]:
        print(f"failed     trial {trial['trial']}: {_last_line(trial)}")
    if study.get("error"):
        print(f"error      {study['error']}")


def print_best(study: Json, number: int = 5) -> None:
    """The best trials of a study."""
    sign = -1 if study["mode"] == "max" else 1
    valued = [trial for trial in study["trials"] if trial.get("value") is not None]
    best = sorted(valued, key=lambda trial: (sign * trial["value"], trial["trial"]))[:number]
    if best:
        rows = [(trial["trial"], trial["value"], trial["steps"], short_hp(trial["hp"])) for trial in best]
        print_table(("trial", study["metric"], "steps", "hyper-parameters"), rows)


def _saved(study: Json) -> str:
    steps = study["steps"]
    second = study["gpu_seconds"] / steps["executed"]
    was_broken_off = study["counts"]["failed"] or study["counts"]["cancelled"]  # what nobody ran is not saved
    spared = steps["requested"] - steps["unique" if was_broken_off else "executed"]
    share, time = spared / steps["requested"], duration(spared * second)
    return f"{spared} steps ({share:.0%}), about {time} of slot time; merge rate {study['merge_rate']}"


def _last_line(trial: Json) -> str:
    error = trial.get("error") or {}
    text = error.get("error", "") if isinstance(error, dict) else str(error)
    return text.strip().rsplit("\n", 1)[-1]


def _cell(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _align(cell: str, value: Any, width: int) -> str:
    return cell.rjust(width) if isinstance(value, int | float) else cell.ljust(width)
