"""One suite for every log: memory, SQLite, PostgreSQL. Order, no gaps, conflicts, idempotency, all or nothing."""

from __future__ import annotations

import multiprocessing
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from sqlalchemy import text

from app.domain.events import ChainEnded, Evaluated, PackingProfiled, StageFailed, StudyPaused, StudyResumed, TrialAdded
from app.domain.terms import ChainOutcome, FailureKind
from app.events.database import Database
from app.events.log import EventLog, Gap, KeyReused, VersionConflict
from app.events.rows import StudyRecord
from app.events.sql_log import SqlLog, SqlRecords
from app.events.sql_rows import Rows

PAUSED, RESUMED = StudyPaused(study="s1"), StudyResumed(study="s1")


def run_in_threads(count: int, work: Callable[[int], object]) -> list[object]:
    with ThreadPoolExecutor(count) as pool:
        return list(pool.map(work, range(count)))


@pytest.mark.slow
def test_a_new_log_is_empty(log: EventLog) -> None:
    assert (log.head(), log.version("a"), list(log.versions()), log.tail(), log.read("a")) == (0, 0, [], [], [])


def test_events_are_read_back_in_order(log: EventLog) -> None:
    first = log.append("a", [PAUSED, RESUMED], expected=0, at=1.5)
    second = log.append("b", [PAUSED], expected=0, at=2.5)
    third = log.append("a", [PAUSED], expected=2, at=3.5)
    assert [(r.position, r.stream, r.version, r.at) for r in first + second + third] == [
        (1, "a", 1, 1.5),
        (2, "a", 2, 1.5),
        (3, "b", 1, 2.5),
        (4, "a", 3, 3.5),
    ]
    assert log.read("a") == first + third
    assert log.read("b") == second
    assert log.tail() == [(1, "a"), (2, "a"), (3, "b"), (4, "a")]
    assert (log.head(), log.version("a"), log.version("b"), list(log.versions())) == (4, 3, 1, ["a", "b"])


def test_reading_starts_after_and_stops_at_a_limit(log: EventLog) -> None:
    log.append("a", [PAUSED, RESUMED, PAUSED, RESUMED], expected=0, at=1.0)
    assert [r.version for r in log.read("a", after=1, limit=2)] == [2, 3]
    assert log.tail(after=2) == [(3, "a"), (4, "a")]
    assert log.tail(after=1, limit=1) == [(2, "a")]
    assert log.tail(after=4) == log.read("a", after=9) == []


def test_pack_profiles_of_all_streams_are_listed(log: EventLog) -> None:
    profiles = [PackingProfiled(device=device, batch_seconds={"0": 1.0}, peak_bytes={}) for device in ("a", "b")]
    for profile in profiles:
        log.append(profile.device, [PAUSED, profile], expected=0, at=1.0)
    assert [(each.stream, each.position, each.event) for each in log.profiles()] == [
        ("a", 2, profiles[0]),
        ("b", 4, profiles[1]),
    ]


def test_failures_between_two_positions_are_counted_by_kind(log: EventLog) -> None:
    failed = [
        StageFailed(chain="c", index=0, step=1, kind=kind, error="", seconds=1.0)
        for kind in (FailureKind.HANG, FailureKind.CRASH, FailureKind.CRASH)
    ]
    ended = [ChainEnded(chain="c", outcome=outcome) for outcome in (ChainOutcome.DONE, ChainOutcome.LOST)]
    log.append("a", [*failed, PAUSED, *ended], expected=0, at=1.0)
    assert log.count_failures(0, log.head()) == {"hang": 1, "crash": 2, "lost": 1}
    assert log.count_failures(1, 2) == {"crash": 1}
    assert log.count_failures(log.head(), log.head()) == {}


def test_append_returns_the_stored_events(log: EventLog) -> None:
    wide = TrialAdded(
        study="s1", trial=0, hp={"lr": 1e22, "z": -0.0, "a": "\x00é\ud800"}, steps=3, reason={"rung": [1]}, path={}
    )
    appended = log.append("a", [wide], expected=0, at=1.0)
    assert log.read("a") == appended
    assert repr(log.read("a")[0].event) == repr(wide)


@pytest.mark.parametrize("expected", [0, 1, 3])
def test_another_version_than_expected_is_a_conflict_and_leaves_nothing(log: EventLog, expected: int) -> None:
    log.append("a", [PAUSED, RESUMED], expected=0, at=1.0)
    with pytest.raises(VersionConflict):
        log.append("a", [PAUSED], expected=expected, at=2.0, key="k")
    assert (log.head(), log.version("a"), log.find_by_key("k")) == (2, 2, None)


def test_a_stream_that_is_not_there_is_at_version_0(log: EventLog) -> None:
    with pytest.raises(VersionConflict):
        log.append("a", [PAUSED], expected=1, at=1.0)


def test_append_without_an_expected_version_always_succeeds(log: EventLog) -> None:
    versions = [log.append("a", [PAUSED], expected=None, at=1.0)[0].version for _ in range(3)]
    assert versions == [1, 2, 3]


def test_a_key_used_again_appends_nothing_and_returns_the_same(log: EventLog) -> None:
    ran: list[object] = []
    first = log.append("a", [PAUSED, RESUMED], expected=0, at=1.0, key="k", fingerprint="f")
    log.append("a", [PAUSED], expected=2, at=2.0)
    again = log.append("a", [RESUMED], expected=0, at=3.0, key="k", fingerprint="f", alongside=ran.append)
    assert again == first == log.find_by_key("k", "f")
    assert (log.head(), ran) == (3, [])


