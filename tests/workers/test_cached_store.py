"""Copies of checkpoints on a disk of the machine: never wrong, never more than they may be, and of no harm."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from stores import write_state

from app.settings import Settings
from app.storage.cached_store import FOLDER, CachedStore
from app.storage.object_store import LocalStore, open_store
from app.workers.slot.checkpoint_store import CheckpointStore, CheckpointUnreadable, Stored

IMAGE = bytes(range(256)) * 40


class Bucket(LocalStore):
    """A remote store: its objects are no files of this machine. It counts reads."""

    def __init__(self, root: str) -> None:
        super().__init__(root)
        self.reads = list[str]()

    def open(self, key: str) -> Any:
        return None

    def read(self, key: str) -> Iterator[bytes]:
        self.reads.append(key)
        fd = super().open(key)
        with os.fdopen(fd, "rb") as file:
            while part := file.read(1000):
                yield part


@pytest.fixture
def remote(tmp_path: Path) -> Bucket:
    (tmp_path / "bucket").mkdir()
    return Bucket(str(tmp_path / "bucket"))


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    return tmp_path / "nvme"


def slot(remote: Any, cache: Path, limit: int = 10**6) -> CheckpointStore:
    """As that of a slot, which keeps nothing in its memory."""
    return CheckpointStore(CachedStore(remote, cache, limit))


def read(checkpoints: CheckpointStore, stored: Stored) -> bytes:
    state = checkpoints.read(stored.key, stored.sha256)
    image = bytes(state.view())
    state.close()
    return image


def copies(cache: Path) -> list[Path]:
    return [path for path in (cache / FOLDER).rglob("*") if path.is_file()]


def test_a_sibling_on_the_same_machine_reads_nothing_of_the_bucket(remote: Bucket, cache: Path) -> None:
    stored = write_state(slot(remote, cache), "plan/node/3", IMAGE)
    assert read(slot(remote, cache), stored) == IMAGE
    assert remote.reads == []


def test_states_of_another_machine_are_read_once(remote: Bucket, cache: Path, tmp_path: Path) -> None:
    stored = write_state(slot(remote, tmp_path / "other"), "plan/node/3", IMAGE)
    assert [read(slot(remote, cache), stored) for _ in range(3)] == [IMAGE] * 3
    assert remote.reads == [stored.key]


@pytest.mark.parametrize("damage", [IMAGE[:-1], IMAGE[:-1] + b"x", b""])
def test_a_damaged_copy_is_read_from_the_bucket(remote: Bucket, cache: Path, damage: bytes) -> None:
    stored = write_state(slot(remote, cache), "plan/node/3", IMAGE)
    copies(cache)[0].write_bytes(damage)
    assert read(slot(remote, cache), stored) == IMAGE
    assert copies(cache)[0].read_bytes() == IMAGE


def test_a_damaged_object_is_unreadable_all_the_same(remote: Bucket, cache: Path) -> None:
    stored = write_state(slot(remote, cache), "plan/node/3", IMAGE)
    for path in (*copies(cache), next((cache.parent / "bucket").rglob("*.safetensors"))):
        path.write_bytes(b"damaged")
    with pytest.raises(CheckpointUnreadable, match="damaged"):
        read(slot(remote, cache), stored)


def test_deleted_states_have_no_copy(remote: Bucket, cache: Path) -> None:
    checkpoints = slot(remote, cache)
    stored = write_state(checkpoints, "plan/node/3", IMAGE)
    checkpoints.delete(stored.key)
    assert copies(cache) == []
    with pytest.raises(CheckpointUnreadable, match="not there"):
        read(checkpoints, stored)


def test_an_upload_that_fails_leaves_no_copy(remote: Bucket, cache: Path) -> None:
    def parts() -> Iterator[memoryview]:
        yield memoryview(IMAGE)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        CachedStore(remote, cache, 10**6).write("plan/node/3", parts())
    assert copies(cache) == []


def test_an_aborted_read_leaves_no_copy(remote: Bucket, cache: Path, tmp_path: Path) -> None:
    stored = write_state(slot(remote, tmp_path / "other"), "plan/node/3", IMAGE)
    reading = CachedStore(remote, cache, 10**6).read(stored.key)
    next(reading)
    reading.close()  # type: ignore[attr-defined]
    assert copies(cache) == []


def test_a_cache_that_cannot_be_written_does_no_harm(remote: Bucket, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("no folder")
    checkpoints = slot(remote, tmp_path / "file")
    stored = write_state(checkpoints, "plan/node/3", IMAGE)
    assert read(checkpoints, stored) == IMAGE
    checkpoints.delete(stored.key)


class Full:
    """Like `os.write` where the disk has room for a limited number of bytes."""

    def __init__(self, room: int) -> None:
        self.room, self.write = room, os.write

    def __call__(self, fd: int, data: Any) -> int:
        if len(data) > self.room:
            raise OSError(28, "No space left on device")
        self.room -= len(data)
        return self.write(fd, data)


def test_a_full_disk_does_no_harm(remote: Bucket, cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = slot(remote, cache.with_name("other"))
    stored = write_state(other, "plan/node/3", IMAGE)
    monkeypatch.setattr(os, "write", Full(2500))
    assert read(slot(remote, cache), stored) == IMAGE
    assert copies(cache) == []


def test_other_files_beside_the_copies_stay(remote: Bucket, cache: Path) -> None:
    cache.mkdir()
    (cache / "thesis.tex").write_bytes(bytes(10**5))
    os.utime(cache / "thesis.tex", (0, 0))
    checkpoints = slot(remote, cache, limit=len(IMAGE))
    for step in range(3):
        write_state(checkpoints, f"plan/node/{step}", IMAGE)
    assert (cache / "thesis.tex").exists()
    assert len(copies(cache)) == 1


@pytest.mark.slow
@given(st.lists(st.tuples(st.sampled_from(["write", "read"]), st.integers(0, 5), st.integers(1, 3000)), max_size=25))
def test_there_are_never_more_bytes_than_may_be_and_none_is_wrong(
    tmp_path_factory: pytest.TempPathFactory, does: list[tuple[str, int, int]]
) -> None:
    folder, limit = tmp_path_factory.mktemp("cache"), 5000
    (folder / "bucket").mkdir()
    remote, stored = Bucket(str(folder / "bucket")), dict[int, tuple[Stored, bytes]]()
    slots = [slot(remote, folder / "nvme", limit) for _ in range(2)]
    for number, (do, which, size) in enumerate(does):
        here = slots[number % 2]
        if do == "write":
            image = hashlib.sha256(str(number).encode()).digest() * (size // 32 + 1)
            stored[which] = write_state(here, f"plan/node/{which}", image), image
        elif which in stored:
            assert read(here, stored[which][0]) == stored[which][1]
        assert sum(path.stat().st_size for path in copies(folder / "nvme")) <= limit


def test_the_one_used_longest_ago_makes_room(remote: Bucket, cache: Path) -> None:
    checkpoints = slot(remote, cache, limit=2 * len(IMAGE))
    first, second = (write_state(checkpoints, f"plan/node/{step}", IMAGE) for step in (1, 2))
    for number, path in enumerate(sorted(copies(cache))):
        os.utime(path, (number, number))
    read(checkpoints, first)
    write_state(checkpoints, "plan/node/3", IMAGE)
    names = {path.name for path in copies(cache)}
    assert Path(first.key).name in names
    assert Path(second.key).name not in names


def test_on_s3(bucket_url: str, cache: Path) -> None:
    store = open_store(bucket_url)
    stored = write_state(slot(store, cache), "plan/node/3", IMAGE)
    assert store.stat(stored.key).size == len(IMAGE)
    store.delete(stored.key)
    assert read(slot(store, cache), stored) == IMAGE  # from the copy: the bucket was not asked


def test_the_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_CACHE", "/nvme/a,b,200GiB")
    assert Settings().cache_folder == (Path("/nvme/a,b"), 200 * 2**30)
    monkeypatch.delenv("STAGETREE_CACHE")
    assert Settings().cache_folder is None
    for wrong in ("/nvme", "nvme,1GiB", "/nvme,much"):
        monkeypatch.setenv("STAGETREE_CACHE", wrong)
        with pytest.raises(ValidationError):
            Settings()
