"""The metrics for Prometheus: their values, their scopes, and an outage of the database."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from kombu.exceptions import OperationalError

from app.api import metrics
from app.api.access import AccessPolicy
from app.events import DatabaseUnavailable
from app.main import create_app
from app.service import health
from app.service.services import Services
from app.settings import Settings
from tests.api.world import API, Workers
from tests.promql import NAME, Prometheus, parse_text

NUMBERS = "http://test/metrics"
OPERATIONS = (Path(__file__).parents[2] / "docs" / "operations.md").read_text()
GAUGES = {"memory": 5, "trainer_memory": 7, "outbox": 0, "outbox_seconds": 99.0, "saver": 2, "saver_seconds": 3.0}


def numbers(http: TestClient, **headers: str) -> dict[str, float]:
    """The samples as the text has them; it is well-formed."""
    answer = http.get(NUMBERS, headers=headers)
    assert answer.status_code == 200, answer.text
    assert parse_text(answer.text)
    samples = [line.rpartition(" ") for line in answer.text.splitlines() if not line.startswith("#")]
    return {name: float(value) for name, _, value in samples}


def beat(use: Services, **gauges: float) -> None:
    with use.records.write() as rows:
        if rows.slots.get("gpu0") is None:
            rows.slots.take("gpu0", "worker", instead_of=None, device="cpu", host="here", pid=1)
        rows.slots.touch("gpu0", "worker", {**GAUGES, **gauges})


def test_every_metric_is_in_the_guide(http: TestClient, use: Services) -> None:
    beat(use, step_age=1.0)
    http.get("/slots")
    with use.records.write() as rows:
        rows.schedulers.record_tick("me", "here", 1, {"busy": 0, "more": 0, "idle": []}, memory_bytes=1)
    names = {dict(labels)[NAME] for labels in parse_text(http.get(NUMBERS).text)}
    families = {re.sub("_(bucket|sum|count)$", "", name) for name in names}
    assert len(families) > 17
    assert [name for name in families if f"`{name}`" not in OPERATIONS and f"`{name}{{" not in OPERATIONS] == []


def test_measured_values_of_a_slot(http: TestClient, use: Services) -> None:
    beat(use, step_age=100.0)
    told = numbers(http)
    assert told['stagetree_slot_memory_bytes{slot="gpu0"}'] == 5
    assert told['stagetree_trainer_memory_bytes{slot="gpu0"}'] == 7
    assert 100 <= told['stagetree_slot_step_age_seconds{slot="gpu0"}'] < 160
    assert told['stagetree_slot_backlog{slot="gpu0",queue="saver"}'] == 2
    assert 3 <= told['stagetree_slot_backlog_seconds{slot="gpu0",queue="saver"}'] < 60
    assert told['stagetree_slot_backlog_seconds{slot="gpu0",queue="outbox"}'] == 0, "nothing waits there"


def test_a_slot_that_is_not_heard_of_tells_nothing(http: TestClient, use: Services, app: FastAPI) -> None:
    beat(use, step_age=100.0)
    app.state.services = replace(use, lease_seconds=0.0)
    assert not [name for name in numbers(http) if name.startswith("stagetree_slot_")]


def test_failures_are_counted_from_the_first_look_on(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.fail(tuned_study, workers.assign(tuned_study, 0), "before")
    assert {numbers(http)[f'stagetree_failures_total{{kind="{kind}"}}'] for kind in ("exception", "lost")} == {0}
    workers.fail(tuned_study, workers.assign(tuned_study, 1), "after")
    for _ in range(2):
        assert numbers(http)['stagetree_failures_total{kind="exception"}'] == 1


def test_requests_are_counted_by_route_and_time(http: TestClient, study: str) -> None:
    for _ in range(3):
        http.get(f"/studies/{study}")
    http.get("/nothing")
    told = numbers(http)
    assert told['stagetree_request_seconds_count{route="get_study"}'] == 3
    assert told['stagetree_request_seconds_bucket{route="get_study",le="+Inf"}'] == 3
    assert told['stagetree_request_seconds_bucket{route="get_study",le="30"}'] == 3
    assert told['stagetree_request_seconds_sum{route="get_study"}'] > 0
    assert told['stagetree_request_seconds_count{route="none"}'] == 1


def test_an_undelivered_message_is_counted_after_some_seconds(
    http: TestClient, tuned_study: str, workers: Workers, use: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    chain = workers.assign(tuned_study, 0)
    with use.records.write() as rows:
        row = rows.chains.get(chain)
        rows.slots.take("gpu1", "worker", instead_of=None, device="cpu", host="here", pid=1)
        rows.chains.assign("another", row.stream, "gpu1", row.assignment, 60.0)  # type: ignore[union-attr]
    assert numbers(http)["stagetree_undelivered_messages"] == 0
    monkeypatch.setattr(metrics, "UNDELIVERED_SECONDS", 0.0)
    assert numbers(http)["stagetree_undelivered_messages"] == 1, "the other one is at work"


def test_dropped_messages_are_counted_where_the_broker_answers(app: FastAPI, http: TestClient) -> None:
    assert "stagetree_dropped_messages" not in numbers(http), "the broker keeps no count"
    app.state.services = replace(app.state.services, dropped_messages=lambda: 7)
    assert numbers(http)["stagetree_dropped_messages"] == 7

    def refuse() -> int:
        raise OperationalError("connection refused")

    app.state.services = replace(app.state.services, dropped_messages=refuse)
    assert "stagetree_dropped_messages" not in numbers(http)


def test_an_installation_without_any_scheduler_on_record_raises_the_alert(http: TestClient) -> None:
    """The age of the last tick is unknown there."""
    prometheus = Prometheus({"api": lambda: http.get(NUMBERS).text})
    assert prometheus.watch(5).keys() == {"StagetreeSchedulerSilent"}


# ------------------------------------------------------------------------------------------ while the database is away


@pytest.fixture
def silent() -> Iterator[int]:
    """The port of a server that takes connections and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def away(port: int) -> FastAPI:
    url = f"postgresql://unknown@127.0.0.1:{port}/x"
    return create_app(Settings(database_url=url, broker_url="memory://", hosts="test", access="always"))


