from __future__ import annotations

import hashlib
import shutil
import time
from base64 import b64encode
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import get_ident
from typing import Any
from zlib import crc32

import fsspec
import pytest
from botocore.awsrequest import AWSPreparedRequest
from botocore.httpsession import URLLib3Session
from faulty import FaultyStore
from opened import open_files
from stores import write_state

from app.outages import Unavailable
from app.storage.object_store import PART, S3_OPTIONS, LocalStore, ObjectStore, S3Store, StoreUnavailable, open_store
from app.storage.s3_parts import SKIPPED
from app.workers.slot.checkpoint_store import CheckpointStore, CheckpointUnreadable, Stored
from app.workers.state import MAX_STATES, State

BIG = bytes(range(256)) * (PART // 128)
"""Of more than one part."""


@pytest.fixture(params=["folder", "s3"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    return open_store(str(tmp_path) if request.param == "folder" else request.getfixturevalue("bucket_url"))


def contents(state: State) -> bytes:
    data = bytes(state.view()) if state.size else b""
    state.close()
    return data


@pytest.mark.slow
def test_states_are_read_with_the_hash_of_all_parts(store: ObjectStore) -> None:
    checkpoints, state = CheckpointStore(store), State.from_bytes(BIG)
    stored = checkpoints.write("plan/node/3", state)
    assert stored.key.startswith("plan/node/3-")
    assert (stored.size, stored.sha256) == (len(BIG), hashlib.sha256(BIG).hexdigest())
    assert contents(checkpoints.read(stored.key, stored.sha256)) == BIG
    assert contents(state) == BIG  # it stays the caller's


def test_missing_and_changed_states_are_unreadable(store: ObjectStore) -> None:
    checkpoints = CheckpointStore(store)
    stored = write_state(checkpoints, "plan/node/3", b"state")
    with pytest.raises(CheckpointUnreadable, match="damaged"):
        checkpoints.read(stored.key, "0" * 64)
    checkpoints.delete(stored.key)
    with pytest.raises(CheckpointUnreadable, match="is not there"):
        checkpoints.read(stored.key, stored.sha256)
    checkpoints.delete(stored.key)  # again


def test_a_state_in_parts_is_all_of_them_or_nothing(tmp_path: Path) -> None:
    store = FaultyStore(str(tmp_path))
    checkpoints, state = CheckpointStore(store), State.from_bytes(b"leader")
    state.parts = (State.from_bytes(b"one"), State.from_bytes(b"two"))

    def lose_the_second(key: str) -> None:
        if key.endswith(".2.safetensors"):
            raise ConnectionError("away")

    store.before_write = lose_the_second
    with pytest.raises(StoreUnavailable, match="away"):
        checkpoints.write("plan/node/3", state)
    assert list(store.all_keys()) == []  # earlier parts would be unknown to every process
    store.before_write = lambda key: None
    stored = checkpoints.write("plan/node/3", state)
    assert {stored.key, *(part.key for part in stored.parts)} == {*store.all_keys()}
    assert stored.size == len(b"leaderonetwo") == state.total
    with closing(checkpoints.read(stored.key, stored.sha256, stored.parts)) as read:
        assert [bytes(each.view()) for each in read.images] == [b"leader", b"one", b"two"]
    store.delete(stored.parts[1].key)
    with pytest.raises(CheckpointUnreadable, match="is not there"):
        checkpoints.read(stored.key, stored.sha256, stored.parts)
    state.close()


def test_an_object_that_broke_off_does_not_exist(store: ObjectStore) -> None:
    def parts() -> Iterator[memoryview]:
        yield memoryview(BIG)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        store.write("key", parts())
    with pytest.raises(FileNotFoundError):
        list(store.read("key"))


def test_states_are_listed_with_size_and_age(store: ObjectStore) -> None:
    assert list(store.all_keys()) == []
    before = time.time()
    keys = {write_state(CheckpointStore(store), f"{plan}/node/3", b"state").key for plan in ("a", "b")}
    assert {*store.all_keys()} == keys
    for key in keys:
        assert store.stat(key).size == 5
        assert store.stat(key).at == pytest.approx(before, abs=60)
    with pytest.raises(FileNotFoundError):
        store.stat("a/node/4")


class Broken:
    """A store whose client raises any error."""

    prefix = ""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def write(self, *_: Any) -> None:
        raise self.error

    def read(self, *_: Any) -> Iterator[bytes]:
        yield b"some"
        raise self.error

    delete = write

    def open(self, key: str) -> None:
        """It is no file of this machine."""


class ClientError(Exception):
    """No OSError, like most of botocore's and aiohttp's."""


@pytest.mark.parametrize("do", ["write", "read", "delete"])
@pytest.mark.parametrize("error", [ClientError("503"), OSError("reset"), TimeoutError(), ValueError("truncated")])
def test_client_errors_are_store_outages(error: Exception, do: str) -> None:
    checkpoints = CheckpointStore(Broken(error))
    calls: dict[str, Callable[[], object]] = {
        "write": lambda: write_state(checkpoints, "place", b"state"),
        "read": lambda: checkpoints.read("key", ""),
        "delete": lambda: checkpoints.delete("key"),
    }
    with pytest.raises(StoreUnavailable, match=type(error).__name__) as raised:
        calls[do]()
    assert isinstance(raised.value, Unavailable)


def test_states_deleted_by_others_count_as_deleted() -> None:
    CheckpointStore(Broken(FileNotFoundError("no such object"))).delete("key")


def test_an_incomplete_read_leaves_nothing_open() -> None:
    checkpoints = CheckpointStore(Broken(ClientError("reset")))
    before = open_files()
    with pytest.raises(StoreUnavailable):
        checkpoints.read("key", "")
    assert not open_files() - before


def test_a_missing_bucket_is_an_outage_and_no_missing_state(bucket_url: str) -> None:
    checkpoints = CheckpointStore(open_store(bucket_url.replace("checkpoints", "nowhere")))
    with pytest.raises(StoreUnavailable):
        checkpoints.read("key", "")


def test_an_unmounted_folder_is_an_outage_and_no_missing_state(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path / "not-there")))
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        checkpoints.read("key", "")


def test_a_folder_that_was_deleted_beside_its_log_has_lost_what_was_in_it(tmp_path: Path) -> None:
    """The log is there, so its disk is: to wait for the folder was to wait for ever."""
    (tmp_path / "stagetree.db").touch()
    checkpoints = CheckpointStore(LocalStore(str(tmp_path / "checkpoints")))
    stored = write_state(checkpoints, "a", b"first")
    shutil.rmtree(tmp_path / "checkpoints")
    with pytest.raises(CheckpointUnreadable, match="is not there"):
        checkpoints.read(stored.key, stored.sha256)
    checkpoints.delete(stored.key)
    again = write_state(checkpoints, "a", b"again")
    assert contents(checkpoints.read(again.key, again.sha256)) == b"again"


def test_a_link_to_a_disk_that_is_not_mounted_is_away(tmp_path: Path) -> None:
    (tmp_path / "stagetree.db").touch()
    (tmp_path / "checkpoints").symlink_to(tmp_path / "disk" / "checkpoints")
    with pytest.raises(StoreUnavailable, match="is it mounted"):
        CheckpointStore(LocalStore(str(tmp_path / "checkpoints"))).read("key", "")


def test_recent_states_are_read_from_memory_up_to_so_many_bytes(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path)), memory_bytes=10)
    first = write_state(checkpoints, "a", b"first")
    second = write_state(checkpoints, "b", b"secnd")
    for path in tmp_path.iterdir():
        path.unlink()
    assert contents(checkpoints.read(first.key, first.sha256)) == b"first"  # and so it is the most recent
    third = write_state(checkpoints, "c", b"third")
    assert contents(checkpoints.read(first.key, first.sha256)) == b"first"
    assert contents(checkpoints.read(third.key, third.sha256)) == b"third"
    with pytest.raises(CheckpointUnreadable):
        checkpoints.read(second.key, second.sha256)


