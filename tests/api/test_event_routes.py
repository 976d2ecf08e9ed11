"""The events of a study: by the page, and as a stream that can be resumed, from a real server."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2
import pytest
from fastapi.testclient import TestClient

from app.api import streaming
from app.domain import events as e
from app.process.limits import EXIT_CODE
from tests.api.world import API, STUDY, Workers, study_file

STREAM = {"Accept": "text/event-stream"}
PATIENCE = 60.0


def post(url: str, path: str, body: Any = None) -> Any:
    """The answer of a real server."""
    return httpx2.post(f"{url}{API}{path}", json=body, timeout=PATIENCE).json()


def positions(page: dict[str, Any]) -> list[int]:
    return [item["position"] for item in page["items"]]


# -------------------------------------------------------------------------------------------------------------- pages


def test_the_events_of_a_life(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 1), {"accuracy": 0.5})
    page = http.get(f"/studies/{tuned_study}/events").json()
    assert [item["type"] for item in page["items"]] == [
        "StudySubmitted",
        "TrialAdded",
        "TrialAdded",
        "ChainAssigned",
        "StageCompleted",
        "Evaluated",
        "CheckpointKept",
        "ChainEnded",
    ]
    assert page["next_cursor"] is None
    first = page["items"][0]
    assert (first["position"], first["version"], first["data"]["study"]) == (1, 2, tuned_study)


def test_after_and_limit(http: TestClient, tuned_study: str) -> None:
    assert positions(http.get(f"/studies/{tuned_study}/events?after=2").json()) == [3]
    assert positions(http.get(f"/studies/{tuned_study}/events?after={2**63 - 1}").json()) == []
    page = http.get(f"/studies/{tuned_study}/events?after=0&limit=2").json()
    assert positions(page) == [1, 2]
    http.post(f"/studies/{tuned_study}:pause")
    page = http.get(f"/studies/{tuned_study}/events?limit=2&cursor={page['next_cursor']}").json()
    assert positions(page) == [3, 4]


def test_the_last_events_before_a_position_skip_those_of_other_studies(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    """Pages by the plan's positions showed nothing of an older study in a shared plan."""
    other = http.post("/studies", json=study_file(space={"lr": 5})).json()["study"]
    workers.tune(other)
    for _ in range(10):
        http.post(f"/studies/{other}:pause")
        http.post(f"/studies/{other}:resume")
    assert positions(http.get(f"/studies/{tuned_study}/events?before=1000&limit=2").json()) == [2, 3]
    assert positions(http.get(f"/studies/{tuned_study}/events?before=2&limit=2").json()) == [1]
    assert positions(http.get(f"/studies/{tuned_study}/events?before=1").json()) == []
    assert positions(http.get(f"/studies/{tuned_study}/events?before=1000&at=2").json()) == [1, 2]
    page = http.get(f"/studies/{other}/events?after=2&limit=5").json()
    rest = http.get(f"/studies/{other}/events?limit=100&cursor={page['next_cursor']}").json()
    whole = positions(http.get(f"/studies/{other}/events?after=2").json())
    assert len(page["items"]) == 5 and [*positions(page), *positions(rest)] == whole
    http.post(f"/studies/{tuned_study}:pause")
    page = http.get(f"/studies/{tuned_study}/events?after=2&limit=2").json()
    assert [item["type"] for item in page["items"]] == ["TrialAdded", "StudyPaused"]
    answer = http.get(f"/studies/{tuned_study}/events?before=3&after=1")
    assert answer.status_code == 422 and "together with after" in answer.text


@pytest.mark.slow
def test_positions_are_counted_in_each_study(http: TestClient, tuned_study: str, workers: Workers) -> None:
    """The submission is event 1, and events of other studies leave gaps."""
    for trainer in ("digits", "letters"):
        other = http.post("/studies", json=study_file(trainer=trainer, space={"lr": 5})).json()["study"]
        workers.tune(other)
        assert positions(http.get(f"/studies/{other}/events").json()) == [1, 2]
    http.post(f"/studies/{tuned_study}:pause")
    assert positions(http.get(f"/studies/{tuned_study}/events").json()) == [1, 2, 3, 6]
    found = http.post(f"/studies/{tuned_study}:replay?at=2").json()
    assert (found["identical"], found["decisions"]) == (True, 1)


