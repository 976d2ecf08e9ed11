"""Suggestions over HTTP and from Python: validated, recorded with who said so, and the next places of the tuner."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.terms import StudyId
from app.service import suggestions
from stagetree.client import Conflict, Invalid
from stagetree.study import Study
from tests.api.world import Workers, study_file

SPACE = {"lr": {"loguniform": [0.001, 1]}, "bs": [32, 64]}
ASHA = {"kind": "asha", "num_trials": 4, "min_steps": 10, "max_steps": 40, "sampler": "random"}


@pytest.fixture
def study(http: TestClient) -> str:
    return str(
        http.post("/studies", json=study_file(space=SPACE, tuner=ASHA, suggestions=[{"bs": 32}])).json()["study"]
    )


def enqueue(http: TestClient, study: str, *configurations: Any) -> Any:
    return http.post(f"/studies/{study}/suggestions", json={"suggestions": list(configurations)})


@pytest.mark.slow
def test_the_next_places_are_theirs(http: TestClient, workers: Workers, study: str) -> None:
    said = enqueue(http, study, {"lr": 0.5}, {"lr": 0.25, "bs": 64})
    assert said.status_code == 201
    assert [(each["suggestion"], each["hp"], each["trial"]) for each in said.json()["items"]] == [
        (1, {"lr": 0.5}, None),
        (2, {"lr": 0.25, "bs": 64}, None),
    ]
    for _ in range(4):
        workers.tune(study)
        trials = http.get(f"/studies/{study}/trials").json()["items"]
        workers.finish(study, workers.assign(study, len(trials) - 1), {"accuracy": 0.5})
    listed = http.get(f"/studies/{study}/suggestions").json()["items"]
    assert [each["trial"] for each in listed] == [0, 1, 2]
    trials = http.get(f"/studies/{study}/trials").json()["items"]
    assert [trial["hp"]["lr"]["value"] for trial in trials[1:3]] == [0.5, 0.25]
    assert [trials[n]["hp"]["bs"]["value"] for n in (0, 2)] == [32, 64]
    assert http.post(f"/studies/{study}:replay").json()["identical"]
    events = http.get(f"/studies/{study}/events").json()["items"]
    assert [each["type"] for each in events].count("ConfigurationSuggested") == 3


def test_refused_files(http: TestClient, workers: Workers, study: str) -> None:
    wrong = enqueue(http, study, {"lr": 0.5}, {"lr": 2})
    assert wrong.status_code == 422
    problem = "must be a number from 0.001 to 1, as in the space, got 2"
    assert wrong.json()["errors"] == [{"field": "suggestions[1].lr", "problem": problem}]
    assert [enqueue(http, study, *bad).status_code for bad in ((), (3,), ({},))] == [422, 422, 422]
    many = enqueue(http, study, *({"lr": 0.5 + n / 100} for n in range(4)))
    assert many.status_code == 409
    assert "it has 3 places left, got 4: 0 of its 4 trials have begun, and 1 suggestions wait" in many.text
    assert len(http.get(f"/studies/{study}/suggestions").json()["items"]) == 1, "all or nothing"
    http.post(f"/studies/{study}:cancel")
    assert enqueue(http, study, {"lr": 0.5}).status_code == 409


def test_what_is_withdrawn_is_listed_as_that(http: TestClient, workers: Workers, study: str) -> None:
    enqueue(http, study, {"lr": 0.5})
    assert http.delete(f"/studies/{study}/suggestions/0").status_code == 204
    workers.tune(study)
    listed = http.get(f"/studies/{study}/suggestions").json()["items"]
    assert [(each["trial"], each["withdrawn_at"] is None) for each in listed] == [(None, False), (0, True)]
    assert [http.delete(f"/studies/{study}/suggestions/{number}").status_code for number in (1, 2)] == [409, 404]
    assert enqueue(http, study, {"lr": 0.2}, {"lr": 0.3}, {"lr": 0.4}).status_code == 201, "its place is free"
    assert http.get(f"/studies/{study}/sampler").json()["refuses"].startswith("it has no place left: 1 of its 4 trials")
    events = http.get(f"/studies/{study}/events").json()["items"]
    then = next(each["position"] for each in events if each["type"] == "SuggestionWithdrawn") - 1
    before = http.get(f"/studies/{study}/suggestions?at={then}").json()["items"]
    assert [each["withdrawn_at"] for each in before] == [None, None]


def test_the_next_proposal_is_computed_once_for_each_state_of_the_log(
    http: TestClient, workers: Workers, study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A random sampler derives all its earlier trials again: of 10,000 trials that took 4 s, for each look."""
    states, made = [], suggestions.sampler_state
    monkeypatch.setattr(suggestions, "sampler_state", lambda *given: states.append(given) or made(*given))
    looks = [http.get(f"/studies/{study}/sampler") for _ in range(3)]
    assert [look.json() for look in looks] == [looks[0].json()] * 3 and len(states) == 1
    assert http.get(f"/studies/{study}/sampler", headers={"If-None-Match": looks[0].headers["ETag"]}).status_code == 304
    workers.tune(study)
    assert http.get(f"/studies/{study}/sampler").headers["ETag"] != looks[0].headers["ETag"] and len(states) == 2


