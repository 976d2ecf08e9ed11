"""Budgets of tokens over the API: they bound the time of all studies of the token, also of two at the same time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.domain.terms import Principal, Scope
from app.service import allowances
from app.service.access import create
from app.service.services import Services
from tests.api.agent import call
from tests.api.world import API, STUDY, Workers, study_file

Json = dict[str, Any]


@pytest.fixture
def agent(app: FastAPI, use: Services) -> Iterator[TestClient]:
    """A caller elsewhere with 100 s of slots."""
    token = create(use.records, "ci", Scope.SUBMIT, "", 1, use.clock(), max_slot_seconds=100)
    with TestClient(app, base_url=f"http://test{API}", client=("192.0.2.7", 1)) as http:
        http.headers["Authorization"] = f"Bearer {token}"
        yield http


def submit(http: TestClient, seed: int = 0, **fields: Any) -> Json:
    """A study on a plan of its own, by its seed."""
    answer = http.post("/studies", json=study_file(seed=seed, **fields))
    assert answer.status_code in (201, 409, 422), answer.text
    return dict(answer.json())


def test_a_study_gets_the_rest_of_the_budget_of_its_token(agent: TestClient) -> None:
    assert submit(agent, max_slot_seconds=30)["budget_left"] == {"max_slot_seconds": 30}
    assert agent.get("/session").json()["slot_seconds_left"] == 70
    refused = submit(agent, 1, max_slot_seconds=71)
    assert refused["detail"] == (
        "max_slot_seconds: must be at most the 70 s that token ci has left of its 100 s, got 71"
    )
    assert submit(agent, 1)["budget_left"] == {"max_slot_seconds": 70}
    assert "all 100 s of its slot time" in submit(agent, 2)["detail"]


def test_used_time_is_spent_and_the_rest_comes_back(agent: TestClient, workers: Workers) -> None:
    study = submit(agent)["study"]
    workers.tune(study)
    workers.finish(study, workers.assign(study, 0), {"accuracy": 0.5})
    assert agent.post(f"/studies/{study}:cancel").status_code == 200
    assert agent.get("/session").json()["slot_seconds_left"] == 97  # two stages of 1.5 s
    assert agent.delete(f"/studies/{study}").status_code == 409, "its use must stay on record"


def test_another_study_is_no_way_around_the_budget(agent: TestClient, http: TestClient, use: Services) -> None:
    study = submit(http)["study"]
    token = create(use.records, "operator", Scope.OPERATE, "", 1, use.clock(), max_slot_seconds=100)
    trial = {"hp": {"lr": 0.1, "bs": 64}, "steps": 40}
    refused = agent.post(f"/studies/{study}/trials", json=trial, headers={"Authorization": f"Bearer {token}"})
    assert refused.status_code == 409 and "belongs to no token: token operator has a budget" in refused.json()["detail"]


def test_two_studies_at_the_same_time_do_not_spend_the_same_rest(
    agent: TestClient, use: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between a look at the rest and its write another study comes, on another plan."""
    read, raced = allowances.allowance_of, list[Json]()

    def overtaken(services: Services, who: Principal) -> Any:
        allowance = read(services, who)
        if not raced:
            raced.append({})
            with ThreadPoolExecutor(1) as another:
                raced[0] = another.submit(submit, agent, 1, max_slot_seconds=80).result()
        return allowance

    monkeypatch.setattr(allowances, "allowance_of", overtaken)
    late = submit(agent, 2, max_slot_seconds=80)
    assert raced[0]["budget_left"] == {"max_slot_seconds": 80}
    assert "must be at most the 20 s that token ci has left" in late["detail"]


def test_a_token_without_a_budget_is_not_limited(http: TestClient) -> None:
    assert submit(http).get("budget_left", {}) == {}
    assert "slot_seconds_left" not in http.get("/session").json()


def test_an_admin_makes_a_token_with_a_budget(http: TestClient) -> None:
    assert http.post("/tokens", json={"name": "bot", "max_slot_seconds": 3600}).status_code == 201
    assert http.get("/tokens").json()["items"][0]["max_slot_seconds"] == 3600
    assert "writes" not in http.get("/tokens").json()["items"][0]
    assert http.post("/tokens", json={"name": "bot2", "max_slot_seconds": 0}).status_code == 422


def test_an_agent_sees_the_rest_of_its_token(server: str, use: Services, make_token: Callable[..., str]) -> None:
    token = make_token()
    assert call(server, "preview", token, spec=STUDY)["token_left"] == "100 s of slot time"
    call(server, "submit", token, spec=study_file(max_slot_seconds=40))
    assert call(server, "status", token)["budget_left"] == "40 of max_slot_seconds; token ci: 60 s of slot time"


@pytest.fixture
def make_token(use: Services) -> Callable[..., str]:
    return lambda: create(use.records, "ci", Scope.SUBMIT, "", 1, use.clock(), max_slot_seconds=100)
