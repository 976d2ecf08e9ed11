"""Access: every route with every scope, projects, owners, and proxies."""

from __future__ import annotations

import asyncio
import os
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from starlette.datastructures import Headers

from app.api import peers
from app.api.access import AccessPolicy, needed_scope
from app.api.peers import peer_between
from app.domain.terms import Principal, Scope
from app.main import create_app
from app.service.access import KNOWN_SECONDS, create, revoke
from app.service.services import Services
from app.service.submission import find_source
from app.settings import Settings
from stagetree.spec import BeginFrom, SpecError
from tests.api.world import API, STUDY, Workers

ELSEWHERE = ("192.0.2.7", 4242)
HERE = ("127.0.0.1", 4242)
Let = Callable[..., TestClient]
OPERATIONS = re.compile(r"get|post|delete|put|patch")


@pytest.fixture
def as_(app: FastAPI, use: Services) -> Iterator[Let]:
    """Makes clients on another machine, with a token of a scope, or with none."""
    made: list[TestClient] = []

    def client(name: str = "", scope: Scope | None = None, project: str | None = "", days: float = 1) -> TestClient:
        found = TestClient(app, base_url=f"http://test{API}", client=ELSEWHERE)
        if scope is not None:
            token = create(use.records, name, scope, project, days, use.clock())
            found.headers["Authorization"] = f"Bearer {token}"
        made.append(found)
        return found

    yield client
    for each in made:
        each.close()


def routes(app: FastAPI) -> Iterator[tuple[str, str, str]]:
    """Method, path and name of every operation that the document has under the API, and of the numbers."""
    for path, methods in app.openapi()["paths"].items():
        for method, operation in methods.items():
            if OPERATIONS.fullmatch(method) and (path.startswith(API) or path == "/metrics"):
                yield method.upper(), path, operation["operationId"]


def ask(client: TestClient, method: str, path: str, study: str) -> int:
    """The status of an answer about a study and its first trial."""
    url = "http://test" + path.format(study=study, number=0, event=0, suggestion=0, name="nothing")
    body: dict[str, Any] = {} if method in ("GET", "DELETE") else {"json": {}}
    return client.request(method, url, **body).status_code


@pytest.mark.parametrize("scope", Scope)
def test_every_route_allows_exactly_its_scope(app: FastAPI, as_: Let, study: str, scope: Scope) -> None:
    """The study has no owner, so a change needs the scope `operate`."""
    known, asked = as_("someone", scope), list(routes(app))
    assert len(asked) > 40
    for method, path, name in asked:
        least = needed_scope(name, method)
        if least is Scope.SUBMIT and "{study}" in path:
            least = Scope.OPERATE
        status = ask(known, method, path, study)
        assert (status == 403) == (scope < least) and status not in (401, 500), (method, path, status)


def test_no_route_lets_a_stranger_in(app: FastAPI, as_: Let, study: str) -> None:
    stranger, asked = as_(), [each for each in routes(app) if each[2] != "get_events_stream"]
    assert len(asked) > 40
    for method, path, _ in asked:
        assert ask(stranger, method, path, study) == 401, path


def test_routes_without_study_data_are_open(as_: Let, built_page: None) -> None:
    stranger = as_()
    for path in ("/", "/docs", "/openapi.json", "/healthz", "/assets/index-1.js"):
        assert stranger.get(f"http://test{path}").status_code == 200, path
    assert stranger.get("http://test/readyz").status_code in (200, 503)
    refused = stranger.get("/studies")
    assert refused.headers["www-authenticate"] == "Bearer"
    assert "stagetree token create" in refused.json()["detail"]


def test_local_callers_need_no_token(app: FastAPI) -> None:
    def status(client: Any, **headers: str) -> int:
        with TestClient(app, base_url=f"http://test{API}", client=client) as http:
            return http.get("/studies", headers=headers).status_code

    assert status(HERE) == status(("::1", 1)) == status(("::ffff:127.0.0.1", 1)) == 200
    assert status(ELSEWHERE) == status(("::ffff:192.0.2.7", 1)) == 401
    for name in ("X-Forwarded-For", "Forwarded", "X-Real-IP", "X-Forwarded-User"):
        assert status(HERE, **{name: "192.0.2.7"}) == 401, "something in front of the server has passed it on"
    assert status(HERE, Authorization="Bearer nonsense") == 200, "a token for another server does no harm"


def test_one_address_at_both_ends_is_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "tcp_owner", lambda there, here: os.geteuid())

    def is_exempt(policy: AccessPolicy, there: str, here: str) -> bool:
        peer = peer_between((there, 4242), (here, 8000))
        return asyncio.run(policy.needs_no_token(peer, Headers()))

    assert is_exempt(AccessPolicy(), "192.0.2.2", "192.0.2.2")
    assert not is_exempt(AccessPolicy(), "192.0.2.7", "192.0.2.2")
    assert not is_exempt(AccessPolicy("always"), "127.0.0.1", "127.0.0.1")
    assert is_exempt(AccessPolicy("open"), "192.0.2.7", "192.0.2.2")


