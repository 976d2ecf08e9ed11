"""Where studies are kept when no server is asked: a folder, or the database and the store that the settings name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from app.cli.errors import NOT_FOUND, fail

if TYPE_CHECKING:
    from app.events.records import SqlRecords
    from app.owned_store import OwnedStore

DEFAULT = Path(".stagetree")
DATABASE = "stagetree.db"


def is_store(folder: Path) -> bool:
    """Whether somebody has run a study there."""
    return (folder / DATABASE).is_file()


def check_store(folder: Path) -> None:
    """End with a message where nobody has."""
    if not is_store(folder):
        fail(f"{folder} holds no studies: `stagetree run STUDY.yaml --dir {folder}` makes some", NOT_FOUND)


def size(folder: Path) -> int:
    """The bytes that the files of a store take."""
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def folder_or_default(given: Path | None) -> Path | None:
    """The folder that an option names, or the store that is here; None for that of the settings."""
    return given or (DEFAULT if is_store(DEFAULT) else None)


def places(folder: Path | None) -> tuple[str, str]:
    """The URL of the database, and where checkpoints are kept: in a folder, or those of the settings.

    Ends with a message where neither is there: a database would be made, and be empty.
    """
    from app.settings import settings

    if folder is not None:
        check_store(folder)
        return f"sqlite:///{folder.resolve() / DATABASE}", str(folder.resolve() / "checkpoints")
    if "database_url" not in settings().model_fields_set and not Path(DATABASE).is_file():
        where = "--dir FOLDER or STAGETREE_DATABASE_URL says where the studies are"
        fail(f"there is no {DEFAULT} here: {where}", NOT_FOUND)
    return settings().database_url, settings().checkpoints


def open_store(folder: Path | None, records: SqlRecords) -> OwnedStore:
    """The store of the checkpoints that are on these records."""
    from app.owned_store import open_owned

    return open_owned(records, places(folder)[1])


@contextmanager
def open_records(folder: Path | None) -> Iterator[SqlRecords]:
    """The log and the rows in the database of `places`, without a server."""
    from app.events.database import Database
    from app.events.records import SqlRecords

    records = SqlRecords(Database(places(folder)[0]))
    try:
        yield records
    finally:
        records.close()
