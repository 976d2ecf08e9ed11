"""A server that starts has the plans of the newest studies before anybody asks."""

from __future__ import annotations

import gc
import time

import pytest
from fastapi.testclient import TestClient

from app.api.application import warm
from app.events.database import DatabaseUnavailable
from app.events.records import SqlRecords
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


def test_it_leaves_a_database_that_is_away_to_those_who_ask(
    make_app: MakeApp, sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: SqlRecords) -> None:
        raise DatabaseUnavailable("The database cannot be used.")

    use = make_app(sqlite_url).state.services
    monkeypatch.setattr(SqlRecords, "read", away)
    warm(use)
    assert use.plans.names() == []


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
