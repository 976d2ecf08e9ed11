"""`stagetree demo`: the reference study, from the examples."""

from __future__ import annotations

import typer

from app.cli.errors import DONE
from app.cli.extras import STACK, require
from app.cli.init import STUDY, examples_folder
from app.cli.options import Changes, Slots
from app.cli.run import run

NEXT = {
    "stagetree trials last --sort value": "the trials of what you just ran",
    "stagetree open": "the same in a browser: shared steps, and why the best trial won",
    "stagetree init first": "a study file and a trainer to start from, in the folder first",
    "stagetree preview first/study.yaml --slots 2": "what a study would cost, before it is run",
    "stagetree up": "a server to submit studies to",
}
"""The commands that the demo proposes, and what each shows."""


def demo(slots: Slots = None, changes: Changes = None) -> None:
    """Run the reference study here: a grid of 32 trials on images of digits, about a minute on two cores.

    \b
    Example:  stagetree demo
    """
    require(*STACK, "sklearn")
    try:
        run(examples_folder() / "digits" / STUDY, slots=slots, changes=changes)
    except typer.Exit as end:
        if end.exit_code != DONE:
            raise
    width = max(map(len, NEXT))
    print("\nNext:", *(f"  {command:<{width}}  {what}" for command, what in NEXT.items()), sep="\n")