def states_in_memory(checkpoints: CheckpointStore, folder: Path, *states: Stored) -> list[bool]:
    """Which of them are in memory: nothing else is left."""
    for path in folder.iterdir():
        path.unlink()
    found = []
    for each in states:
        try:
            checkpoints.read(each.key, each.sha256).close()
        except CheckpointUnreadable:
            found.append(False)
        else:
            found.append(True)
    checkpoints.close()
    return found


def test_where_several_stages_begin_is_in_memory_for_longer(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path)), memory_bytes=10)
    branch = write_state(checkpoints, "a", b"first", is_branch_point=True)
    others = [write_state(checkpoints, place, b"other") for place in "bc"]
    assert states_in_memory(checkpoints, tmp_path, branch, *others) == [True, False, True]


def test_no_more_than_so_many_are_in_memory_however_small(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path)), memory_bytes=2**20)
    stored = [write_state(checkpoints, f"{number}", b"small") for number in range(MAX_STATES + 1)]
    assert states_in_memory(checkpoints, tmp_path, *stored) == [False] + MAX_STATES * [True]


def test_states_too_large_for_memory_evict_nothing(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path)), memory_bytes=10)
    small = write_state(checkpoints, "a", b"small")
    large = write_state(checkpoints, "b", b"larger than all of it")
    assert states_in_memory(checkpoints, tmp_path, small, large) == [True, False]


