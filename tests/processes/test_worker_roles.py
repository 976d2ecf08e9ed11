"""The role of a worker by its queue: a slot, the scheduler, or a refusal in a sentence."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from threading import Event as Flag
from types import SimpleNamespace
from typing import Any

import pytest
from celery.exceptions import Ignore
from redis import ConnectionError as RedisError

import app.workers
from app.domain.slots import SCHEDULER
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.settings import settings
from app.workers import tasks
from app.workers.celery_app import celery, wake_scheduler
from app.workers.ownership import Ownership, SlotLock
from app.workers.tasks import WorkerProcess, stage

Monkeypatch = pytest.MonkeyPatch


@pytest.fixture(autouse=True)
def here(sqlite_url: str, tmp_path: Path, monkeypatch: Monkeypatch) -> Iterator[None]:
    """The settings of a machine without a GPU; heartbeats come every 50 ms."""
    monkeypatch.setenv("STAGETREE_DATABASE_URL", sqlite_url)
    monkeypatch.setenv("STAGETREE_LOCKS", str(tmp_path / "locks"))
    monkeypatch.setenv("STAGETREE_LEASE_SECONDS", "0.3")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    monkeypatch.setattr("app.workers.ownership.LOCK_SECONDS", 0.0)
    monkeypatch.setattr(tasks, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(tasks.worker, "ownership", None)
    settings.cache_clear()
    yield
    settings.cache_clear()
    celery.amqp.queues.select([SCHEDULER])


@pytest.fixture
def fresh() -> Iterator[WorkerProcess]:
    """A process that has just started."""
    before, made = list(gc.callbacks), WorkerProcess()
    yield made
    gc.callbacks[:] = before
    gc.unfreeze()


def start_worker(*queues: str) -> None:
    """Start a worker on these queues."""
    celery.amqp.queues.select(queues)
    tasks.check_queues(None)


@pytest.fixture
def records(sqlite_url: str) -> Iterator[SqlRecords]:
    database = Database(sqlite_url)
    yield SqlRecords(database)
    database.dispose()


@pytest.fixture
def elsewhere(records: SqlRecords, tmp_path: Path) -> Ownership:
    """A worker of another machine that has the slot cpu0."""
    lock = SlotLock.acquire("cpu0", settings().database_url, str(tmp_path / "elsewhere"))
    other = Ownership("cpu0", lock, lease_seconds=60.0, heartbeat_seconds=2.0)
    with records.write() as rows:
        assert other.take(rows, "cpu")
    return other


def test_one_worker_is_one_slot() -> None:
    with pytest.raises(SystemExit, match="one worker is one slot, but the queues cpu0, cpu1 were given"):
        start_worker("cpu0", "cpu1")
    assert tasks.worker.ownership is None


def test_the_scheduler_is_no_slot() -> None:
    start_worker(SCHEDULER)
    assert tasks.worker.ownership is None


def test_a_queue_that_is_no_slot_is_refused() -> None:
    with pytest.raises(SystemExit, match="queue nonsense is no slot"):
        start_worker("nonsense")
    assert tasks.worker.ownership is None


def test_a_slot_without_its_gpu_is_refused() -> None:
    with pytest.raises(SystemExit, match="slot gpu0 has no GPU"):
        start_worker("gpu0")
    assert tasks.worker.ownership is None


def test_a_second_worker_is_told_another_name(tmp_path: Path) -> None:
    lock = SlotLock.acquire("cpu0", settings().database_url, str(tmp_path / "locks"))
    with pytest.raises(SystemExit, match=r"is taken by process .* give this worker another queue, such as .*-cpu0"):
        start_worker("cpu0")
    lock.close()


def test_a_worker_elsewhere_that_is_alive_is_not_replaced(
    monkeypatch: Monkeypatch, records: SqlRecords, elsewhere: Ownership
) -> None:
    def beat(seconds: float) -> None:
        with records.write() as rows:
            rows.slots.touch("cpu0", elsewhere.owner)

    monkeypatch.setenv("STAGETREE_LEASE_SECONDS", "60")  # it counts as alive, even if a heartbeat is slow
    settings.cache_clear()
    monkeypatch.setattr("app.workers.tasks.time.sleep", beat)
    with pytest.raises(SystemExit, match="slot cpu0 is taken by process"):
        start_worker("cpu0")


def test_a_silent_remote_worker_is_replaced_after_a_wait(records: SqlRecords, elsewhere: Ownership) -> None:
    start_worker("cpu0")
    assert tasks.worker.ownership is not None
    with records.write() as rows:
        assert tasks.worker.ownership.take(rows, "cpu")  # at once, since the slot is free


def test_a_worker_starts_without_waiting_for_the_database(monkeypatch: Monkeypatch) -> None:
    monkeypatch.setenv("STAGETREE_DATABASE_URL", "postgresql://unknown@127.0.0.1:1/nothing")
    settings.cache_clear()
    start_worker("cpu0")
    assert tasks.worker.ownership is not None


# ------------------------------------------------------------------------------------------ what a process holds


def test_a_process_without_a_slot_says_so(fresh: WorkerProcess) -> None:
    with pytest.raises(RuntimeError, match="listens to no slot's queue"):
        fresh.slot  # noqa: B018


def test_a_process_without_a_role_ends(fresh: WorkerProcess) -> None:
    fresh.close()


def test_a_process_has_one_scheduler_and_one_notifier(fresh: WorkerProcess, monkeypatch: Monkeypatch) -> None:
    made = list[Any]()

    class Notifier:
        def __init__(self, tell: Any) -> None:
            made.append(tell)

        def notify(self) -> None: ...
        def close(self) -> None: ...

    monkeypatch.setattr(tasks, "Notifier", Notifier)
    fresh.notify()
    fresh.notify()
    assert len(made) == 1
    assert fresh.scheduler.tick_loop is fresh.scheduler.tick_loop
    assert fresh.scheduler.retention is fresh.scheduler.retention


@pytest.mark.parametrize("objects", [0, 3])
@pytest.mark.parametrize("has_waiting_slots", [True, False])
def test_deleted_checkpoints_are_announced_and_free_space_for_work(
    fresh: WorkerProcess,
    monkeypatch: Monkeypatch,
    caplog: pytest.LogCaptureFixture,
    objects: int,
    has_waiting_slots: bool,
) -> None:
    looked, told = Flag(), list[int]()

    def look() -> Any:
        looked.set()
        return SimpleNamespace(objects=objects, bytes=2**20 * objects, is_done=True)

    retention = SimpleNamespace(look=look, has_waiting_slots=has_waiting_slots)
    monkeypatch.setattr("app.workers.roles.Retention", lambda *_: retention)
    monkeypatch.setattr(fresh, "notify", lambda: told.append(1))
    with caplog.at_level("INFO"):
        fresh.scheduler.retention.start()
        assert looked.wait(60.0)
        fresh.close()
        assert fresh.scheduler.retention.join(60.0)
    assert ("deleted 3 checkpoints, 3.0 MiB" in caplog.messages) == ("deleted" in caplog.text) == bool(objects)
    assert bool(told) == has_waiting_slots


def test_a_completed_tick_is_recorded(fresh: WorkerProcess, records: SqlRecords) -> None:
    fresh.scheduler.tick_loop.tick()
    with records.read() as rows:
        assert rows.schedulers.last_tick() is not None


@pytest.mark.parametrize(("error", "is_away"), [(RedisError("no broker"), True), (ValueError("strange"), False)])
def test_only_an_unavailable_broker_is_no_error(monkeypatch: Monkeypatch, error: Exception, is_away: bool) -> None:
    def refuse() -> Any:
        raise error

    monkeypatch.setattr(celery, "connection_or_acquire", refuse)
    with nullcontext() if is_away else pytest.raises(ValueError, match="strange"):
        wake_scheduler()


def test_the_folder_of_workers_is_celerys_application() -> None:
    assert app.workers.celery is celery
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        app.workers.nonsense  # noqa: B018


class Playing:
    """A slot that says whether it ran a stage."""

    def __init__(self, is_complete: bool) -> None:
        self._is_complete = is_complete

    def run_stage(self, chain: str, index: int) -> bool:
        return self._is_complete


def test_the_next_message_is_sent_only_after_a_stage_that_was_completed(monkeypatch: Monkeypatch) -> None:
    monkeypatch.setattr(WorkerProcess, "slot", Playing(True))
    stage("chain", 0)
    monkeypatch.setattr(WorkerProcess, "slot", Playing(False))
    with pytest.raises(Ignore):
        stage("chain", 0)
