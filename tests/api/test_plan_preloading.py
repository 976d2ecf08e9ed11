"""A starting server folds the plans of the newest studies before the first request."""

from __future__ import annotations

import gc
import time
from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.api.application import warm
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.main import create_app
from app.outages import DatabaseUnavailable
from app.settings import Settings
from tests.api.world import STUDY, MakeApp


def test_the_newest_studies_are_in_memory_soon(make_app: MakeApp, sqlite_url: str) -> None:
    with TestClient(make_app(sqlite_url), base_url="http://test/api/v1") as http:
        study = http.post("/studies", json=STUDY).json()["study"]
    app = make_app(sqlite_url)
    use = app.state.services
    with TestClient(app, base_url="http://test"):
        until = time.monotonic() + 60
        while use.plans.names() != [use.find(study).stream] and time.monotonic() < until:
            time.sleep(0.01)
        assert use.plans.names() == [use.find(study).stream]


def test_older_plans_do_not_replace_the_newest_ones(
    make_app: MakeApp, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ten large ones were folded one after the other, and the newest was the first to go."""
    with TestClient(make_app(sqlite_url), base_url="http://test/api/v1") as http:
        studies = [http.post("/studies", json=STUDY | {"seed": seed}).json()["study"] for seed in range(3)]
    use = make_app(sqlite_url).state.services
    monkeypatch.setattr("app.api.application.MAX_IDLE_EVENTS", 1)
    warm(use)
    assert use.plans.names() == [use.find(studies[-1]).stream]


@pytest.mark.parametrize("times", [1, 3])
def test_a_database_outage_is_waited_for_and_reported_once(
    make_app: MakeApp, sqlite_url: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, times: int
) -> None:
    with TestClient(make_app(sqlite_url), base_url="http://test/api/v1") as http:
        study = http.post("/studies", json=STUDY).json()["study"]
    use, read, left = make_app(sqlite_url).state.services, SqlRecords.read, [DatabaseUnavailable("It is away.")] * times

    def away(records: SqlRecords) -> Any:
        if left:
            raise left.pop()
        return read(records)

    monkeypatch.setattr(SqlRecords, "read", away)
    monkeypatch.setattr("app.api.application.AGAIN_SECONDS", 0.0)
    warm(use)
    assert caplog.text.count("the API waits: It is away.") == 1
    assert use.plans.names() == [use.find(study).stream]


def test_a_server_that_must_end_waits_no_longer(
    make_app: MakeApp, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use = make_app(sqlite_url).state.services

    def away(_: SqlRecords) -> None:
        use.stopping.set()
        raise DatabaseUnavailable("It is away.")

    monkeypatch.setattr(SqlRecords, "read", away)
    warm(use)


def test_an_api_started_before_the_migrations_waits_and_reports_it(
    empty_url: str, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a cluster that comes up as a whole. The API is alive meanwhile, so no supervisor restarts it."""
    monkeypatch.setattr("app.api.application.AGAIN_SECONDS", 0.05)
    app = create_app(Settings(database_url=empty_url))
    with TestClient(app, base_url="http://localhost", client=("127.0.0.1", 1)) as http:
        assert http.get("/healthz").status_code == 200
        answer = http.get("/api/v1/studies")
        assert answer.status_code == 503
        assert "waits for its migrations, `alembic upgrade head`: " in answer.json()["detail"]
        assert http.get("/readyz").json()["checks"]["schema"].startswith("the database's schema is at nothing")
        database = Database(empty_url)
        database.create()
        database.dispose()
        assert http.get("/api/v1/studies").json()["items"] == []
    assert caplog.text.count("the API waits: The database") == 1


def test_what_comes_of_a_long_log_is_set_aside_for_the_collector(
    make_app: MakeApp, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It went through all of it three times right after a start, for half a second, while a page was waiting."""
    app = make_app(sqlite_url)
    with TestClient(app, base_url="http://test/api/v1") as http:
        http.post("/studies", json=STUDY)
    for length, is_set_aside in ((10_000, False), (0, True)):
        gc.unfreeze()
        monkeypatch.setattr("app.api.application.LONG", length)
        warm(make_app(sqlite_url).state.services)
        assert (gc.get_freeze_count() > 1_000) is is_set_aside
    gc.unfreeze()
