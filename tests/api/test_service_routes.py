"""The service itself: slots, health, readiness, numbers."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.api import health
from app.api.services import Services
from app.events.database import Database
from app.main import create_app
from app.registry import TrainerFileError
from app.settings import Settings
from tests.api.world import MakeApp, Workers, changed


def test_slots(http: TestClient, tuned: str, workers: Workers, use: Services) -> None:
    assert http.get("/slots").json() == {"items": [], "next_cursor": None}
    chain = workers.assign(tuned, 1, "gpu1")
    workers.beat(chain, 0, 9)
    with use.records.write() as rows:
        rows.slots.take("gpu0", "worker", instead_of=None, device="cuda:0", host="there", pid=2)
    idle, busy = http.get("/slots").json()["items"]
    assert idle.pop("seen_at") > 1e9
    assert idle == {
        "name": "gpu0",
        "device": "cuda:0",
        "host": "there",
        "state": "idle",
        "chain": None,
        "stage": None,
        "study": None,
    }
    assert (busy["name"], busy["state"], busy["chain"], busy["study"]) == ("gpu1", "busy", chain, tuned)
    node = workers.plan(tuned).studies[tuned].trials[1].path[0]
    assert busy["stage"] == {"node": node, "start": 0, "end": 40, "step": 9}
    workers.beat(chain, 1, 40)
    assert http.get("/slots").json()["items"][1]["stage"] is None


def test_it_is_alive_without_a_database(make_app: MakeApp) -> None:
    with TestClient(make_app("sqlite:////nowhere/log.db")) as http:
        assert http.get("/healthz").json() == {"status": "ok"}


def test_it_is_ready(http: TestClient) -> None:
    answer = http.get("http://test/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "checks": {"database": "ok", "schema": "ok", "broker": "ok"}}


def test_it_is_not_ready_on_an_empty_database(make_app: MakeApp, empty_url: str) -> None:
    with TestClient(make_app(empty_url)) as http:
        answer = http.get("/readyz")
        assert answer.status_code == 503
        assert answer.headers["content-type"] == "application/problem+json"
        problem = answer.json()
        assert problem["detail"] == "Not ready: database, schema."
        assert problem["checks"]["schema"].startswith("the database's schema is at nothing, and must be at ")
        assert problem["checks"]["broker"] == "ok"
    Database(empty_url).create()
    with TestClient(make_app(empty_url)) as http:
        assert http.get("/readyz").status_code == 200


def test_it_is_not_ready_without_its_broker(sqlite_url: str) -> None:
    app = create_app(Settings(database_url=sqlite_url, broker_url="redis://127.0.0.1:1/0", hosts="testserver"))
    with TestClient(app) as http:
        problem = http.get("/readyz").json()
    assert problem["detail"] == "Not ready: broker."
    why = problem["checks"]["broker"]  # the client tries again for about as long as it is given
    assert any(word in why for word in ("refused", "did not answer", "Timeout"))


def test_what_does_not_answer_is_not_waited_for(
    http: TestClient, app: FastAPI, use: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 0.1)
    app.state.services = replace(use, checks={"broker": lambda: time.sleep(0.5)})
    asked = time.monotonic()
    answer = http.get("http://test/readyz")
    assert time.monotonic() - asked < 0.4
    assert answer.json()["checks"] == {"broker": "did not answer within 0.1 s"}


def test_numbers(http: TestClient, tuned: str, workers: Workers) -> None:
    workers.finish(tuned, workers.assign(tuned, 0), {"accuracy": 0.5})
    workers.assign(tuned, 1)
    other = http.post("/studies", json=changed(seed=1)).json()["study"]
    http.post(f"/studies/{other}:pause")
    answer = http.get("http://test/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    for line in (
        'stagetree_studies{state="running"} 1',
        'stagetree_studies{state="paused"} 1',
        'stagetree_studies{state="failed"} 0',
        'stagetree_slots{state="busy"} 1',
        'stagetree_slots{state="idle"} 0',
        'stagetree_steps{kind="requested"} 80',
        'stagetree_steps{kind="unique"} 60',
        'stagetree_steps{kind="executed"} 40',
        f"stagetree_log_head {workers.use.log.head()}",
        "# TYPE stagetree_log_head gauge",
    ):
        assert line in lines


def test_a_trainer_file_that_cannot_be_used_keeps_the_server_from_starting(sqlite_url: str) -> None:
    with pytest.raises(TrainerFileError, match=r"nowhere\.py"):
        create_app(Settings(database_url=sqlite_url, trainers="nowhere.py"))