def test_a_key_of_an_empty_append_is_remembered(log: EventLog) -> None:
    assert log.append("a", [], expected=0, at=1.0, key="k") == []
    assert log.append("a", [PAUSED], expected=0, at=2.0, key="k") == []
    assert (log.find_by_key("k"), log.find_by_key("other"), log.head()) == ([], None, 0)


def test_a_key_with_another_request_is_refused(log: EventLog) -> None:
    log.append("a", [PAUSED], expected=0, at=1.0, key="k", fingerprint="f")
    with pytest.raises(KeyReused):
        log.append("a", [RESUMED], expected=1, at=2.0, key="k", fingerprint="g")
    with pytest.raises(KeyReused):
        log.find_by_key("k", "g")
    assert log.head() == 1


def test_a_key_used_by_many_at_once_appends_once(log: EventLog) -> None:
    results = run_in_threads(4, lambda n: log.append("a", [PAUSED], expected=None, at=float(n), key="k"))
    assert log.head() == 1
    assert all(result == log.read("a") for result in results)


def test_an_error_of_alongside_rolls_back_the_append(log: EventLog) -> None:
    def refuse(_: object) -> None:
        raise PermissionError

    with pytest.raises(PermissionError):
        log.append("a", [PAUSED], expected=None, at=1.0, key="k", alongside=refuse)
    assert (log.head(), list(log.versions()), log.find_by_key("k")) == (0, [], None)


def test_alongside_runs_for_an_empty_append(log: EventLog) -> None:
    ran: list[object] = []
    assert log.append("a", [], expected=None, at=1.0, alongside=ran.append) == []
    assert (len(ran), log.head(), list(log.versions())) == (1, 0, [])


def test_concurrent_writers_append_one_at_a_time(log: EventLog) -> None:
    """Each adds 10 by reading the version and appending there: none may be lost."""

    def add(n: int) -> None:
        done = 0
        while done < 10:
            try:
                log.append("a", [PAUSED], expected=log.version("a"), at=float(n))
                done += 1
            except VersionConflict:
                continue

    run_in_threads(4, add)
    assert [r.version for r in log.read("a")] == list(range(1, 41))


@pytest.mark.slow
def test_a_reader_that_follows_misses_nothing(log: EventLog) -> None:
    """When positions came from a sequence, a reader at this pace missed more than a quarter of the events."""
    followed: list[int] = []
    done = threading.Event()

    def follow() -> None:
        while not (done.is_set() and len(followed) == log.head()):
            followed.extend(position for position, _ in log.tail(after=len(followed)))

    reader = threading.Thread(target=follow)
    reader.start()
    run_in_threads(4, lambda n: [log.append(f"s{n}", [PAUSED] * (1 + i % 3), expected=None, at=0.0) for i in range(30)])
    done.set()
    reader.join(60)
    assert followed == list(range(1, log.head() + 1))
    assert log.head() == 4 * 60


def append_many(url: str, writer: int, count: int) -> None:
    database = Database(url)
    log = SqlLog(database)
    for i in range(count):
        log.append(f"s{writer % 2}", [Evaluated(node="n", step=i, metrics={"w": writer})], expected=None, at=0.0)
    database.dispose()


@pytest.mark.slow
def test_four_processes_leave_no_gap_and_keep_their_order(database_url: str) -> None:
    spawn = multiprocessing.get_context("spawn")
    writers = [spawn.Process(target=append_many, args=(database_url, n, 50)) for n in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(300)
    log = SqlLog(Database(database_url))
    assert [position for position, _ in log.tail()] == list(range(1, 201))
    for n in range(4):
        assert [r.event.step for r in log.read(f"s{n % 2}") if r.event.metrics["w"] == n] == list(range(50))


def test_alongside_and_the_events_commit_together(database: Database) -> None:
    log = SqlLog(database)

    def change(rows: Rows) -> None:
        rows.studies.add(StudyRecord(id="x", stream="a", name="n", state="running", submitted_at=0.0))

    count = text("SELECT count(*) FROM studies")
    log.append("a", [PAUSED], expected=0, at=1.0)
    with pytest.raises(VersionConflict):
        log.append("a", [PAUSED], expected=0, at=1.0, alongside=change)
    with database.read() as session:
        assert session.scalar(count) == 0
    log.append("a", [], expected=None, at=1.0, alongside=change)
    with database.read() as session:
        assert session.scalar(count) == 1


def test_a_missing_event_is_noticed(database: Database) -> None:
    log = SqlLog(database)
    log.append("a", [PAUSED] * 3, expected=0, at=1.0)
    with database.write() as session:
        session.execute(text("DELETE FROM events WHERE position = 2"))
    for after in (0, 1):
        with pytest.raises(Gap):
            log.read("a", after=after)


def test_a_deadlock_is_a_conflict(postgres_url: str) -> None:
    """Two transactions that lock two rows crosswise: one commits, the other may decide again."""
    database = Database(postgres_url)
    log, met, lost = SqlLog(database), threading.Barrier(2), []
    log.append("a", [PAUSED], expected=0, at=1.0)
    with SqlRecords(database).write() as rows:
        for study in "xy":
            rows.studies.add(StudyRecord(id=study, stream="a", name="n", state="running", submitted_at=0.0))

    def lock(order: str) -> Callable[[Rows], None]:
        def alongside(rows: Rows) -> None:
            rows.studies.set_state(order[0], "paused")
            met.wait(60)
            rows.studies.set_state(order[1], "paused")

        return alongside

    def append(n: int) -> None:
        try:
            log.append("a", [PAUSED], expected=None, at=1.0, alongside=lock(("xy", "yx")[n]))
        except VersionConflict:
            lost.append(n)

    run_in_threads(2, append)
    assert (len(lost), log.head()) == (1, 2)
    database.dispose()
