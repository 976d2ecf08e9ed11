"""The tools for agents at `/mcp`: with the tokens, scopes and projects of the API, and of no other caller."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from mcp import Client as Agent
from mcp.client.streamable_http import streamable_http_client

from app.agents import status
from app.agents.serving import TOOLS
from app.api.routes import agent_tools
from app.domain.terms import Scope
from app.service.access import create
from app.service.services import Services
from tests.api.agent import Json, Refusal, read
from tests.api.world import STUDY, Workers

BRANCH: Json = {"trial": 0, "at": 20, "steps": 50, "hp": {"lr": 0.02}}
ENQUEUE: Json = {"hp": {"lr": 0.1, "bs": 64}, "steps": 45}
CALLS: dict[str, Json] = {
    "preview": {"spec": STUDY},
    "submit": {"spec": STUDY},
    "status": {},
    "wait": {},
    "trial": {"trial": 0},
    "compare": {"trial": 0, "other": 1},
    "branch": BRANCH,
    "enqueue": ENQUEUE,
    "stop": {"trial": 0},
    "note": {"text": "seen"},
    "replay": {},
}
Make = Callable[..., "Caller"]


class Caller:
    """An agent elsewhere, with a token of a scope in a project."""

    def __init__(self, url: str, token: str) -> None:
        self._url, self._token = url, token

    def __call__(self, name: str, mode: str = "auto", **arguments: Any) -> Json:
        """The answer of a tool. mode: the protocol's version, `legacy` for programs from before July 2026."""

        async def calling() -> Any:
            headers = {"Authorization": f"Bearer {self._token}"}
            async with (
                httpx2.AsyncClient(headers=headers, timeout=60) as http,
                Agent(streamable_http_client(f"{self._url}/mcp", http_client=http), mode=mode) as agent,
            ):
                assert [tool.name for tool in (await agent.list_tools()).tools] == list(TOOLS)
                return await agent.call_tool(name, arguments)

        return read(asyncio.run(calling()))


@pytest.fixture
def app(make_app: Callable[[str], FastAPI], sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> FastAPI:
    """An API that asks every caller for a token."""
    monkeypatch.setenv("STAGETREE_ACCESS", "always")
    return make_app(sqlite_url)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(status, "WAIT_SECONDS", 0.1)


@pytest.fixture
def make(server: str, use: Services) -> Make:
    def caller(name: str, scope: Scope = Scope.SUBMIT, project: str | None = "") -> Caller:
        return Caller(server, create(use.records, name, scope, project, 1, use.clock()))

    return caller


@pytest.fixture
def study(make: Make, workers: Workers) -> str:
    """A running study of the token `owner`, with two results."""
    found = str(make("owner")("submit", spec=STUDY)["study"])
    workers.tune(found)
    for trial in range(2):
        workers.finish(found, workers.assign(found, trial), {"accuracy": 0.5 + trial / 4})
    return found


@pytest.mark.parametrize("name", TOOLS)
def test_every_tool_says_its_price_or_cost_and_how_far_it_is_verified(make: Make, study: str, name: str) -> None:
    agent, arguments = make("boss", Scope.OPERATE), {} if name == "stop" else CALLS[name]
    answer = agent(name, **arguments)
    assert ("price" in answer) != ("cost" in answer) and answer["verification"]
    if "confirm" in answer:
        answer = agent(name, **arguments, confirm=answer["confirm"])
        assert answer["price"] and answer["verification"] and answer["added"]


def test_programs_of_an_older_protocol_have_the_same_tools(make: Make, study: str) -> None:
    assert make("boss", Scope.OPERATE)("status", mode="legacy")["study"] == study


def test_a_reader_can_only_read(make: Make, study: str, use: Services, subtests: pytest.Subtests) -> None:
    reader, before = make("reader", Scope.READ), use.log.head()
    for name in TOOLS:
        with subtests.test(tool=name):
            if TOOLS[name].reads:
                assert reader(name, **CALLS[name])["verification"]
            elif name in ("branch", "enqueue"):  # a price is no secret, and costs nothing
                with pytest.raises(Refusal, match=r"reader may read, and this needs submit\."):
                    asked = reader(name, **CALLS[name])
                    reader(name, **CALLS[name], confirm=asked["confirm"])
            else:
                with pytest.raises(Refusal, match=r"reader may read, and this needs submit\."):
                    reader(name, **CALLS[name])
            assert use.log.head() == before


def test_no_tool_reaches_another_project(make: Make, study: str, use: Services, subtests: pytest.Subtests) -> None:
    stranger, before = make("stranger", Scope.ADMIN, "vision"), use.log.head()
    for name in (name for name in TOOLS if name not in ("preview", "submit")):
        with subtests.test(tool=name):
            for meant in (study, "Digits, again!", "last"):
                with pytest.raises(Refusal, match=f"there is no study with the id or the name {meant}"):
                    stranger(name, **CALLS[name], study=meant)
            assert use.log.head() == before


def test_a_study_of_another_owner_is_not_changed(make: Make, study: str) -> None:
    with pytest.raises(Refusal, match="The study belongs to owner, and other may submit: this needs operate"):
        make("other")("note", text="mine")


def test_the_log_names_the_token_and_the_agent(make: Make, study: str, use: Services) -> None:
    make("boss", Scope.OPERATE)("note", text="seen")
    row = use.find(study)
    events = use.log.read(row.stream)
    assert events[0].by == "owner/agent" and events[-1].by == "boss/agent"
    assert row.owner == "owner"
    assert getattr(events[-1].event, "by", "") == "boss/agent"


def test_a_caller_without_a_token_is_refused(server: str) -> None:
    answer = httpx2.post(f"{server}/mcp", json={}, headers={"stagetree.principal": "boss"})
    assert answer.status_code == 401 and answer.headers["www-authenticate"] == "Bearer"


def test_a_page_of_another_site_is_refused(http: TestClient) -> None:
    assert http.post("http://test/mcp", headers={"Origin": "http://evil.example"}).status_code == 403


def test_other_methods_and_large_bodies_are_refused(make: Make, app: FastAPI, use: Services) -> None:
    token = create(use.records, "someone", Scope.READ, "", 1, use.clock())
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as http:
        assert http.get("/mcp").status_code == 405
        assert http.post("/mcp", content=b"x" * (use.limits.bytes + 1)).status_code == 413
        assert http.post("/mcp", content=b"{}").status_code in (400, 406)


def test_readers_leave_half_of_the_calls_to_others(
    app: FastAPI, use: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(agent_tools, "MOST_CALLS", 1)  # none of which is a reader's
    tokens = [create(use.records, str(scope), scope, "", 1, use.clock()) for scope in (Scope.READ, Scope.SUBMIT)]
    with TestClient(app) as http:
        answers = [http.post("/mcp", json={}, headers={"Authorization": f"Bearer {token}"}) for token in tokens]
    assert answers[0].status_code == 429 and answers[0].headers["retry-after"] == "1"
    assert answers[1].status_code in (400, 406)


def test_a_server_without_the_package_says_so(app: FastAPI, use: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(agent_tools, "find_spec", lambda name: None)
    token = create(use.records, "someone", Scope.READ, "", 1, use.clock())
    with TestClient(app, headers={"Authorization": f"Bearer {token}"}) as http:
        answer = http.post("/mcp", json={})
    assert answer.status_code == 501 and "pip install 'stagetree[mcp]'" in answer.json()["detail"]
