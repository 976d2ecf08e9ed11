"""`stagetree strike`: for an operator, on the database itself, since the server may be what a study harms."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from app.cli.errors import NOT_FOUND, fail
from app.cli.places import folder_or_default, places

Id = Annotated[str, typer.Argument(metavar="ID", help="The study, as `stagetree studies` lists it.")]
Reason = Annotated[str, typer.Option("--reason", help="Why, for whoever looks at the study later.")]
Folder = Annotated[
    Path | None,
    typer.Option("--dir", help="The folder of an embedded stack; else .stagetree here, or STAGETREE_DATABASE_URL."),
]


def strike(id: Id, reason: Reason = "it harmed others", dir: Folder = None) -> None:
    """Strike a study that harms the others out of its plan, for good. Needs no server, and folds no plan.

    \b
    Example:  stagetree strike digits-grid-3f9c1a --reason "a million trials"
    """
    from app.domain.errors import Unknown
    from app.events.database import Database
    from app.events.records import SqlRecords
    from app.events.strikes import strike as strike_out

    records = SqlRecords(Database(places(folder_or_default(dir))[0]))
    try:
        done = strike_out(records, id, reason, time.time())
    except Unknown as unknown:
        fail(str(unknown), NOT_FOUND)
    finally:
        records.close()
    print(f"{id} is struck: none of its events is folded any more" if done else f"{id} was struck before")
    print("A process that is still busy with it must be started again.")
