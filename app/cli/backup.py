"""`stagetree backup` and `restore`: the log at one moment with its checkpoints, restored to an empty place.

What either writes is private to its user, as the store of an embedded stack is.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sqlite3
import subprocess
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from app.cli.errors import FAILED, USAGE, fail
from app.cli.options import DATABASE, Store, folder_or_default, open_records, open_store, places
from app.cli.output import memory, plural
from app.embedded.machine import private_files

if TYPE_CHECKING:
    from app.domain.events import StoredPart
    from app.events.sql_log import SqlRecords
    from app.storage.object_store import ObjectStore

Json = dict[str, Any]
PART = 16 * 2**20
MANIFEST, DUMP, OBJECTS = "manifest.json", "database.dump", "checkpoints"
PAUSE_SECONDS = 6 * 3600.0
"""How long a backup that was killed can delay the deletion of checkpoints."""

To = Annotated[Path, typer.Argument(metavar="TO", help="The folder to write, which must not exist yet.")]
From = Annotated[Path, typer.Argument(metavar="FROM", help="The folder that `stagetree backup` wrote.")]
Copy = Annotated[
    bool | None,
    typer.Option("--checkpoints/--no-checkpoints", help="Copy checkpoints, too; by default if they are in a folder."),
]
Folder = Annotated[
    Path | None,
    typer.Option(
        "--dir", metavar="FOLDER", help="The folder of the new store; by default the place that the settings name."
    ),
]


def backup(to: To, checkpoints: Copy = None, dir: Store = None) -> None:
    """Write the log as it is now, and the checkpoints that it names, to a folder. Studies may run meanwhile.

    \b
    Example:  stagetree backup /backups/monday
    """
    folder = folder_or_default(dir)
    url, root = places(folder)
    if to.exists():
        fail(f"{to} exists already: a backup needs a new folder", USAGE)
    with private_files(), open_records(folder) as records, _no_deletion(records):
        to.mkdir(parents=True)
        if _is_sqlite(url):
            _copy_sqlite(url, to)
        else:
            _call_postgresql(url, "pg_dump", "--format=custom", f"--file={to / DUMP}")
        position, named = _named_objects(records, to)
        is_copied = "://" not in root if checkpoints is None else checkpoints
        missing = _copy_objects(open_store(folder, records), named, to / OBJECTS) if is_copied else []
        present = [each for each in named if each.key not in missing]
        manifest = {"stagetree": 1, "position": position, "at": time.time(), "store": None if is_copied else root}
        objects = [{"key": each.key, "sha256": each.sha256, "size": each.size} for each in present]
        (to / MANIFEST).write_text(json.dumps({**manifest, "checkpoints": objects}, indent=1))
    size = memory(sum(each.size for each in present))
    what = "copies of" if is_copied else "the names of"
    print(f"{to} has the log up to event {position}, and {what} {plural(len(present), 'checkpoint')}, {size}")
    if missing:
        print(f"{plural(len(missing), 'checkpoint')} could not be read: their steps will be trained again")


def restore(source: From, dir: Folder = None) -> None:
    """Restore a backup to a new store: in a folder, or in the empty database that the settings name.

    \b
    Example:  stagetree restore /backups/monday --dir .stagetree
    """
    from app.settings import settings

    manifest = _manifest(source)
    if dir is None and "database_url" not in settings().model_fields_set:
        fail("--dir FOLDER or STAGETREE_DATABASE_URL says where it is restored", USAGE)
    url = f"sqlite:///{(dir / DATABASE).resolve()}" if dir else settings().database_url
    root = str(dir / OBJECTS) if dir else settings().checkpoints
    _check_free(url)
    with private_files():
        damaged = _place_objects(source / OBJECTS, manifest, root)  # first, so that an existing log is complete
        if _is_sqlite(url):
            database = Path(url.removeprefix("sqlite:///"))
            database.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copyfile(source / DATABASE, database)
            database.chmod(0o600)
        else:
            _call_postgresql(url, "pg_restore", "--no-owner", "--exit-on-error", str(source / DUMP))
    print(f"restored: the log up to event {manifest['position']}")
    if damaged:
        print(f"{plural(damaged, 'checkpoint')} are damaged or missing: their steps are trained again")
    if dir is None:
        print(
            "If checkpoints are in a bucket, run `stagetree gc --adopt` if the original is gone, else with `--separate`"
        )


# ------------------------------------------------------------------------------------------------------------ databases


def _is_sqlite(url: str) -> bool:
    return url.startswith("sqlite")


def _copy_sqlite(url: str, to: Path) -> None:
    """Use SQLite's backup, which is consistent during writes."""
    source, target = url.removeprefix("sqlite:///"), to / DATABASE
    with closing(sqlite3.connect(source)) as ours, closing(sqlite3.connect(target)) as theirs:
        ours.backup(theirs)
        theirs.execute("PRAGMA journal_mode = DELETE")
        theirs.execute("UPDATE installation SET paused_until = NULL")
        theirs.commit()