def test_only_what_concerns_the_study(http: TestClient, tuned_study: str, workers: Workers) -> None:
    """Two studies on one plan whose trials have nothing in common, and one on another plan."""
    other = http.post("/studies", json=study_file(space={"lr": 5})).json()["study"]
    http.post("/studies", json=study_file(trainer="letters"))
    workers.tune(other)
    chain = workers.assign(other, 0)
    workers.finish(other, chain, {"accuracy": 0.5})
    mine = http.get(f"/studies/{tuned_study}/events").json()
    assert positions(mine) == [1, 2, 3]
    theirs = http.get(f"/studies/{other}/events").json()["items"]
    assert [item["type"] for item in theirs][:3] == ["StudySubmitted", "TrialAdded", "ChainAssigned"]
    rest = http.get(f"/studies/{other}/events?after=3").json()["items"]
    assert [item["type"] for item in rest] == ["StageCompleted", "Evaluated", "CheckpointKept", "ChainEnded"]
    assert positions(http.get(f"/studies/{tuned_study}/events?after=3").json()) == []


def test_what_another_study_trained_for_it_concerns_a_study_too(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    """Only from its own submission on: steps that were trained before are not its events."""
    early, late = (study_file(space={"lr": 0.1, "bs": 64}, name=name) for name in ("early", "late"))
    early = http.post("/studies", json=early).json()["study"]
    workers.tune(early)
    workers.finish(tuned_study, workers.assign(tuned_study, 1), {"accuracy": 0.5})
    late = http.post("/studies", json=late).json()["study"]
    workers.tune(late)
    for study, count in ((early, 1), (late, 0)):
        types = [item["type"] for item in http.get(f"/studies/{study}/events").json()["items"]]
        assert types.count("Evaluated") == count
        assert types.count("StudySubmitted") == 1
    assert http.get(f"/studies/{late}/trials").json()["items"][0]["value"] == 0.5


def test_a_page_can_be_empty_and_not_the_last(http: TestClient, study: str, workers: Workers) -> None:
    other = http.post("/studies", json=study_file(space={"lr": 5})).json()["study"]
    workers.tune(other)
    http.post(f"/studies/{study}:pause")
    items, cursor, sizes = [], {}, []
    while cursor is not None:
        page = http.get(f"/studies/{study}/events", params={"limit": 1, **cursor}).json()
        items += positions(page)
        sizes.append(len(page["items"]))
        cursor = page["next_cursor"] and {"cursor": page["next_cursor"]}
    assert items == [1, 4]
    assert 0 in sizes


# ------------------------------------------------------------------------------------------------------------ streams


@contextmanager
def stream_events(url: str, study: str, headers: dict[str, str] | None = None) -> Iterator[Iterator[Any]]:
    with (
        httpx2.Client(timeout=PATIENCE) as client,
        client.stream("GET", f"{url}{API}/studies/{study}/events", headers=STREAM | (headers or {})) as response,
    ):
        assert response.headers["content-type"].startswith("text/event-stream")
        assert response.headers["X-Accel-Buffering"] == "no"
        yield iter(httpx2.EventSource(response))


@pytest.fixture
def submitted_study(server: str) -> str:
    return post(server, "/studies", STUDY)["study"]


def test_a_stream_gives_what_is_there_and_then_what_happens(
    server: str, submitted_study: str, workers: Workers
) -> None:
    with stream_events(server, submitted_study) as stream:
        assert next(stream).id == "1"
        workers.tune(submitted_study)
        added = next(stream)
        assert (added.event, added.id) == ("message", "2")
        assert added.json()["type"] == "TrialAdded"


def test_a_stream_ends_when_the_study_is_over_and_all_was_sent(
    server: str, submitted_study: str, workers: Workers
) -> None:
    with stream_events(server, submitted_study) as stream:
        post(server, f"/studies/{submitted_study}:cancel")
        found = list(stream)
    assert [event.event for event in found] == ["message"] * 2 + ["end"]
    assert found[-2].json()["type"] == "StudyCancelled"
    assert found[-1].json() == {"state": "cancelled"}
    again, path = STREAM | {"Last-Event-ID": found[-2].id}, f"/studies/{submitted_study}/events"
    answer = httpx2.get(f"{server}{API}{path}", headers=again, timeout=PATIENCE)
    assert answer.status_code == 204


def test_a_stream_is_resumed_after_the_last_event_received(server: str, submitted_study: str, workers: Workers) -> None:
    workers.tune(submitted_study)
    with stream_events(server, submitted_study) as stream:
        last = [next(stream) for _ in range(2)][-1]
    post(server, f"/studies/{submitted_study}:cancel")
    with stream_events(server, submitted_study, {"Last-Event-ID": last.id}) as stream:
        assert [event.id for event in stream][:2] == ["3", "4"]


def test_a_silent_stream_sends_keep_alives(server: str, submitted_study: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(streaming, "HEARTBEAT_SECONDS", 0.1)
    with (
        httpx2.Client(timeout=PATIENCE) as client,
        client.stream("GET", f"{server}{API}/studies/{submitted_study}/events?after=1", headers=STREAM) as response,
    ):
        lines = response.iter_lines()
        assert [next(lines) for _ in range(5)] == ["retry: 2000", ": ping", "", ": ping", ""]


def test_many_events_come_in_batches(
    server: str, submitted_study: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streaming, "BATCH", 2)
    workers.tune(submitted_study)
    workers.finish(submitted_study, workers.assign(submitted_study, 0), {"accuracy": 0.5})
    post(server, f"/studies/{submitted_study}:cancel")
    with stream_events(server, submitted_study) as stream:
        ids = [event.id for event in stream if event.event == "message"]
    assert ids == [str(n) for n in range(1, workers.use.log.head())]


def test_events_of_a_chain_assigned_before_the_stream_began(
    server: str, submitted_study: str, workers: Workers
) -> None:
    workers.tune(submitted_study)
    chain = workers.assign(submitted_study, 0)
    with stream_events(server, submitted_study, {"Last-Event-ID": str(workers.use.log.head() - 1)}) as stream:
        workers.record(submitted_study, e.StageCompleted(chain=chain, index=0, seconds=1.0))
        assert next(stream).json()["type"] == "StageCompleted"


@contextmanager
def running(database: str, trainers: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The URL of a server that is a process, ended by the signal that an init system sends."""
    settings = {"STAGETREE_DATABASE_URL": database, "STAGETREE_TRAINERS": trainers, "PYTHONPATH": ":".join(sys.path)}
    settings["STAGETREE_BROKER_URL"] = "memory://"
    command = [sys.executable, "-m", "uvicorn", "--factory", "app.main:create_app", "--port", "0"]
    server = subprocess.Popen(command, env=settings, stderr=subprocess.PIPE, text=True)
    assert server.stderr is not None
    lines = iter(server.stderr.readline, "")
    url = next(line for line in lines if "running on" in line).split("running on ")[1].split()[0]
    threading.Thread(target=lambda: list(lines), daemon=True).start()
    try:
        yield url, server
    finally:
        server.terminate()
        server.wait(timeout=PATIENCE)


@pytest.mark.slow
def test_an_open_stream_does_not_keep_the_server_from_stopping(sqlite_url: str, trainers: str) -> None:
    with running(sqlite_url, trainers) as (url, server):
        study = post(url, "/studies", STUDY)["study"]
        with stream_events(url, study) as stream:
            next(stream)
            server.send_signal(signal.SIGTERM)
            assert list(stream) == []
            assert server.wait(timeout=PATIENCE) != EXIT_CODE, "it was ended, since it did not come to an end"


@pytest.mark.slow
def test_a_stream_continues_after_a_restart_of_the_server(sqlite_url: str, trainers: str) -> None:
    """What happened last before, and what happens after, comes once each."""
    with running(sqlite_url, trainers) as (url, _):
        study = post(url, "/studies", STUDY)["study"]
        post(url, f"/studies/{study}/notes", {"text": "before"})
        with stream_events(url, study) as stream:
            heard = [next(stream)]
    last = {"Last-Event-ID": heard[-1].id}
    with running(sqlite_url, trainers) as (url, _), stream_events(url, study, last) as stream:
        heard.append(next(stream))
        post(url, f"/studies/{study}/notes", {"text": "after"})
        heard.append(next(stream))
    assert [event.id for event in heard] == ["1", "2", "3"]
    assert [event.json()["data"].get("text") for event in heard[1:]] == ["before", "after"]
