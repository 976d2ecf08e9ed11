"""How results are printed: tables for people, exactly one JSON document or CSV for programs."""

from __future__ import annotations

import csv
import json
import re
import shutil
import sys
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import Any

from app.cli.streams import is_unicode
from app.cli.text import one_line

Json = dict[str, Any]


class Format(StrEnum):
    """What to print on stdout."""

    table = "table"
    json = "json"


class ListFormat(StrEnum):
    """What to print of a list on stdout."""

    table = "table"
    json = "json"
    csv = "csv"


def print_json(value: Any) -> None:
    """One JSON document on stdout, with nothing in it that a terminal would act on."""
    text = json.dumps(value, indent=2, ensure_ascii=not is_unicode())
    sys.stdout.write(re.sub("[\x7f-\x9f\ud800-\udfff]", lambda found: f"\\u{ord(found.group()):04x}", text) + "\n")


def print_csv(items: Iterable[Mapping[str, Any]]) -> None:
    """One line for each, nested values under dotted names (`best.value`), lists and sequences as JSON."""
    from app.api.views.ordering import flat

    rows = [flat(item) for item in items]
    header = list(dict.fromkeys(name for row in rows for name in row))
    writer = csv.DictWriter(sys.stdout, header, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def print_list(items: Sequence[Json], output: ListFormat, header: Sequence[str], rows: Iterable[Sequence[Any]]) -> None:
    """A list in the format that was asked for; `rows` are those of the table."""
    if output is ListFormat.json:
        print_json(list(items))
    elif output is ListFormat.csv:
        print_csv(items)
    else:
        print_table(header, list(rows))


def print_table(header: Sequence[str], rows: Sequence[Sequence[Any]]) -> None:
    """Columns as wide as they must be; numbers to the right. On a terminal, lines end at its edge."""
    cells = [[cell(value) for value in row] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cells, strict=True)]
    numeric = [all(_is_number(row[at]) or row[at] is None for row in rows) for at in range(len(header))]
    for line in [header, *cells]:
        aligned = [
            text.rjust(width) if right else text.ljust(width)
            for text, width, right in zip(line, widths, numeric, strict=True)
        ]
        print(_cut("  ".join(aligned).rstrip()))


def _cut(line: str) -> str:
    """The line, no longer than the terminal is wide."""
    if not sys.stdout.isatty() or len(line) <= (width := shutil.get_terminal_size().columns):
        return line
    return line[: width - 3] + "..."


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    return f"{value:.6g}" if isinstance(value, float) else one_line(str(value))


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
