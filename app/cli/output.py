"""Output: tables and text for people, JSON or CSV for programs."""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from app.outages import SOUNDS_SECRET
from stagetree.text import FINAL, is_number, value_text

Json = dict[str, Any]


def prepare() -> None:
    """Escape characters that a stream cannot encode, and discard output to closed streams."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when the command began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def discard_stdout() -> None:
    """Discard stdout after a failed write, so that the interpreter does not flush it again at exit."""
    with contextlib.suppress(io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


UNSAFE = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""Control characters other than tab and newline, bidirectional marks, and lone surrogates."""

BREAKS = re.compile(r"\s*[\t\n\u2028\u2029]\s*")
SECRET_OPTION = re.compile(rf"([?&][^=&\s]*{SOUNDS_SECRET}[^=&\s]*=)[^&\s]*", re.IGNORECASE)


def escape_control(text: str) -> str:
    """The text with control characters and lone surrogates escaped."""
    return UNSAFE.sub(lambda match: _escape(ord(match.group())), text)


def redact(text: str) -> str:
    """The text without credentials in URLs and without parameters with secret-sounding names."""
    text = re.sub(r"(?<=://)[^/@\s]*@", "...@", text)
    return SECRET_OPTION.sub(r"\1...", text)


def one_line(text: str) -> str:
    """The escaped text on one line."""
    return BREAKS.sub(" ", escape_control(text)).strip()


def _escape(code: int) -> str:
    return f"\\x{code:02x}" if code < 256 else f"\\u{code:04x}"


def number(value: float) -> str:
    """A metric, in six digits."""
    return f"{value:.6g}"


def result_cells(result: Json | None) -> tuple[Any, int | None]:
    """The cells of a result: its value, with the deviation of a mean, and its step."""
    if result is None:
        return None, None
    return (result["value"] if result.get("deviation") is None else value_text(result)), result["step"]


def memory(size: float) -> str:
    """A size in bytes with its unit: 64 MB."""
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{size:.0f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def plural(count: int, noun: str) -> str:
    """1 trial, 2 trials."""
    return f"{count} {noun}" + ("" if count == 1 else "s")


def trials_text(progress: Json) -> str:
    """23/40 trials, or 23/40 trials tried, 9 at rungs, where they may be promoted."""
    trials = progress["trials"]
    noun = plural(trials["done"] if trials["expected"] is None else trials["expected"], "trial").partition(" ")[2]
    return f"{fraction(trials)} {noun}" + (f" tried, {resting_text(progress)}" if trials["resting"] else "")


def steps_text(study: Json) -> str:
    """24/49 unique steps; a forecast while a tuner with rungs decides, and before any trial has begun."""
    steps, decides = study["progress"]["steps"], study["progress"]["rungs"] or not any(study["counts"].values())
    about = "about " if decides and study["state"] not in FINAL else ""
    return f"{steps['done']}/{about}{steps['expected']} unique steps"


def fraction(trials: Json) -> str:
    """23/40, or 23 if the total is unknown."""
    return f"{trials['done']}" if trials["expected"] is None else f"{trials['done']}/{trials['expected']}"


def resting_text(progress: Json) -> str:
    """9 at rungs, or 9 suspended for a tuner without rungs."""
    return f"{progress['trials']['resting']} {'at rungs' if progress['rungs'] else 'suspended'}"


def ranges_text(numbers: list[int]) -> str:
    """Whole numbers as ranges: 0 to 3, 7, 9."""
    groups: list[list[int]] = []
    for number in sorted(numbers):
        if groups and number == groups[-1][-1] + 1:
            groups[-1].append(number)
        else:
            groups.append([number])
    return ", ".join(f"{each[0]} to {each[-1]}" if len(each) > 2 else ", ".join(map(str, each)) for each in groups)


class Format(StrEnum):
    """The output format."""

    table = "table"
    json = "json"


class ListFormat(StrEnum):
    """The output format of a list."""

    table = "table"
    json = "json"
    csv = "csv"


def print_json(value: Any) -> None:
    """Print one JSON document without control characters."""
    is_unicode = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, indent=2, ensure_ascii=not is_unicode)
    sys.stdout.write(re.sub("[\x7f-\x9f\ud800-\udfff]", lambda match: f"\\u{ord(match.group()):04x}", text) + "\n")


def print_answer(answer: Any, output: Format, *lines: str) -> None:
    """Print an answer as one JSON document, or as these lines for people."""
    if output is Format.json:
        print_json(answer)
    else:
        print(*lines, sep="\n")


def print_csv(items: Iterable[Mapping[str, Any]]) -> None:
    """Print one line for each item, with nested values under dotted names (`best.value`), and lists as JSON."""
    from app.service.views.trial_order import flatten

    rows = [flatten(dict(item)) for item in items]
    header = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_list(items: Sequence[Json], output: ListFormat, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """Print a list in the requested format. rows: of the table."""
    if output is ListFormat.json:
        print_json(list(items))
    elif output is ListFormat.csv:
        print_csv(items)
    else:
        print_table(header, list(rows))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Print aligned columns, numbers to the right. On a terminal, lines are cut at its width."""
    cells = [[cell_text(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [all(is_number(row[at]) or row[at] is None for row in rows) for at in range(len(header))]
    for line in [header, *cells]:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        text = "  ".join(aligned).rstrip()
        columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else len(text)
        print(text if len(text) <= columns else text[: columns - 3] + "...")


def cell_text(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))
