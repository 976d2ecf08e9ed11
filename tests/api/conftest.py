"""The real application on a real database."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.testclient import TestClient

from app.api import errors
from app.main import create_app
from app.service import files, health
from app.service.services import Services
from app.settings import Settings
from tests.api.world import API, STUDY, MakeApp, Workers, serving

TRAINERS = """
from stagetree import Trainer

class Digits(Trainer):
    name = "digits"
    version = "1"

    def average(self, states):
        return next(iter(states))[0]

class Letters(Trainer):
    name = "letters"
    version = "1"
"""

INDEX = """<head><link rel="stylesheet" href="./assets/index-1.css">
<script type="module" crossorigin src="./assets/index-1.js"></script></head><body></body>"""


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Health checks wait for their answers on a busy machine, too."""
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 60.0)


@pytest.fixture(autouse=True, scope="session")
def one_document() -> Iterator[None]:
    """All applications here have the same routes, and describing them takes half a second."""
    described: list[Any] = []

    def describe(**given: Any) -> Any:
        if not described:
            described.append(get_openapi(**given))
        return deepcopy(described[0])

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(errors, "get_openapi", describe)
        yield


@pytest.fixture
def trainers(tmp_path: Path) -> str:
    path = tmp_path / "trainers.py"
    path.write_text(TRAINERS)
    return str(path)


@pytest.fixture
def wake_ups() -> list[str]:
    """One entry for each message that woke the scheduler."""
    return []


@pytest.fixture
def make_app(trainers: str, wake_ups: list[str]) -> MakeApp:
    def make(url: str) -> FastAPI:
        app = create_app(
            Settings(database_url=url, trainers=trainers, broker_url="memory://", hosts="test,testserver,x")
        )
        app.state.services = replace(app.state.services, wake_scheduler=lambda: wake_ups.append("wake"))
        return app

    return make


@pytest.fixture
def app(make_app: MakeApp, sqlite_url: str) -> FastAPI:
    return make_app(sqlite_url)


@pytest.fixture
def http(app: FastAPI) -> Iterator[TestClient]:
    with TestClient(app, base_url=f"http://test{API}") as client:
        yield client


@pytest.fixture
def use(app: FastAPI) -> Services:
    services: Services = app.state.services
    return services


@pytest.fixture
def workers(use: Services) -> Workers:
    return Workers(use)


@pytest.fixture
def study(http: TestClient) -> str:
    """A study that was just submitted."""
    answer = http.post("/studies", json=STUDY)
    assert answer.status_code == 201, answer.text
    found: str = answer.json()["study"]
    return found


@pytest.fixture
def tuned_study(study: str, workers: Workers) -> str:
    """A study with its two trials, none of which has begun."""
    workers.tune(study)
    return study


@pytest.fixture
def page_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that stands for the built page."""
    monkeypatch.setattr(files, "BUILT", tmp_path)
    return tmp_path


@pytest.fixture
def built_page(page_folder: Path) -> None:
    """A page in that folder, whether the real one was built or not."""
    (page_folder / "assets").mkdir()
    (page_folder / "index.html").write_text(INDEX)
    (page_folder / "assets" / "index-1.js").write_text("/* </script> */")
    (page_folder / "assets" / "index-1.css").write_text("p {}")


@pytest.fixture
def server(app: FastAPI) -> Iterator[str]:
    with serving(app) as url:
        yield url
