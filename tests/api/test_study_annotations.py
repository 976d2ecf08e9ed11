"""What people write down about a study and its trials."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain import events as e
from app.domain.terms import StudyId
from app.service.services import Services
from tests.api.world import Workers


def test_a_note_is_an_event_and_shown_with_what_it_is_about(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    url = f"/studies/{tuned_study}/notes"
    first = http.post(url, json={"text": "the warm-up is too short"})
    second = http.post(url, json={"text": "diverges", "trial": 1})
    assert first.status_code == second.status_code == 201
    notes = http.get(f"/studies/{tuned_study}").json()["notes"]
    assert [(note["event"], note["trial"], note["text"]) for note in notes] == [
        (first.json()["position"], None, "the warm-up is too short"),
        (second.json()["position"], 1, "diverges"),
    ]
    assert [note["time"] for note in notes] == [each.json()["data"]["at"] for each in (first, second)]
    assert http.get(f"/studies/{tuned_study}/trials/1").json()["notes"] == notes[1:]
    assert http.get(f"/studies/{tuned_study}/trials/0").json()["notes"] == []
    assert http.get(f"/studies/{tuned_study}/events").json()["items"][-2:] == [first.json(), second.json()]


def test_an_earlier_moment_has_the_notes_of_then(http: TestClient, tuned_study: str) -> None:
    at = [http.post(f"/studies/{tuned_study}/notes", json={"text": text}).json()["position"] for text in ("a", "b")]
    then = http.get(f"/studies/{tuned_study}", params={"at": at[0]}).json()
    assert [note["text"] for note in then["notes"]] == ["a"]


@pytest.mark.slow
def test_a_study_that_is_over_takes_notes_and_one_that_is_deleted_does_not(http: TestClient, study: str) -> None:
    http.post(f"/studies/{study}:cancel")
    assert http.post(f"/studies/{study}/notes", json={"text": "no use"}).status_code == 201
    replayed = http.post(f"/studies/{study}:replay").json()
    assert replayed["identical"] and replayed["state"] == "cancelled"
    http.delete(f"/studies/{study}")
    assert http.post(f"/studies/{study}/notes", json={"text": "no use"}).status_code == 404


def test_the_same_request_again_is_one_note(http: TestClient, study: str) -> None:
    answers = [http.post(f"/studies/{study}/notes", json={"text": "a"}, headers={"Idempotency-Key": "k"}) for _ in "12"]
    assert answers[0].json() == answers[1].json()
    assert len(http.get(f"/studies/{study}").json()["notes"]) == 1


@pytest.mark.slow
def test_a_note_is_corrected_and_the_log_keeps_both_texts(http: TestClient, tuned_study: str) -> None:
    url = f"/studies/{tuned_study}/notes"
    event = http.post(url, json={"text": "the warmup is to short"}).json()["position"]
    corrected = http.post(f"{url}/{event}:correct", json={"text": "the warm-up is too short"})
    assert corrected.status_code == 200
    notes = http.get(f"/studies/{tuned_study}").json()["notes"]
    assert notes == [corrected.json()] and notes[0]["corrected_at"] >= notes[0]["time"]
    then = http.get(f"/studies/{tuned_study}", params={"at": event}).json()["notes"]
    assert [(note["text"], note["corrected_at"]) for note in then] == [("the warmup is to short", None)]
    assert http.post(f"{url}/1:correct", json={"text": "a"}).status_code == 404
    assert http.post(f"{url}/{event}:correct", json={"text": "a", "trial": 1}).status_code == 422
    assert http.post(f"/studies/{tuned_study}:replay").json()["identical"]


@pytest.mark.slow
def test_tags_are_in_the_list_and_attributes_with_the_study(http: TestClient, tuned_study: str) -> None:
    first = http.post(
        f"/studies/{tuned_study}:label", json={"add": ["paper", "draft"], "attributes": {"dataset": "v3"}}
    )
    assert (first.status_code, first.json()["tags"]) == (200, ["paper", "draft"])
    again = http.post(
        f"/studies/{tuned_study}:label", json={"remove": ["draft"], "attributes": {"dataset": None}}
    ).json()
    assert (again["tags"], again["attributes"]) == (["paper"], {})
    assert [each["tags"] for each in http.get("/studies").json()["items"] if each["study"] == tuned_study] == [
        ["paper"]
    ]
    assert http.post(f"/studies/{tuned_study}:label", json={"add": "paper"}).status_code == 422
    assert http.post(f"/studies/{tuned_study}:label", json={"add": ["two words"]}).status_code == 422
    assert http.post(f"/studies/{tuned_study}:replay").json()["identical"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({}, 422, "text"),
        ({"text": 3}, 422, "text"),
        ([], 422, "text"),
        ({"text": "a", "trial": -1}, 422, "trial"),
        ({"text": "a", "trial": True}, 422, "trial"),
        ({"text": "a", "trials": 1}, 422, "trials"),
        ({"text": "a", "trial": 9}, 404, None),
        ({"text": " "}, 422, None),
        ({"text": "x" * 2001}, 422, None),
    ],
)
def test_a_note_that_is_none(http: TestClient, study: str, body: Any, status: int, field: str | None) -> None:
    refused = http.post(f"/studies/{study}/notes", json=body)
    assert refused.status_code == status
    assert field is None or [each["field"] for each in refused.json()["errors"]] == [field]
    assert http.get(f"/studies/{study}").json()["notes"] == []


def test_a_client_cannot_take_the_key_of_a_slot(http: TestClient, study: str, workers: Workers, use: Services) -> None:
    """Chains stand in public events, and a slot's keys follow from them: its facts were refused."""
    for key in ("0" * 32 + ":1:1", "slot:" + "0" * 32 + ":1:1"):
        made = http.post(f"/studies/{study}/notes", json={"text": "a"}, headers={"Idempotency-Key": key})
        assert made.status_code == 201
        fact = e.NoteAdded(study=StudyId(study), trial=None, text="of a slot", at=1.0)
        recorded = use.log.append(use.find(study).stream, [fact], expected=None, at=1.0, key=key)
        assert [each.event for each in recorded] == [fact]