@pytest.mark.parametrize("kind", ["refused", "silent"])
def test_in_an_outage_any_token_is_told_of_readiness_and_of_nothing_else(
    kind: str, silent: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 0.3)
    with TestClient(away(1 if kind == "refused" else silent), base_url=f"http://test{API}") as http:
        told = numbers(http, Authorization="Bearer anything")
        assert {name.partition("{")[0] for name in told} == {"stagetree_ready"}
        assert told['stagetree_ready{check="database"}'] == told['stagetree_ready{check="schema"}'] == 0
        assert http.get(NUMBERS).status_code == 401
        if kind == "refused":
            assert http.get("/studies", headers={"Authorization": "Bearer anything"}).status_code == 503


def test_a_token_that_is_none_is_refused_while_the_database_answers(app: FastAPI, use: Services) -> None:
    for each in app.user_middleware:
        if "policy" in each.kwargs:
            each.kwargs["policy"] = AccessPolicy("always")
    with TestClient(app, base_url=f"http://test{API}") as http:
        assert http.get(NUMBERS, headers={"Authorization": "Bearer anything"}).status_code == 401


def test_who_needs_no_token_is_told_of_the_server_itself_in_an_outage(make_app: object) -> None:
    app = make_app("sqlite:////nowhere/log.db")  # type: ignore[operator]
    with TestClient(app, base_url=f"http://test{API}") as http:
        told = numbers(http)
    assert told['stagetree_ready{check="database"}'] == 0 and told["stagetree_api_memory_bytes"] > 2**20
    assert not [name for name in told if name.startswith("stagetree_studies")]


def test_a_database_that_goes_after_it_was_asked(app: FastAPI, use: Services, http: TestClient) -> None:
    assert "stagetree_held_up" in numbers(http)

    def raise_unavailable() -> None:
        raise DatabaseUnavailable("The database is away.")

    app.state.services = replace(
        use, records=type("Gone", (), {"read": staticmethod(raise_unavailable), "log": use.log})()
    )
    assert "stagetree_held_up" not in numbers(http)
