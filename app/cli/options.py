"""The arguments and options that commands share, and the stores that they name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.errors import NOT_FOUND, check_finite, fail
from app.cli.output import Format, ListFormat
from app.domain.slots import MOST_SHARES

if TYPE_CHECKING:
    from app.events.sql_log import SqlRecords
    from app.storage.owned_store import OwnedStore

MOST_SLOTS = 256
"""The most slots on one machine. Each is a process of some hundred megabytes."""

StudyFile = Annotated[Path, typer.Argument(metavar="STUDY.yaml", help="The study file; - reads it from stdin.")]

StudyId = Annotated[
    str, typer.Argument(metavar="ID", help="The study: its id, the beginning of it, its name, or `last`.")
]

TrialNumber = Annotated[int, typer.Argument(metavar="N", min=0, help="The trial's number.")]

OrBest = Annotated[
    int | None, typer.Argument(metavar="[N]", min=0, help="The trial's number; by default the best trial.")
]

Output = Annotated[Format, typer.Option("-o", "--output", help="Print a table, or one JSON document.")]

ListOutput = Annotated[ListFormat, typer.Option("-o", "--output", help="Print a table, one JSON document, or CSV.")]

Server = Annotated[
    str | None, typer.Option("--server", metavar="URL", help="The URL of a running server; by default STAGETREE_URL.")
]

Store = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="FOLDER", help="Read the store in this folder, without a server; by default .stagetree here."
    ),
]

Slots = Annotated[
    int | None,
    typer.Option(
        "--slots",
        metavar="N",
        min=1,
        max=MOST_SLOTS,
        help="How many slots; by default one for each GPU, else for each CPU core.",
    ),
]

SlotsPerGpu = Annotated[
    int | None,
    typer.Option("--slots-per-gpu", metavar="N", min=1, max=MOST_SHARES, help="N slots share each GPU."),
]

Trainers = Annotated[
    list[str] | None,
    typer.Option("--trainers", metavar="FILE.py", help="A Python file with trainers; may be repeated."),
]

Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="FIELD=VALUE",
        help="Change a field of the study file, such as tuner.max_steps=20; may be repeated.",
    ),
]

Sinks = Annotated[
    list[str] | None,
    typer.Option(
        "--sink",
        metavar="SINK",
        help="Write the study to tensorboard:DIR, wandb:PROJECT, mlflow:URI, otlp:URL or webhook:URL; may be repeated.",
    ),
]

Plain = Annotated[bool, typer.Option("--plain", help="Print lines instead of the live view.")]

Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="Print no progress.")]

Strict = Annotated[bool, typer.Option("--strict", help="Exit with code 5 if a trial failed.")]

Timeout = Annotated[
    float | None,
    typer.Option("--timeout", metavar="SECONDS", min=0, callback=check_finite, help="Stop waiting after this time."),
]

Host = Annotated[
    str,
    typer.Option("--host", metavar="ADDRESS", help="The address to listen on. Callers on other machines need a token."),
]

Port = Annotated[int, typer.Option("--port", metavar="N", min=0, max=65535, help="The port to listen on.")]

Insecure = Annotated[bool, typer.Option("--insecure", help="Require no token: every caller may do everything.")]

DEFAULT_DIR = Path(".stagetree")

DATABASE = "stagetree.db"


def is_store(folder: Path) -> bool:
    """Whether the folder holds a store."""
    return (folder / DATABASE).is_file()


def check_store(folder: Path) -> None:
    """Exit with a message if the folder holds no store."""
    if not folder.exists():
        fail(f"there is no {folder} here: go to the folder of your studies, or name it", NOT_FOUND)
    if not is_store(folder):
        fail(f"{folder} holds no studies: `stagetree run STUDY.yaml --dir {folder}` makes some", NOT_FOUND)


def folder_or_default(option: Path | None) -> Path | None:
    """The option's folder, or the store here; None for the store of the settings."""
    return option or (DEFAULT_DIR if is_store(DEFAULT_DIR) else None)


def places(folder: Path | None) -> tuple[str, str]:
    """The URL of the database and the address of the checkpoints, in a folder or by the settings.

    Exits with a message if there is neither, since an empty database would be created.
    """
    from app.settings import settings

    if folder is not None:
        check_store(folder)
        return f"sqlite:///{folder.resolve() / DATABASE}", str(folder.resolve() / "checkpoints")
    if "database_url" not in settings().model_fields_set and not Path(DATABASE).is_file():
        where = "--dir FOLDER or STAGETREE_DATABASE_URL says where the studies are"
        fail(f"there is no {DEFAULT_DIR} here: {where}", NOT_FOUND)
    return settings().database_url, settings().checkpoints


def open_store(folder: Path | None, records: SqlRecords) -> OwnedStore:
    """The checkpoint store of these records."""
    from app.storage.owned_store import open_owned

    return open_owned(records, places(folder)[1])


@contextmanager
def open_records(folder: Path | None) -> Iterator[SqlRecords]:
    """The log and rows in the database of `places`."""
    from app.events.database import Database
    from app.events.sql_log import SqlRecords

    records = SqlRecords(Database(places(folder)[0]))
    try:
        yield records
    finally:
        records.close()


Values = Annotated[
    list[str],
    typer.Option("--set", metavar="NAME=VALUE", help="A hyper-parameter, written as in a study file; may be repeated."),
]

StepsInAll = Annotated[int, typer.Option("--steps", metavar="N", min=1, help="The number of steps in all.")]