def _check_free(url: str) -> None:
    """Exit with a message if there is a log already."""
    from sqlalchemy import inspect

    from app.events.database import Database

    database = Database(url)
    try:
        is_file = _is_sqlite(url) and not Path(url.removeprefix("sqlite:///")).exists()
        if not is_file and inspect(database.engine).has_table("events"):
            fail("there is a log of stagetree already: a backup is restored where nothing is", USAGE)
    finally:
        database.dispose()


def _call_postgresql(url: str, *command: str) -> None:
    """Call a program of PostgreSQL for this database. The password is in its environment: `ps` shows command lines."""
    from sqlalchemy import URL, make_url

    parts = make_url(url)
    query = {name: value for name, value in parts.query.items() if name != "password"}
    where = URL.create("postgresql", parts.username, None, parts.host, parts.port, parts.database, query)
    password = parts.password or parts.query.get("password")
    environment = {**os.environ, **({"PGPASSWORD": str(password)} if password else {})}
    command = (*command, f"--dbname={where.render_as_string()}")
    try:
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        fail(f"there is no {command[0]} here: install the client of PostgreSQL", FAILED)
    if done.returncode:
        fail(f"{command[0]} failed: {done.stderr.strip() or done.returncode}", FAILED)


# ---------------------------------------------------------------------------------------------------------- checkpoints


@contextmanager
def _no_deletion(records: SqlRecords) -> Iterator[None]:
    with records.write() as rows:
        rows.pause_deletion(PAUSE_SECONDS)
    try:
        yield
    finally:
        with records.write() as rows:
            rows.pause_deletion(None)


def _named_objects(records: SqlRecords, to: Path) -> tuple[int, list[StoredPart]]:
    """The last position of the copied log, and its checkpoints.

    A dump of PostgreSQL is not read; the database a moment later is used instead.
    """
    from app.domain import checkpoint_needs
    from app.events import Plans
    from app.events.archive import list_archived
    from app.events.database import Database
    from app.events.sql_log import SqlRecords as Records

    copied = to / DATABASE
    there = Records(Database(f"sqlite:///{copied}")) if copied.exists() else records
    plans, checkpoints = Plans(there.log), list[Any]()
    for stream in (*there.log.versions(), *list_archived(there.database)):
        with plans.holding(stream) as plan:
            checkpoints += checkpoint_needs.kept_objects(plan)
    position = there.log.head()
    if there is not records:
        there.close()
    return position, checkpoints


def _copy_objects(store: ObjectStore, named: list[StoredPart], to: Path) -> list[str]:
    """Copy the objects; returns the keys of objects that are lost, or that a slot has just replaced by later ones."""
    missing = []
    for each in named:
        target = to / each.key
        target.parent.mkdir(parents=True, exist_ok=True)
        try:
            with target.open("wb") as file:
                file.writelines(store.read(each.key))
        except FileNotFoundError:
            target.unlink()
            missing.append(each.key)
    return missing


def _place_objects(source: Path, manifest: Json, root: str) -> int:
    """Copy the objects into the store; the number of damaged or missing ones."""
    from app.storage.object_store import open_store as open_plain

    if not source.is_dir():
        return 0
    store, damaged = open_plain(root), 0
    for each in manifest["checkpoints"]:
        path = source / each["key"]
        if _is_whole(path, each["sha256"]):
            store.write(each["key"], _parts_of(path))
        else:
            damaged += 1
    return damaged


def _is_whole(path: Path, digest: str) -> bool:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest() == digest
    except FileNotFoundError:
        return False


def _parts_of(path: Path) -> Iterator[memoryview]:
    with path.open("rb") as file:
        while part := file.read(PART):
            yield memoryview(part)


def _manifest(source: Path) -> Json:
    try:
        manifest: Json = json.loads((source / MANIFEST).read_text())
    except (OSError, ValueError) as problem:
        fail(f"{source} is no backup: {problem}", USAGE)
    if manifest.get("stagetree") != 1:
        fail(f"{source} was made by a newer stagetree", USAGE)
    return manifest
