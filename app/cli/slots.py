"""`stagetree slots`: the slots, and what each of them trains."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Annotated, Any

import typer

from app.cli.options import ListOutput, Server, Store
from app.cli.output import ListFormat, plural, print_list
from app.cli.service import open_service
from stagetree.text import percent

Json = dict[str, Any]

Release = Annotated[
    str | None, typer.Option("--release", metavar="SLOT", help="End the quarantine of this slot first.")
]


def slots(
    server: Server = None, dir: Store = None, release: Release = None, output: ListOutput = ListFormat.table
) -> None:
    """List the slots, what each of them trains or reads, and how far the estimates of its stages were off.

    \b
    Example:  stagetree slots
    """
    with open_service(server, dir) as service:
        if release is not None:
            service.client.release_slot(release)
        listed = service.client.slots(estimates=True)
    columns: dict[str, Callable[[Json], Any]] = {"estimates off": estimate_error_text, "note": itemgetter("note")}
    more = {name: value for name, value in columns.items() if any(map(value, listed))}
    rows = [(*slot_row(slot), *(value(slot) for value in more.values())) for slot in listed]
    print_list(listed, output, ("slot", "device", "host", "state", "study", "steps", *more), rows)


def slot_row(slot: Json) -> tuple[Any, ...]:
    """A slot's row in the table; a lent slot shows the trial it helps."""
    stage, loan = slot["stage"], slot["lent_to"]
    steps, study = stage and f"{stage['step']} of {stage['start']} to {stage['end']}", slot["study"]
    if stage and stage.get("proof"):
        steps = f"{steps}, verification"
    if loan:
        steps, study = f"trial {loan['trial']}, with {loan['slot']}", loan["study"]
    return slot["name"], slot["device"], slot["host"], slot["state"], study, steps


def estimate_error_text(slot: Json) -> str | None:
    """The error of the estimates of a slot's stages."""
    if (error := slot.get("estimate_error")) is None:
        return None
    part = percent(error["error"]) if error["error"] < 1 else "more than itself"
    return f"{part} ({plural(error['stages'], 'stage')})"