def test_what_a_sampler_knows_and_would_propose(http: TestClient, workers: Workers, study: str) -> None:
    """A learning sampler is in `test_learning_from_studies.py`."""
    state = http.get(f"/studies/{study}/sampler").json()
    assert (state["sampler"], state["results"]) == ("random", None)
    assert state["text"] == [
        "random uses no results",
        "0 of 4 trials have begun",
        "suggestion 0 takes the next place",
    ]
    assert state["refuses"] == ""
    workers.tune(study)
    [trial] = workers.plan(study).studies[StudyId(study)].trials
    assert state["next"]["hp"] == trial.hp and "suggestion" in state["next"]["reason"]
    grid = http.post("/studies", json=study_file()).json()["study"]
    state = http.get(f"/studies/{grid}/sampler").json()
    assert (state["sampler"], state["next"]) == ("", None) and "asks no sampler" in state["text"][0]
    assert state["refuses"].startswith("the study file lists the trials of grid")


def test_a_submitted_study_names_the_sampler_that_it_has_by_default(http: TestClient) -> None:
    tuner = {name: value for name, value in ASHA.items() if name != "sampler"}
    study = http.post("/studies", json=study_file(space=SPACE, tuner=tuner)).json()["study"]
    assert http.get(f"/studies/{study}").json()["spec"]["tuner"]["sampler"] == "trunks"
    assert http.get(f"/studies/{study}/sampler").json()["sampler"] == "trunks"


def test_a_tuner_that_takes_none(http: TestClient) -> None:
    grid = http.post("/studies", json=study_file()).json()["study"]
    said = enqueue(http, grid, {"lr": 0.1})
    assert (
        said.status_code == 409
        and "does not take the suggestions: the study file lists the trials of grid" in said.text
    )


def test_what_a_trial_has_is_not_suggested(http: TestClient, workers: Workers) -> None:
    listed = {"lr": [0.1, 0.2], "bs": [32, 64]}
    study = http.post("/studies", json=study_file(space=listed, tuner=ASHA, suggestions=[{"lr": 0.1, "bs": 64}])).json()
    workers.tune(study["study"])
    again = enqueue(http, study["study"], {"lr": 0.1, "bs": 64})
    assert again.status_code == 422 and "none is drawn twice" in again.text


def test_from_python(server: str, workers: Workers) -> None:
    with Study.create(study_file(space=SPACE, tuner=ASHA), url=server) as study:
        made = study.suggest(lr=0.5)
        assert (made.suggestion, made.hp, made.trial) == (0, {"lr": 0.5}, None)
        assert study.suggest({"bs": 64}).suggestion == 1
        study.withdraw(1)
        assert study.sampler().next.reason["suggestion"] == 0
        with pytest.raises(Invalid, match=r"lr: must be a number from 0\.001 to 1|lr must be a number"):
            study.suggest(lr=7)
        study.cancel()
        with pytest.raises(Conflict):
            study.suggest(lr=0.5)
