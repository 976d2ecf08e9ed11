"""Two databases on one bucket: neither deletes objects of the other, and a copied database must be declared."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.storage.object_store import StoreUnavailable
from app.storage.owned_store import NAME, NotOurs, OwnedStore, open_owned
from app.workers.slot.checkpoint_store import CheckpointStore
from app.workers.state import State

Make = Callable[[str], SqlRecords]


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind: str = getattr(request, "param", "folder")
    return str(tmp_path / "bucket") if kind == "folder" else request.getfixturevalue("bucket_url")


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    made: list[SqlRecords] = []

    def records(name: str) -> SqlRecords:
        database = Database(f"sqlite:///{tmp_path / name}.db")
        database.create()
        made.append(SqlRecords(database))
        return made[-1]

    yield records
    for each in made:
        each.close()


def copy_database(tmp_path: Path, records: SqlRecords) -> SqlRecords:
    """A backup of it that was restored beside it."""
    records.close()
    shutil.copy(str(records.database.url.database), tmp_path / "copy.db")
    return SqlRecords(Database(f"sqlite:///{tmp_path / 'copy.db'}"))


def write(store: OwnedStore, text: bytes = b"state") -> str:
    return CheckpointStore(store).write("plan-1/node/3", State.from_bytes(text)).key


@pytest.mark.parametrize("root", ["folder", "bucket"], indirect=True)
def test_keys_begin_with_the_installation_and_each_lists_its_own(root: str, make: Make) -> None:
    first, second = (open_owned(make(name), root) for name in ("a", "b"))
    keys = [write(first), write(second)]
    assert keys[0].split("/")[0] != keys[1].split("/")[0]
    assert all(NAME.fullmatch(key.split("/")[0]) for key in keys)
    assert (list(first.all_keys()), list(second.all_keys())) == ([keys[0]], [keys[1]])


@pytest.mark.parametrize("root", ["folder", "bucket"], indirect=True)
def test_files_of_another_installation_are_not_deleted(root: str, make: Make) -> None:
    first, second = (open_owned(make(name), root) for name in ("a", "b"))
    key = write(first)
    second.delete(key)
    assert b"".join(first.read(key)) == b"state"
    first.delete(key)
    with pytest.raises(FileNotFoundError):
        b"".join(first.read(key))


@pytest.mark.parametrize("root", ["folder", "bucket"], indirect=True)
def test_a_copy_of_a_database_neither_writes_nor_deletes(root: str, make: Make, tmp_path: Path) -> None:
    records = make("a")
    key = write(open_owned(records, root))
    copy = copy_database(tmp_path, records)
    with pytest.raises(NotOurs, match=r"belong to the database .*a\.db, and this one, .*copy\.db, is a copy of it"):
        open_owned(copy, root).delete(key)
    with pytest.raises(StoreUnavailable, match="gc --adopt"):
        write(open_owned(copy, root))
    assert b"".join(open_owned(copy, root).read(key)) == b"state", "reading needs no ownership"


def test_a_copy_takes_over_where_the_other_is_gone(root: str, make: Make, tmp_path: Path) -> None:
    records = make("a")
    key = write(open_owned(records, root))
    copy = open_owned(copy_database(tmp_path, records), root)
    copy.adopt()
    copy.delete(key)
    write(copy)
    with pytest.raises(StoreUnavailable, match="is a copy of it"):
        write(open_owned(records, root))


def test_a_copy_goes_on_apart_where_both_do(root: str, make: Make, tmp_path: Path) -> None:
    records = make("a")
    key = write(open_owned(records, root))
    copy = copy_database(tmp_path, records)
    with copy.write() as rows:
        rows.name_installation("0123456789ab")
    store = open_owned(copy, root)
    assert write(store).startswith("0123456789ab/")
    store.delete(key)
    assert b"".join(open_owned(records, root).read(key)) == b"state"


def test_the_owner_is_looked_at_once_a_minute(root: str, make: Make, tmp_path: Path) -> None:
    records, now = make("a"), [0.0]
    with records.read() as rows:
        found = rows.installation()
    from app.storage.object_store import open_store

    store = OwnedStore(open_store(root), lambda: found, clock=lambda: now[0])
    write(store)
    open_owned(copy_database(tmp_path, records), root).adopt()
    write(store)
    now[0] = 61.0
    with pytest.raises(StoreUnavailable):
        write(store)


def test_a_folder_beside_its_log_is_copied_with_it(tmp_path: Path) -> None:
    """`cp -r .stagetree elsewhere` is a store of its own, which asks nothing."""
    for name in ("here", "there"):
        folder = tmp_path / name
        if name == "there":
            shutil.copytree(tmp_path / "here", folder)
        database = Database(f"sqlite:///{folder / 'stagetree.db'}")
        folder.mkdir(exist_ok=True)
        database.create()
        key = write(open_owned(SqlRecords(database), str(folder / "checkpoints")))
        open_owned(SqlRecords(database), str(folder / "checkpoints")).delete(key)
        database.dispose()


def test_keys_from_before_there_were_installations_are_deleted(root: str, make: Make) -> None:
    store = open_owned(make("a"), root)
    store.write("plan-1/node/3-abc.safetensors", [memoryview(b"old")])
    store.delete("plan-1/node/3-abc.safetensors")
    with pytest.raises(FileNotFoundError):
        b"".join(store.read("plan-1/node/3-abc.safetensors"))