def test_a_token_ends(app: FastAPI, as_: Let, use: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    client, late = as_("ci", Scope.READ), as_("late", Scope.READ, days=0.001)
    assert client.get("/session").json() == {"name": "ci", "scope": "read", "project": ""}
    assert client.get("/studies").status_code == late.get("/studies").status_code == 200
    revoke(use.records, "ci", use.clock())
    (keeper,) = (each.kwargs["doorkeeper"] for each in app.user_middleware if "doorkeeper" in each.kwargs)
    now = use.clock()
    monkeypatch.setattr(keeper, "clock", lambda: now + 100)
    assert KNOWN_SECONDS < 100
    for gone in (client, late):
        refused = gone.get("/studies")
        assert refused.status_code == 401 and "unknown, has expired or was revoked" in refused.json()["detail"]


def test_tokens_are_not_stored_or_listed(as_: Let, use: Services, tmp_path: Path) -> None:
    boss = as_("boss", Scope.ADMIN, None)
    made = boss.post("/tokens", json={"name": "ci", "scope": "read", "project": "vision", "days": 3}).json()
    secret = boss.headers["Authorization"].removeprefix("Bearer ")
    listed = boss.get("/tokens")
    assert [each["name"] for each in listed.json()["items"]] == ["boss", "ci"]
    assert listed.json()["items"][0]["used_at"] > 1e9
    assert "digest" not in listed.text
    stored = b"".join(path.read_bytes() for path in Path(tmp_path).rglob("*.db*"))
    for each in (made["token"], secret):
        assert each not in listed.text and each.encode() not in stored
    assert boss.post("/tokens", json={"name": "ci"}).status_code == 409
    assert boss.delete("/tokens/ci").status_code == 204
    assert boss.delete("/tokens/unknown").status_code == 404
    assert boss.post("/tokens", json={"name": "ci"}).status_code == 409, "the log still names it, so it is not reused"


def test_an_admin_of_a_project_makes_no_tokens_for_others(as_: Let) -> None:
    lead = as_("lead", Scope.ADMIN, "vision")
    assert lead.post("/tokens", json={"name": "a", "project": "vision"}).status_code == 201
    assert lead.post("/tokens", json={"name": "b", "project": None}).status_code == 403
    assert lead.post("/tokens", json={"name": "b", "project": "speech"}).status_code == 403
    as_("other", Scope.READ, "speech")
    assert [each["name"] for each in lead.get("/tokens").json()["items"]] == ["a", "lead"]
    assert lead.delete("/tokens/other").status_code == 404


# ------------------------------------------------------------------------------------------------- projects and owners


def test_nothing_is_shared_or_seen_across_the_border_of_a_project(as_: Let, use: Services, workers: Workers) -> None:
    anna, ben = as_("anna", Scope.SUBMIT, "vision"), as_("ben", Scope.OPERATE, "speech")
    boss = as_("boss", Scope.ADMIN, None)
    hers, his = (who.post("/studies", json=STUDY).json() for who in (anna, ben))
    assert (hers["project"], hers["owner"], his["project"]) == ("vision", "anna", "speech")
    assert use.find(hers["study"]).stream != use.find(his["study"]).stream
    assert [each["study"] for each in anna.get("/studies").json()["items"]] == [hers["study"]]
    assert len(boss.get("/studies").json()["items"]) == 2
    assert len(boss.get("/studies?project=speech").json()["items"]) == 1
    assert anna.get("/studies?project=speech").json()["items"] == []
    path = f"/studies/{his['study']}"
    for url in (path, f"{path}/log", f"{path}/plan", f"{path}/events", f"{path}/checkpoint", f"{path}/trials/0/log"):
        assert anna.get(url).status_code == 404, url
    assert anna.post(f"{path}:cancel").status_code == 404
    with pytest.raises(SpecError, match=f"there is no study {his['study']}"):
        find_source(use, BeginFrom(study=his["study"]), Principal("anna", Scope.SUBMIT, "vision"))
    assert anna.post("/studies?project=speech", json=STUDY).status_code == 403
    assert boss.post("/studies?project=speech", json=STUDY).json()["project"] == "speech"


def test_slots_do_not_tell_what_they_do_for_another_project(as_: Let, workers: Workers, use: Services) -> None:
    anna, ben = as_("anna", Scope.SUBMIT, "vision"), as_("ben", Scope.READ, "speech")
    study = anna.post("/studies", json=STUDY).json()["study"]
    workers.tune(study)
    workers.assign(study, 0)
    (hers,), (his,) = (who.get("/slots").json()["items"] for who in (anna, ben))
    assert hers["study"] == study and hers["stage"]["start"] == 0
    assert (his["state"], his["study"], his["stage"], his["chain"]) == ("busy", None, None, None)
    with use.records.write() as rows:
        owner = rows.slots.get(hers["name"]).owner  # type: ignore[union-attr]
        rows.slots.quarantine(hers["name"], owner, seconds=60, reason="FileNotFoundError: vision/patients.csv")
    (hers,), (his,) = (who.get("/slots").json()["items"] for who in (anna, ben))
    assert "patients" in hers["note"] and "patients" not in str(his)


def test_a_study_is_changed_by_its_owner_or_by_an_operator(as_: Let) -> None:
    anna, ben, carl = as_("anna", Scope.SUBMIT), as_("ben", Scope.SUBMIT), as_("carl", Scope.OPERATE)
    study = anna.post("/studies", json=STUDY).json()["study"]
    assert ben.get(f"/studies/{study}").status_code == 200
    refused = ben.post(f"/studies/{study}:pause")
    assert refused.status_code == 403
    assert refused.json()["detail"] == "The study belongs to anna, and ben may submit: this needs operate."
    assert ben.post(f"/studies/{study}/notes", json={"text": "mine"}).status_code == 403
    assert anna.post(f"/studies/{study}:pause").status_code == 200
    assert carl.post(f"/studies/{study}:resume").status_code == 200


def test_the_log_names_the_caller(as_: Let, http: TestClient, use: Services) -> None:
    anna, carl = as_("anna", Scope.SUBMIT), as_("carl", Scope.OPERATE)
    study = anna.post("/studies", json=STUDY).json()["study"]
    carl.post(f"/studies/{study}:pause")
    http.post(f"/studies/{study}:resume")
    found = {each["type"]: each["by"] for each in anna.get(f"/studies/{study}/events").json()["items"]}
    assert found == {"StudySubmitted": "anna", "StudyPaused": "carl", "StudyResumed": ""}
    lines = anna.get(f"/studies/{study}/log").text.splitlines()
    assert [line.count('"by": "carl"') for line in lines] == [0, 0, 1, 0]


def test_one_idempotency_key_of_two_people_is_two_keys(as_: Let) -> None:
    anna, ben = as_("anna", Scope.SUBMIT), as_("ben", Scope.SUBMIT)
    first, second = (who.post("/studies", json=STUDY, headers={"Idempotency-Key": "k"}).json() for who in (anna, ben))
    assert first["study"] != second["study"]
    assert anna.post("/studies", json=STUDY, headers={"Idempotency-Key": "k"}).json()["study"] == first["study"]


# ----------------------------------------------------------------------------------------------- browsers and proxies


def test_a_browser_stays_known_by_a_cookie_that_no_script_reads(app: FastAPI, as_: Let) -> None:
    signing = as_("anna", Scope.SUBMIT)
    answer = signing.post("/session")
    cookie = answer.headers["set-cookie"]
    assert "HttpOnly" in cookie and "SameSite=strict" in cookie
    with TestClient(app, base_url=f"http://test{API}", client=ELSEWHERE, cookies=signing.cookies) as browser:
        assert browser.get("/session").json()["name"] == "anna"
        assert browser.delete("/session").status_code == 204
        assert browser.get("/session").status_code == 401


def test_a_trusted_proxy_names_its_users(sqlite_url: str, trainers: str, app: FastAPI) -> None:
    how = {"database_url": sqlite_url, "trainers": trainers, "broker_url": "memory://", "hosts": "test"}
    settings = Settings(proxies="192.0.2.0/24", groups="ml=submit@vision, ops=operate, *=read@demo", **how)

    def session(*groups: str, client: Any = ELSEWHERE, user: str = "anna") -> Any:
        headers = {"X-Forwarded-User": user, "X-Forwarded-Groups": ",".join(groups)}
        with TestClient(create_app(settings), base_url=f"http://test{API}", client=client) as http:
            return http.get("/session", headers=headers).json()

    assert session("ml") == {"name": "anna", "scope": "submit", "project": "vision"}
    assert session("ml", "ops") == {"name": "anna", "scope": "operate", "project": None}
    assert session() == {"name": "anna", "scope": "read", "project": "demo"}
    assert session("ml", client=("198.51.100.1", 1))["status"] == 401
    assert session("ml", client=HERE)["status"] == 401


@pytest.mark.parametrize(
    ("setting", "value"), [("proxies", "everybody"), ("groups", "ml=submitter"), ("groups", "ml"), ("access", "closed")]
)
def test_a_wrong_setting_is_refused(setting: str, value: str) -> None:
    with pytest.raises(ValueError, match=setting):
        Settings(**{setting: value})
