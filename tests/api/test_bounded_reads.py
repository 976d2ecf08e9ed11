"""However long a log is, no request holds more of it at once than a part; what a trial printed, neither."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.api import streaming
from app.cli.export import trace_lines
from app.events import log as event_log
from app.events.database import Database
from app.events.log import StoredEvent
from app.events.plans import Plans
from app.events.sql_log import SqlLog, SqlRecords
from app.service import queries, trial_logs
from app.service.html_report import parse
from app.service.services import Services
from app.service.trial_logs import LOG_CHARACTERS, LogFolder
from tests.api.world import Workers

PART = 4


class CountingLog(SqlLog):
    """longest: the most events that were ever read at once."""

    longest = 0

    def read(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[StoredEvent]:
        recorded = super().read(stream, after=after, limit=limit)
        self.longest = max(self.longest, len(recorded))
        return recorded


@pytest.fixture
def log(app: FastAPI, sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[CountingLog]:
    """The log that the application reads from here on."""
    monkeypatch.setattr(event_log, "SCAN_BATCH", PART)
    monkeypatch.setattr(streaming, "BATCH", PART)
    records = SqlRecords(Database(sqlite_url))
    records.log = log = CountingLog(records.database)
    app.state.services = replace(app.state.services, records=records)
    yield log
    records.close()


@pytest.fixture
def done(tuned_study: str, workers: Workers) -> str:
    """A study that is over, with more events than four parts hold."""
    for trial in range(2):
        workers.finish(tuned_study, workers.assign(tuned_study, trial), {"accuracy": 0.5})
    workers.close(tuned_study)
    assert workers.use.log.head() > 3 * PART
    return tuned_study


@pytest.mark.slow
def test_replay_holds_a_part_of_the_log(http: TestClient, done: str, log: CountingLog) -> None:
    found = http.post(f"/studies/{done}:replay").json()
    assert found["identical"] and found["events"] == log.head()
    assert 0 < log.longest <= PART


@pytest.mark.slow
def test_replay_up_to_an_event_reads_no_further(http: TestClient, done: str, log: CountingLog) -> None:
    assert http.post(f"/studies/{done}:replay?at=5").json()["events"] == 6  # the plan was opened before the study
    assert log.longest <= PART


def test_an_export_holds_a_part_of_the_log(http: TestClient, done: str, log: CountingLog) -> None:
    lines = http.get(f"/studies/{done}/log").text.splitlines()
    assert [position for position, _ in parse(lines)] == list(range(1, log.head() + 1))
    assert 0 < log.longest <= PART
    assert list(trace_lines("\n".join(lines), done))


def test_pages_of_events_hold_a_page_of_the_log(http: TestClient, done: str, log: CountingLog) -> None:
    seen, cursor = 0, ""
    while cursor is not None:
        page = http.get(f"/studies/{done}/events?limit=3{cursor and '&cursor=' + cursor}").json()
        seen, cursor = seen + len(page["items"]), page["next_cursor"]
    assert seen == log.head() - 1  # the plan was opened before the study
    assert log.longest <= 3


def test_a_stream_of_events_holds_a_part_of_the_log(http: TestClient, done: str, log: CountingLog) -> None:
    headers = {"Accept": "text/event-stream"}
    text = http.get(f"/studies/{done}/events", headers=headers).text
    assert text.count('"position"') == log.head() - 1
    assert 0 < log.longest <= PART


def test_lists_and_numbers_read_no_log(http: TestClient, done: str, log: CountingLog) -> None:
    for path in ("/studies", "/slots", "/trainers", "http://test/metrics", "http://test/healthz"):
        assert http.get(path).status_code == 200
    assert log.longest == 0


def test_a_plan_is_folded_part_by_part(done: str, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    from app.events import plans

    monkeypatch.setattr(plans, "BATCH", PART)
    records = SqlRecords(workers.use.records.database)  # type: ignore[attr-defined]
    log = CountingLog(records.database)
    assert Plans(log).get(workers.stream(done)).version == log.head()
    assert log.longest <= PART + 1, "with the last one before it, which may be lost"


# --------------------------------------------------------------------------------------------------- what trials print


@pytest.fixture
def logs(app: FastAPI, tmp_path: Path) -> Path:
    """The folder of what trials print."""
    app.state.services = replace(app.state.services, logs=LogFolder(tmp_path / "logs"))
    return tmp_path / "logs"


def test_the_output_of_a_trial_is_served_unchanged(
    http: TestClient, tuned_study: str, logs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial_logs, "LOG_CHARACTERS", 5)
    (logs / tuned_study).mkdir(parents=True)
    (logs / tuned_study / "1.log").write_bytes("--- stage\nloss 0.2 \xe4\xf6\n\x1b[2J".encode() + b"\xff torn")
    answer = http.get(f"/studies/{tuned_study}/trials/1/log")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert answer.text == "--- stage\nloss 0.2 \xe4\xf6\n\x1b[2J\N{REPLACEMENT CHARACTER} torn"


@pytest.mark.parametrize("number", [0, 2, 99])
def test_deleted_logs_are_not_found(http: TestClient, tuned_study: str, logs: Path, number: int) -> None:
    (logs / tuned_study).mkdir(parents=True)
    (logs / tuned_study / "1.log").write_text("of another trial")
    answer = http.get(f"/studies/{tuned_study}/trials/{number}/log")
    assert answer.status_code == 404
    assert ("has no trial" if number > 1 else "nothing is kept of what trial 0") in answer.json()["detail"]


def test_a_server_without_a_folder_of_logs_says_so(
    http: TestClient, tuned_study: str, use: Services, app: FastAPI
) -> None:
    app.state.services = replace(use, logs=None)
    assert http.get(f"/studies/{tuned_study}/trials/0/log").status_code == 404


def test_a_long_log_is_read_in_parts(tmp_path: Path, workers: Workers, tuned_study: str) -> None:
    (tmp_path / tuned_study).mkdir()
    (tmp_path / tuned_study / "0.log").write_text("x" * (LOG_CHARACTERS * 2 + 1))
    use = replace(workers.use, logs=LogFolder(tmp_path))
    parts = [len(part) for part in queries.trial_log(use, use.find(tuned_study), 0)]
    assert parts == [LOG_CHARACTERS, LOG_CHARACTERS, 1]
