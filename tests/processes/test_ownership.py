"""A slot has one worker: on one machine by a lock, between machines by heartbeats."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from transactions import Clock, count_winners

from app.events.database import Database
from app.events.records import change
from app.events.rows import SlotLost, SlotTaken
from app.events.sql_log import SqlRecords
from app.workers import ownership as module
from app.workers.ownership import Ownership, SlotLock

URL = "postgresql://somewhere/log"
LEASE, BEAT = 60.0, 2.0


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def records(database: Database) -> SqlRecords:
    return SqlRecords(database)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LOCK_SECONDS", 0.2)


def worker(folder: Path, clock: Clock | None = None) -> Ownership:
    """A worker on the machine whose locks are in this folder."""
    return Ownership(
        "gpu0",
        SlotLock.acquire("gpu0", URL, str(folder)),
        lease_seconds=LEASE,
        heartbeat_seconds=BEAT,
        clock=clock or Clock(),
    )


def take(records: SqlRecords, who: Ownership) -> bool:
    return change(records, lambda rows: who.take(rows, "cpu"))


def owner(records: SqlRecords) -> str:
    with records.read() as rows:
        row = rows.slots.get("gpu0")
    assert row is not None
    return row.owner


def test_a_slot_is_taken(records: SqlRecords, tmp_path: Path) -> None:
    anna = worker(tmp_path)
    assert take(records, anna)
    assert owner(records) == anna.owner


# ------------------------------------------------------------------------------------------------ on one machine


def test_a_second_worker_of_this_machine_is_refused_at_once(tmp_path: Path) -> None:
    first = SlotLock.acquire("gpu0", URL, str(tmp_path))
    with pytest.raises(SlotTaken, match=f"slot gpu0 is taken by process {os.getpid()} on this machine"):
        SlotLock.acquire("gpu0", URL, str(tmp_path))
    for other in (SlotLock.acquire("gpu1", URL, str(tmp_path)), SlotLock.acquire("gpu0", URL + "2", str(tmp_path))):
        other.close()
    first.close()
    SlotLock.acquire("gpu0", URL, str(tmp_path)).close()


def test_of_many_workers_started_at_once_one_gets_the_slot(tmp_path: Path) -> None:
    held = list[SlotLock]()
    assert count_winners(lambda _: held.append(SlotLock.acquire("gpu0", URL, str(tmp_path))), SlotTaken) == 1


HOLD = """
import sys, time
from app.workers.ownership import SlotLock
lock = SlotLock.acquire("gpu0", sys.argv[1], sys.argv[2])
print(lock.id, flush=True)
time.sleep(600)
"""


@pytest.fixture
def killed_holder(tmp_path: Path) -> Iterator[str]:
    """The id of a lock whose holder was killed."""
    command = [sys.executable, "-c", HOLD, URL, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None
        id = holder.stdout.readline().strip()
        with pytest.raises(SlotTaken, match=f"process {holder.pid} on"):
            SlotLock.acquire("gpu0", URL, str(tmp_path))
        holder.kill()
    yield id


@pytest.mark.slow
def test_a_killed_worker_is_replaced_at_once(records: SqlRecords, tmp_path: Path, killed_holder: str) -> None:
    with records.write() as rows:  # the killed worker's last heartbeat is recent
        rows.slots.take("gpu0", f"{killed_holder}:x", instead_of=None, device="cpu", host="h", pid=1)
    anna = worker(tmp_path)
    assert take(records, anna)
    assert owner(records) == anna.owner


def test_a_new_process_of_a_worker_replaces_the_earlier_one(records: SqlRecords, tmp_path: Path) -> None:
    anna = worker(tmp_path)
    take(records, anna)
    before = anna.owner
    anna.begin()
    assert take(records, anna)
    assert owner(records) == anna.owner != before
    with pytest.raises(SlotLost), records.write() as rows:
        rows.slots.touch("gpu0", before)


def test_locks_are_the_users_own(tmp_path: Path) -> None:
    lock = SlotLock.acquire("gpu0", URL, str(tmp_path / "new"))
    [file] = (tmp_path / "new").iterdir()
    assert stat.S_IMODE((tmp_path / "new").stat().st_mode) == 0o700
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert "somewhere" not in file.name
    lock.close()


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.getuid", lambda: os.stat(tmp_path).st_uid + 1)
    with pytest.raises(SlotTaken, match="is another user's"):
        SlotLock.acquire("gpu0", URL, str(tmp_path))


def test_a_link_instead_of_a_lock_is_not_followed(tmp_path: Path) -> None:
    SlotLock.acquire("gpu0", URL, str(tmp_path / "one")).close()
    [file] = (tmp_path / "one").iterdir()
    (tmp_path / "two").mkdir()
    (tmp_path / "two" / file.name).symlink_to(tmp_path / "precious")
    with pytest.raises(OSError):
        SlotLock.acquire("gpu0", URL, str(tmp_path / "two"))
    assert not (tmp_path / "precious").exists()


# ------------------------------------------------------------------------------------------------ on two machines


def test_a_worker_elsewhere_that_is_alive_keeps_its_slot(records: SqlRecords, tmp_path: Path, clock: Clock) -> None:
    anna, berta = worker(tmp_path / "a"), worker(tmp_path / "b", clock)
    take(records, anna)
    assert not take(records, berta)
    with records.write() as rows:
        rows.slots.touch("gpu0", anna.owner)
    with pytest.raises(SlotTaken, match="slot gpu0 is taken by process"):
        take(records, berta)
    assert owner(records) == anna.owner


def test_a_worker_elsewhere_that_fell_silent_is_replaced(records: SqlRecords, tmp_path: Path, clock: Clock) -> None:
    anna, berta = worker(tmp_path / "a"), worker(tmp_path / "b", clock)
    take(records, anna)
    assert not take(records, berta)
    clock.at += 2 * BEAT
    assert not take(records, berta)
    clock.at += 2 * BEAT
    assert take(records, berta)
    with pytest.raises(SlotLost), records.write() as rows:
        rows.slots.touch("gpu0", anna.owner)


def test_a_worker_silent_for_a_lease_is_replaced_at_once(records: SqlRecords, tmp_path: Path) -> None:
    anna, berta = worker(tmp_path / "a"), worker(tmp_path / "b")
    take(records, anna)
    start = records.database.clock
    records.database.clock = lambda: 4e9
    assert take(records, berta)
    records.database.clock = start


def test_of_two_machines_at_once_one_gets_the_slot(records: SqlRecords, tmp_path: Path) -> None:
    workers = [worker(tmp_path / str(number)) for number in range(4)]
    taken = list[bool]()
    count_winners(lambda number: taken.append(take(records, workers[number])), SlotTaken)
    assert taken.count(True) == 1
