"""A server that has read events which the log has lost says so once, and then answers by the log that is there."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from lost_events import lose_appends

from app.events import DatabaseUnavailable, LostCommits
from app.main import create_app
from app.service.services import Services
from app.settings import Settings
from tests.api.world import API, STUDY
from tests.promql import Prometheus


@pytest.fixture
def http(sqlite_url: str, trainers: str) -> TestClient:
    """Without replaced services, so that all their memory is the server's."""
    settings = Settings(database_url=sqlite_url, trainers=trainers, broker_url="memory://", hosts="test")
    return TestClient(create_app(settings), base_url=f"http://test{API}")


def test_a_server_forgets_what_the_log_has_lost(http: TestClient) -> None:
    study = http.post("/studies", json=STUDY).json()["study"]
    log = http.app.state.services.log  # type: ignore[attr-defined]
    head = log.head()
    with lose_appends(log):
        assert http.post(f"/studies/{study}:pause").json()["state"] == "paused"
        assert http.get(f"/studies/{study}/events").json()["items"][-1]["type"] == "StudyPaused"
    answer = http.get(f"/studies/{study}")
    assert answer.status_code == 503 and answer.headers["retry-after"]
    assert answer.json()["detail"].startswith(f"the database has lost its last commits: event {head + 1} of plan ")
    assert http.get(f"/studies/{study}").json()["state"] == "running"
    assert [each["type"] for each in http.get(f"/studies/{study}/events").json()["items"]] == ["StudySubmitted"]
    assert "stagetree_lost_commits 1" in http.get("http://test/metrics").text.splitlines()


def test_readiness_finds_a_loss_that_no_request_has_met(http: TestClient) -> None:
    study = http.post("/studies", json=STUDY).json()["study"]
    log = http.app.state.services.log  # type: ignore[attr-defined]
    with lose_appends(log):
        http.post(f"/studies/{study}:pause")
    assert "the database has lost its last commits" in http.get("http://test/readyz").json()["checks"]["database"]


def test_a_feed_ends_where_the_log_has_lost_events(http: TestClient) -> None:
    """Its client requests the feed again, and gets the events that are left."""
    study = http.post("/studies", json=STUDY).json()["study"]
    use: Services = http.app.state.services  # type: ignore[attr-defined]
    feed = use.feed(use.find(study), 0)
    with lose_appends(use.log):
        http.post(f"/studies/{study}:pause")
        assert len(feed.read(10)) == 2
    with pytest.raises(LostCommits):
        feed.read(10)
    with pytest.raises(DatabaseUnavailable, match="since this feed began"):
        feed.read(10)
    assert len(use.feed(use.find(study), 0).read(10)) == 1


def test_a_loss_raises_an_alert(http: TestClient) -> None:
    study = http.post("/studies", json=STUDY).json()["study"]
    prometheus = Prometheus({"api": lambda: http.get("http://test/metrics").text})
    assert "StagetreeLostCommits" not in prometheus.watch(5)
    with lose_appends(http.app.state.services.log):  # type: ignore[attr-defined]
        http.post(f"/studies/{study}:pause")
    assert http.get(f"/studies/{study}").status_code == 503
    assert "StagetreeLostCommits" in prometheus.watch(5)
    prometheus.watch(60)
    assert "StagetreeLostCommits" not in prometheus.watch(5)
