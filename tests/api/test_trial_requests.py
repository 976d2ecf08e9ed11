"""Studies whose trials come from outside: asked for in batches, made longer, completed by hand."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.api.world import Workers, study_file

HP = {"lr": {"family": "multistep", "init": 0.1, "milestones": [20], "gamma": 0.1}, "bs": 64}
OTHER = {"lr": 0.1, "bs": 64}


@pytest.fixture
def external(http: TestClient) -> str:
    """A study that waits for trials from outside."""
    file = study_file(tuner={"kind": "external"})
    del file["space"]
    return str(http.post("/studies", json=file).json()["study"])


def ask(http: TestClient, study: str, *trials: Any, key: str | None = None) -> Any:
    headers = {"Idempotency-Key": key} if key else {}
    return http.post(f"/studies/{study}/trials:batch", json={"trials": trials}, headers=headers)


@pytest.mark.slow
def test_trials_new_and_longer_in_one_transaction(http: TestClient, external: str, wake_ups: list[str]) -> None:
    wake_ups.clear()
    first = ask(http, external, {"hp": HP, "steps": 10}, {"hp": OTHER, "steps": 20})
    assert first.status_code == 200
    assert [(each["trial"], each["steps"], each["reason"]) for each in first.json()["items"]] == [
        (0, 10, {"by": "user"}),
        (1, 20, {"by": "user"}),
    ]
    asked = [{"trial": 1, "steps": 40}, {"hp": OTHER, "steps": 30}, {"trial": 0, "steps": 5}]
    second = ask(http, external, *asked).json()["items"]
    assert [(each["trial"], each["asked"]) for each in second] == [(1, [20, 40]), (2, [30]), (0, [10])]
    assert wake_ups == ["wake"] * 2


def test_the_same_key_asks_once(http: TestClient, external: str) -> None:
    asked = [{"hp": HP, "steps": 10}, {"hp": OTHER, "steps": 20}]
    answers = [ask(http, external, *asked, key="k").json() for _ in range(2)]
    assert answers[0] == answers[1]
    assert len(http.get(f"/studies/{external}/trials").json()["items"]) == 2


def test_a_trial_goes_on_from_where_it_is(http: TestClient, external: str, workers: Workers) -> None:
    ask(http, external, {"hp": HP, "steps": 10})
    workers.finish(external, workers.assign(external, 0), {"accuracy": 0.5})
    assert http.get(f"/studies/{external}/trials/0").json()["state"] == "completed"
    longer = http.post(f"/studies/{external}/trials/0:extend", json={"steps": 15})
    assert (longer.status_code, longer.json()["state"], longer.json()["asked"]) == (200, "waiting", [10, 15])
    chain = workers.plan(external).chains[workers.assign(external, 0)]
    assert [(stage.start, stage.end) for stage in chain.stages] == [(10, 15)]


def test_a_failed_trial_is_tried_again(http: TestClient, external: str, workers: Workers) -> None:
    ask(http, external, {"hp": HP, "steps": 10})
    path = f"/studies/{external}/trials/0"
    assert http.post(f"{path}:retry").status_code == 409
    workers.fail(external, workers.assign(external, 0), "Boom")
    assert http.get(path).json()["state"] == "failed"
    workers.close(external)
    assert http.get(f"/studies/{external}").json()["state"] == "failed"
    again = http.post(f"{path}:retry")
    assert (again.status_code, again.json()["state"]) == (200, "waiting") and "error" not in again.json()
    study = http.get(f"/studies/{external}").json()
    assert (study["state"], study["error"], study["failed"]) == ("running", None, 0)
    workers.finish(external, workers.assign(external, 0), {"accuracy": 0.5})
    assert http.get(path).json()["value"] == 0.5
    assert http.post(f"/studies/{external}/trials/9:retry").status_code == 404


@pytest.mark.parametrize(
    ("asked", "errors"),
    [
        ([{"hp": HP, "steps": 0}, {"trial": -1, "steps": 3}], ["trials[0].steps", "trials[1].trial"]),
        ([{"trial": 0}], ["trials[0].steps"]),
        ([{"trial": True, "steps": 1.5}], ["trials[0].trial", "trials[0].steps"]),
        ([{"trial": 0, "steps": 3, "hp": HP}], ["trials[0].hp"]),
        ([3], ["trials[0]"]),
        ([{"hp": HP, "steps": 3}, {"hp": {"lr": 1}, "steps": 3}], ["hp"]),
    ],
)
def test_a_wrong_request_is_refused_without_an_effect(
    http: TestClient, external: str, asked: list[Any], errors: list[str]
) -> None:
    refused = ask(http, external, *asked)
    assert refused.status_code == 422
    assert [error["field"] for error in refused.json()["errors"]] == errors
    assert http.get(f"/studies/{external}/trials").json()["items"] == []


def test_bodies_that_are_no_batch(http: TestClient, external: str) -> None:
    for body, field in (
        ([], "trials"),
        ({}, "trials"),
        ({"trials": {}}, "trials"),
        ({"trials": [], "more": 1}, "more"),
    ):
        errors = http.post(f"/studies/{external}/trials:batch", json=body).json()["errors"]
        assert [each["field"] for each in errors] == [field]
    assert http.post(f"/studies/{external}/trials/0:extend", json=[]).status_code == 422


def test_only_what_is_there_and_ones_own_is_made_longer(http: TestClient, tuned_study: str, external: str) -> None:
    missing = http.post(f"/studies/{external}/trials/0:extend", json={"steps": 9})
    assert (missing.status_code, missing.json()["detail"]) == (
        404,
        f"study {external} has no trial 0: it has none yet",
    )
    tuners = http.post(f"/studies/{tuned_study}/trials/0:extend", json={"steps": 90})
    assert tuners.status_code == 409
    assert "belongs to the tuner" in tuners.json()["detail"]
    ask(http, external, {"hp": HP, "steps": 10})
    http.delete(f"/studies/{external}/trials/0")
    assert http.post(f"/studies/{external}/trials/0:extend", json={"steps": 20}).status_code == 409


def test_an_external_study_is_completed_by_hand(http: TestClient, external: str, workers: Workers) -> None:
    ask(http, external, {"hp": HP, "steps": 10})
    busy = http.post(f"/studies/{external}:complete")
    assert (busy.status_code, busy.json()["detail"]) == (
        409,
        f"study {external} is still training (1 trial) and cannot be completed",
    )
    workers.finish(external, workers.assign(external, 0), {"accuracy": 0.5})
    for _ in range(2):
        done = http.post(f"/studies/{external}:complete")
        assert (done.status_code, done.json()["state"]) == (200, "completed")
    assert http.get("/studies").json()["items"][0]["state"] == "completed"
    assert ask(http, external, {"hp": HP, "steps": 10}).status_code == 409


def test_an_external_study_of_failures_has_failed(http: TestClient, external: str, workers: Workers) -> None:
    ask(http, external, {"hp": HP, "steps": 10})
    workers.fail(external, workers.assign(external, 0), "ValueError: no")
    assert http.post(f"/studies/{external}:complete").json()["state"] == "failed"
    assert http.post(f"/studies/{external}:complete").status_code == 409


def test_other_studies_are_completed_by_their_tuner(http: TestClient, study: str) -> None:
    refused = http.post(f"/studies/{study}:complete")
    assert refused.status_code == 409
    assert "has a tuner of its own" in refused.json()["detail"]