def test_a_state_from_memory_outlives_its_place_there(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path)), memory_bytes=5)
    first = write_state(checkpoints, "a", b"first")
    state = checkpoints.read(first.key, first.sha256)
    write_state(checkpoints, "b", b"other")  # and the first is forgotten
    assert contents(state) == b"first"


def test_a_branch_point_makes_room_for_a_newer_one(tmp_path: Path) -> None:
    checkpoints = CheckpointStore(LocalStore(str(tmp_path)), memory_bytes=10)
    trunks = [write_state(checkpoints, place, b"trunk", is_branch_point=True) for place in "abc"]
    assert states_in_memory(checkpoints, tmp_path, *trunks) == [False, True, True]


# ------------------------------------------------------------------------------------------------ parts side by side


LARGE = bytes(range(256)) * (PART // 256) * 5 + b"the rest"
"""Of five whole parts, and one that is not."""


class Stream:
    """Parts of a large object, none of the size that a store would choose."""

    def __init__(self, image: bytes, size: int) -> None:
        self.image, self.size = image, size

    def __iter__(self) -> Iterator[memoryview]:
        for begin in range(0, len(self.image), self.size):
            yield memoryview(self.image)[begin : begin + self.size]


@pytest.mark.slow
@pytest.mark.parametrize("size", [PART, PART + 1, len(LARGE)])
def test_parts_arrive_in_their_order(store: ObjectStore, size: int) -> None:
    store.write("key", Stream(LARGE, size))
    assert b"".join(store.read("key")) == LARGE
    assert store.stat("key").size == len(LARGE)


def file_system_of(bucket_url: str) -> Any:
    """That of the store: they are kept."""
    return fsspec.core.url_to_fs(bucket_url, **S3_OPTIONS)[0]


@pytest.fixture(params=["direct", "req_kw", pytest.param("s3_additional_kwargs", marks=pytest.mark.slow)])
def s3_store(request: pytest.FixtureRequest, bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> S3Store:
    """Carries parts itself, or leaves it to s3fs, which would add something to the requests."""
    if request.param != "direct":
        monkeypatch.setattr(file_system_of(bucket_url), request.param, {"RequestPayer": "requester"})
    return S3Store(bucket_url)


@pytest.mark.slow
def test_parts_of_s3_go_up_and_down_side_by_side(
    s3_store: S3Store, bucket_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    under_way, most = set[int](), list[int]()

    def count_calls(call: Callable[..., Any]) -> Callable[..., Any]:
        def do(*args: Any, **kwargs: Any) -> Any:
            under_way.add(me := get_ident())
            most.append(len(under_way))
            time.sleep(0.05)
            try:
                return call(*args, **kwargs)
            finally:
                under_way.discard(me)

        return do

    file_system, urls = file_system_of(bucket_url), break_requests(monkeypatch, lambda request: None)
    for owner, name in ((file_system, "call_s3"), (file_system, "cat_file"), (URLLib3Session, "send")):
        monkeypatch.setattr(owner, name, count_calls(getattr(owner, name)), raising=False)
    s3_store.write("key", Stream(LARGE, PART))
    assert max(most) > 1
    most.clear()
    assert b"".join(s3_store.read("key")) == LARGE
    assert max(most) > 1
    assert len(urls) == (0 if file_system.req_kw or file_system.s3_additional_kwargs else 11)


TWO = BIG + b"the rest"
"""Of two whole parts, and one that is not."""


def break_requests(monkeypatch: pytest.MonkeyPatch, change: Callable[[AWSPreparedRequest], None]) -> list[str]:
    """Change what our own connections send. Returns the URLs, which grow."""
    urls, send = list[str](), URLLib3Session.send

    def send_changed(session: URLLib3Session, request: AWSPreparedRequest) -> Any:
        urls.append(request.url)
        change(request)
        return send(session, request)

    monkeypatch.setattr(URLLib3Session, "send", send_changed)
    return urls


def ask_for_less(request: AWSPreparedRequest) -> None:
    request.headers["Range"] = "bytes=0-9"


def ask_elsewhere(request: AWSPreparedRequest) -> None:
    request.url = "http://127.0.0.1:9/"


def ask_for_another(request: AWSPreparedRequest) -> None:
    request.url = request.url.replace("/key?", "/no-such-key?").replace("uploadId=", "uploadId=other")


@pytest.mark.parametrize("change", [ask_for_less, ask_elsewhere, pytest.param(ask_for_another, marks=pytest.mark.slow)])
def test_a_part_that_does_not_get_through_is_carried_by_s3fs(
    change: Callable[[AWSPreparedRequest], None],
    bucket_url: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    store = S3Store(bucket_url)
    tried = break_requests(monkeypatch, change)
    store.write("key", Stream(TWO, PART))
    tried.clear()
    reader = S3Store(bucket_url)
    assert b"".join(reader.read("key")) == TWO
    assert 1 <= len(tried) <= 2  # the parts that had begun when the first of them failed
    tried.clear()
    assert b"".join(reader.read("key")) == TWO
    assert not tried
    warnings = [each.getMessage() for each in caplog.records if each.name == "app.storage.s3_parts"]
    assert warnings and all("go through s3fs" in each and "Signature" not in each for each in warnings)


def test_after_a_while_parts_are_tried_again(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(bucket_url)
    store.write("key", Stream(TWO, PART))
    with monkeypatch.context() as patched:
        break_requests(patched, ask_elsewhere)
        store.direct.get("nowhere/key", 0, 1)
    tried = break_requests(monkeypatch, lambda request: None)
    for _ in range(SKIPPED):
        assert store.direct.get("nowhere/key", 0, 1) is None
    assert not tried
    assert b"".join(store.read("key")) == TWO
    assert len(tried) == 2


def test_each_part_says_its_checksum(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent = dict[str, str]()

    def note(request: AWSPreparedRequest) -> None:
        sent[b64encode(crc32(request.body).to_bytes(4, "big")).decode()] = request.headers["x-amz-checksum-crc32"]

    urls = break_requests(monkeypatch, note)
    S3Store(bucket_url).write("key", Stream(TWO, PART))
    assert sent and all(computed == said for computed, said in sent.items())
    assert all("X-Amz-SignedHeaders=host%3Bx-amz-checksum-crc32" in url for url in urls)


def test_nothing_is_left_of_an_upload_that_broke_off(s3_store: S3Store, bucket_url: str) -> None:
    def parts() -> Iterator[memoryview]:
        yield from Stream(BIG, PART)
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        s3_store.write("key", parts())
    file_system, root = fsspec.core.url_to_fs(bucket_url, **S3_OPTIONS)
    bucket, prefix, _ = file_system.split_path(root)
    uploads = file_system.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", [])
    assert not [each for each in uploads if each["Key"].startswith(prefix)]


def test_a_connection_that_breaks_in_a_part_is_no_damage(bucket_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    store = S3Store(bucket_url)
    store.write("key", Stream(BIG, PART))
    file_system = file_system_of(bucket_url)
    whole = file_system.cat_file
    monkeypatch.setattr(file_system, "cat_file", lambda *args, **kwargs: whole(*args, **kwargs)[:-1], raising=False)
    break_requests(monkeypatch, ask_for_less)
    with pytest.raises(StoreUnavailable, match="bytes from"):
        CheckpointStore(store).read("key", "")
