"""Every refusal is a problem document with a sentence about the error."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.events.log import VersionConflict
from app.registry import Catalogue
from app.service.services import Services
from stagetree.limits import Limits
from tests.api.world import API, STUDY, MakeApp, study_file

JSON = {"Content-Type": "application/json"}


def check(answer: Any, status: int, detail: str | None = None, **errors: str) -> None:
    """It is a problem document of that status; `errors` are the problem of each field."""
    assert answer.status_code == status, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    problem = answer.json()
    assert (problem["type"], problem["status"], problem["instance"]) == ("about:blank", status, answer.url.path)
    assert problem["title"]
    assert detail is None or problem["detail"] == detail
    assert {error["field"]: error["problem"] for error in problem.get("errors", ())} == errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "?trials=false"),
        ("GET", "/trials"),
        ("GET", "/trials/0"),
        ("POST", "/trials"),
        ("DELETE", "/trials/0"),
        ("POST", ":pause"),
        ("POST", ":resume"),
        ("POST", ":cancel"),
        ("GET", "/plan"),
        ("GET", "/stage-tree"),
        ("GET", "/events"),
    ],
)
@pytest.mark.parametrize("name", ["unknown-000000", "No%00where", "..%2f", "x" * 65])
def test_no_such_study(http: TestClient, method: str, path: str, name: str) -> None:
    body = {"hp": {"lr": 1}, "steps": 1} if path == "/trials" and method == "POST" else None
    answer = http.request(method, f"/studies/{name}{path}", json=body)
    check(answer, 404)
    if name == "unknown-000000":
        check(answer, 404, "there is no study unknown-000000")


def test_no_such_study_to_follow(http: TestClient) -> None:
    check(
        http.get("/studies/unknown/events", headers={"Accept": "text/event-stream"}), 404, "there is no study unknown"
    )


@pytest.mark.parametrize("number", [2, -1, 10**30])
@pytest.mark.parametrize("method", ["GET", "DELETE"])
def test_no_such_trial(http: TestClient, tuned_study: str, method: str, number: int) -> None:
    answer = http.request(method, f"/studies/{tuned_study}/trials/{number}")
    check(answer, 404, f"study {tuned_study} has no trial {number}: it has trials 0 and 1")


def test_no_such_route(http: TestClient) -> None:
    check(http.get("/nowhere"), 404, f"There is nothing at {API}/nowhere.")
    check(http.post("/studies/x:explode"), 404, f"There is nothing at {API}/studies/x:explode.")
    check(http.get("http://test/index.php"), 404, "There is nothing at /index.php.")


def test_no_such_method(http: TestClient) -> None:
    answer = http.patch("/studies")
    check(answer, 405, f"PATCH is not possible at {API}/studies.")
    assert answer.headers["Allow"] == "GET, POST"


def test_a_command_is_not_read(http: TestClient, study: str) -> None:
    path = f"/studies/{study}/trials/3:extend"
    answer = http.get(path)
    check(answer, 405, f"GET is not possible at {API}{path}.")
    assert answer.headers["Allow"] == "POST"


@pytest.mark.parametrize("path", ["trials/3:explode", "trials:explode"])
def test_a_command_that_there_is_none_of(http: TestClient, study: str, path: str) -> None:
    for answer in (http.get(f"/studies/{study}/{path}"), http.post(f"/studies/{study}/{path}")):
        check(answer, 404, f"There is nothing at {API}/studies/{study}/{path}.")


@pytest.mark.parametrize("path", ["/studies?state=running&page=2", "/slots?sort=name", "http://test/healthz?x="])
def test_an_unread_parameter(http: TestClient, path: str) -> None:
    answer = http.get(path)
    assert answer.status_code == 422
    assert "is not a parameter here" in answer.json()["errors"][0]["problem"]


def test_a_parameter_that_is_misspelt(http: TestClient) -> None:
    problem = http.get("/studies?limt=3").json()["errors"][0]
    assert problem["field"] == "limt" and problem["problem"].endswith("did you mean limit?")


# -------------------------------------------------------------------------------------------------------------- bodies


@pytest.mark.parametrize("path", ["/studies", "/studies:preview"])
def test_every_wrong_field_is_named(http: TestClient, path: str) -> None:
    answer = http.post(path, json=study_file(mode="best", stepps=3, space={"lr": {"loguniform": [0, 1]}}))
    check(
        answer,
        422,
        "mode: must be max or min: whether more or less of the metric is better, got 'best'; and 2 more.",
        **{
            "mode": "must be max or min: whether more or less of the metric is better, got 'best'",
            "space.lr.loguniform": answer.json()["errors"][1]["problem"],
            "stepps": answer.json()["errors"][2]["problem"],
        },
    )
    assert http.get("/studies").json()["items"] == []


@pytest.mark.parametrize("path", ["/studies", "/studies:preview"])
def test_a_trainer_that_is_not_registered(http: TestClient, path: str) -> None:
    answer = http.post(path, json=study_file(trainer="digit"))
    problem = "must be one of digits, letters, got 'digit'; did you mean digits?"
    check(answer, 422, f"trainer: {problem}.", trainer=problem)


def test_no_trainer_is_registered(http: TestClient, use: Services, app: FastAPI) -> None:
    app.state.services = replace(use, trainers=Catalogue([]))
    problem = "must be registered on this server, which has no trainers, got 'digits'"
    check(http.post("/studies", json=STUDY), 422, trainer=problem)


@pytest.mark.parametrize(
    ("text", "status", "detail"),
    [
        ("", 400, "The body is not JSON: Expecting value: line 1 column 1 (char 0)."),
        (
            "{",
            400,
            "The body is not JSON: Expecting property name enclosed in double quotes: line 1 column 2 (char 1).",
        ),
        ('{"seed": NaN}', 422, "Numbers must be finite, and the body holds NaN."),
        ('{"seed": -Infinity}', 422, "Numbers must be finite, and the body holds -Infinity."),
        ('{"seed": 1, "seed": 2}', 422, "The key 'seed' is written twice in one object."),
        ("[" * 70 + "]" * 70, 422, "The body must not be nested deeper than 50 levels."),
        ("[" * 100_000, 422, "The body must not be nested deeper than 50 levels."),
    ],
)
@pytest.mark.parametrize("path", ["/studies", "/studies:preview"])
def test_a_body_that_is_no_json(http: TestClient, path: str, text: str, status: int, detail: str) -> None:
    check(http.post(path, content=text, headers=JSON), status, detail)


@pytest.mark.parametrize("content", [b"\xff\xfe{", b'{"seed": ' + b"1" * 5000 + b"}"])
def test_a_body_that_cannot_be_read(http: TestClient, content: bytes) -> None:
    check(http.post("/studies", content=content, headers=JSON), 400)


@pytest.mark.parametrize("body", [[], "x", 3, None, True])
def test_a_body_that_is_no_object(http: TestClient, body: Any) -> None:
    answer = http.post("/studies", content=json.dumps(body), headers=JSON)
    check(answer, 422, **{"": f"must be an object with the fields of a study, got {body!r}"})


@pytest.mark.parametrize("text", ["a\0b", "\ud800"])
def test_text_that_no_database_can_keep(http: TestClient, text: str) -> None:
    problem = "must be text that can be kept, without NUL characters and lone surrogates"
    check(http.post("/studies", content=json.dumps(study_file(name=text)), headers=JSON), 422, name=problem)
    answer = http.post("/studies", content=json.dumps(study_file(trainer_args={"a": [{text: 1}]})), headers=JSON)
    check(answer, 422, **{"trainer_args.a[0]": problem})


def test_a_number_that_is_too_large(http: TestClient) -> None:
    text = json.dumps(study_file(trainer_args={"a": 1})).replace('"a": 1', '"a": 1e999')
    problem = "must be a finite number; this one is too large"
    check(http.post("/studies", content=text, headers=JSON), 422, **{"trainer_args.a": problem})


def test_limits_are_settings(http: TestClient, use: Services, app: FastAPI, study: str) -> None:
    app.state.services = replace(use, limits=Limits(trials=1, steps=50))
    problem = "must make at most 1 trials, got 2"
    check(http.post("/studies", json=STUDY), 422, space=problem)
    check(http.post("/studies:preview", json=STUDY), 422, space=problem)
    answer = http.post(f"/studies/{study}/trials", json={"hp": {"lr": 0.1, "bs": 64}, "steps": 51})
    assert answer.status_code in (409, 422) and "must be at most 50 steps, got 51" in answer.text


@pytest.mark.parametrize("path", ["/studies", "/studies:preview", "/studies/{study}/trials"])
@pytest.mark.parametrize("kind", [None, "text/plain", "application/x-www-form-urlencoded"])
def test_a_body_that_another_site_could_have_a_browser_send(
    http: TestClient, study: str, path: str, kind: str | None
) -> None:
    headers = {} if kind is None else {"Content-Type": kind}
    answer = http.post(path.format(study=study), content=json.dumps(STUDY), headers=headers)
    check(answer, 415, "The body must be JSON, and the Content-Type must say so: application/json.")


@pytest.mark.parametrize("path", ["/studies", "/studies:preview", "/studies/{study}/trials", "/studies/{study}:pause"])
def test_a_body_that_is_too_large(http: TestClient, study: str, path: str) -> None:
    body = b'{"name": "' + b"x" * 2**20 + b'"}'
    check(
        http.post(path.format(study=study), content=body, headers=JSON), 413, "The body is larger than 1,048,576 bytes."
    )


# ---------------------------------------------------------------------------------------------------------- parameters


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "field"),
    [
        ("/studies?limit=0", "limit"),
        ("/studies?limit=1001", "limit"),
        ("/studies?limit=many", "limit"),
        ("/studies?cursor=unknown", "cursor"),
        ("/studies?cursor=%00", "cursor"),
        ("/studies?cursor=" + "9" * 101, "cursor"),
        ("/studies/{study}/trials?cursor=-1", "cursor"),
        ("/studies/{study}/trials?cursor=%D9%A3", "cursor"),
        ("/studies/{study}/trials/first", "number"),
        ("/studies/{study}?trials=perhaps", "trials"),
        ("/studies?state=running&state=bogus", "state"),
        ("/studies/{study}/events?after=-1", "after"),
        ("/studies/{study}/events?after=9223372036854775808", "after"),
        ("/studies/{study}/events?cursor=x", "cursor"),
        ("/studies/{study}/events?at=999", "at"),
        ("/studies/{study}?at=1&at=2", "at"),
        ("/studies/{study}/trials?sort=foo", "sort"),
    ],
)
def test_a_parameter_that_is_wrong(http: TestClient, study: str, path: str, field: str) -> None:
    answer = http.get(path.format(study=study))
    assert [error["field"] for error in answer.json()["errors"]] == [field]
    problem = answer.json()["errors"][0]["problem"]
    assert problem.startswith(("must be ", "must have "))
    check(answer, 422, f"{field}: {problem}.", **{field: problem})


def test_a_moment_that_has_not_come_yet_is_not_replayed(http: TestClient, study: str) -> None:
    problem = "must be the position of an event: the last one is 1"
    check(http.post(f"/studies/{study}:replay?at=2"), 422, f"at: {problem}.", at=problem)


@pytest.mark.parametrize(
    "path", ["events?cursor=999999999999999999", "events?after=999999999999999999", "trials?cursor=9999"]
)
def test_a_place_behind_everything(http: TestClient, study: str, path: str) -> None:
    answer = http.get(f"/studies/{study}/{path}")
    assert (answer.status_code, answer.json()) == (200, {"items": [], "next_cursor": None})


def test_slots_to_preview_for(http: TestClient) -> None:
    assert http.post("/studies:preview?slots=0", json=STUDY).json()["errors"][0]["field"] == "slots"


def test_where_to_resume(http: TestClient, study: str) -> None:
    answer = http.get(f"/studies/{study}/events", headers={"Last-Event-ID": "x"})
    assert answer.json()["errors"][0]["field"] == "Last-Event-ID"


# -------------------------------------------------------------------------------------------------------- the server's


@pytest.mark.parametrize("path", ["/studies", "/studies/x", "/studies/x/events", "/slots"])
def test_the_database_is_away(make_app: MakeApp, path: str) -> None:
    with TestClient(make_app("sqlite:////nowhere/log.db"), base_url=f"http://test{API}") as http:
        answer = http.get(path)
        check(answer, 503)
        assert answer.json()["detail"].startswith("The database sqlite:////nowhere/log.db cannot be used: ")
        assert answer.headers["Retry-After"] == "1"


def test_the_database_is_away_at_a_submission(make_app: MakeApp) -> None:
    with TestClient(make_app("postgresql://unknown:secret@127.0.0.1:1/x"), base_url=f"http://test{API}") as http:
        answer = http.post("/studies", json=STUDY)
        check(answer, 503)
        assert "secret" not in answer.text


def test_others_were_always_faster(http: TestClient, use: Services, monkeypatch: pytest.MonkeyPatch) -> None:
    def lose(*_: Any, **__: Any) -> None:
        raise VersionConflict("Stream p is not at version 3.")

    monkeypatch.setattr(use.log, "write", lose)
    answer = http.post("/studies", json=STUDY)
    check(answer, 503, "Too many others are writing to this plan; try again.")
    assert answer.headers["Retry-After"] == "1"


def test_a_mistake_of_the_server_shows_no_traceback(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app.state.services.plans, "holding", lambda stream, **_: 1 / 0)
    with TestClient(app, base_url=f"http://test{API}", raise_server_exceptions=False) as http:
        answer = http.post("/studies", json=STUDY)
    check(answer, 500, "The server made a mistake; its log says which.")
