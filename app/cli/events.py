"""`stagetree events`: what happened in a study, in order."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

import typer

from app.cli.options import ListOutput, Server, Store, StudyId
from app.cli.output import ListFormat, escape_control, one_line, print_csv
from app.cli.service import open_study
from stagetree.text import short

Json = dict[str, Any]

WIDEST = 160

HIDDEN = ("spec", "hp", "path", "sha256", "key", "environment", "stages", "at", "study")

COUNTED_FROM_0 = ("trial", "index")


UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}


def parse_since(text: str) -> float:
    """A time in Unix seconds, from an age such as 10m, or an ISO time, which is local unless it names a zone."""
    amount, unit = text[:-1], text[-1:]
    if unit in UNITS and amount.replace(".", "", 1).isdecimal():
        return time.time() - float(amount) * UNITS[unit]
    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f"must be a time such as 2026-11-29T20:00, or 30s, 10m, 2h or 3d, got {text!r}"
        ) from None


def events(
    id: StudyId,
    after: Annotated[
        int, typer.Option("--after", metavar="N", min=0, help="Begin after the event at this position.")
    ] = 0,
    since: Annotated[
        float | None,
        typer.Option(
            "--since",
            metavar="TIME",
            parser=parse_since,
            help="Begin at a time, such as 2026-11-29T20:00, or at an age: 30s, 10m, 2h, 3d.",
        ),
    ] = None,
    limit: Annotated[
        int | None, typer.Option("--limit", metavar="N", min=1, help="At most N events, from the first on.")
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Follow the events until the study is over.")] = False,
    type: Annotated[
        list[str] | None, typer.Option("--type", metavar="NAME", help="Only events of this type; may be repeated.")
    ] = None,
    server: Server = None,
    dir: Store = None,
    output: ListOutput = ListFormat.table,
) -> None:
    """Show what happened in a study, in order.

    \b
    Example:  stagetree events last --type TrialExtended --since 1h
    """
    with open_study(id, server, dir) as (service, study):
        read = service.client.follow if follow else service.client.events
        matching: Iterator[Json] = (
            event
            for event in read(study, after)
            if (not type or event["type"] in type) and (since is None or event["at"] >= since)
        )
        matching = islice(matching, limit)
        if output is ListFormat.json:
            print_array(matching)
        elif output is ListFormat.csv:
            print_csv(matching)
        else:
            for event in matching:
                at = time.strftime("%H:%M:%S", time.localtime(event["at"]))
                by = f"by {escape_control(event['by'])}  " if event.get("by") else ""
                print(f"{event['position']:>7}  {at}  {event['type']:<18} {by}{brief(event['data'])}", flush=True)


def print_array(items: Any) -> None:
    """Print one JSON array, each item as soon as it arrives."""
    sys.stdout.write("[")
    for number, item in enumerate(items):
        sys.stdout.write((",\n " if number else "\n ") + json.dumps(item))
        sys.stdout.flush()
    sys.stdout.write("\n]\n")


def brief(data: Json) -> str:
    """An event's data on one line. Empty fields and zeros are left out, and tracebacks are cut to their last line."""
    parts = []
    for name, value in data.items():
        if name == "error":
            value = str(value).strip().rsplit("\n", 1)[-1]
        if name in ("node", "chain"):
            value = str(value)[:8]
        if name not in HIDDEN and (value or (value == 0 and name in COUNTED_FROM_0)):
            parts.append(f"{name}={_value(value)}")
    text = one_line("  ".join(parts))
    return text if len(text) <= WIDEST else text[: WIDEST - 3] + "..."


def _value(value: Any) -> str:
    if not isinstance(value, dict):
        return short(value)
    return "(" + ", ".join(f"{name} {_value(inner)}" for name, inner in value.items()) + ")"
