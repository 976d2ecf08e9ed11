"""Trials over HTTP: listed, looked at, added, cancelled."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId
from app.service.services import Services
from app.service.views.trial_order import KEYS, columns, schedule_text
from stagetree.models import Trial
from tests.api.world import API, Workers, study_file

HP = {"lr": {"family": "multistep", "init": 0.1, "milestones": [20], "gamma": 0.1}, "bs": 64}


def test_pages_of_trials_are_stable_under_writes(http: TestClient, tuned_study: str) -> None:
    page = http.get(f"/studies/{tuned_study}/trials?limit=1").json()
    assert ([trial["trial"] for trial in page["items"]], page["next_cursor"]) == ([0], "1")
    http.post(f"/studies/{tuned_study}/trials", json={"hp": HP, "steps": 10})
    page = http.get(f"/studies/{tuned_study}/trials?limit=2&cursor=1").json()
    assert ([trial["trial"] for trial in page["items"]], page["next_cursor"]) == ([1, 2], None)
    assert (
        http.get(f"/studies/{tuned_study}/trials").json()["items"]
        == http.get(f"/studies/{tuned_study}").json()["trials"]
    )


def test_a_trial_with_its_curve(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5, "loss": None})
    shown = http.get(f"/studies/{tuned_study}/trials/0").json()
    point = {"accuracy": 0.5, "loss": None}
    assert shown.pop("curve") == [{"step": 20, "metrics": point}, {"step": 40, "metrics": point}]
    assert shown.pop("path") == workers.plan(tuned_study).studies[tuned_study].trials[0].path
    assert shown == {
        "trial": 0,
        "state": "completed",
        "standing": "trained to step 40",
        "steps": 40,
        "trained": 40,
        "value": 0.5,
        "last": {"step": 40, "value": 0.5},
        "best": {"step": 40, "value": 0.5},
        "rung": None,
        "rank": None,
        "hp": {"bs": {"family": "constant", "value": 64}, "lr": HP["lr"]},
        "asked": [40],
        "reason": {"by": "tuner"},
        "decisions": [],
        "starts": [0, 20],
        "repeats": [],
        "not_exact": [],
        "notes": [],
    }


def test_a_trial_and_its_study_say_why_they_are_not_exact(http: TestClient, tuned_study: str, workers: Workers) -> None:
    first, second = (
        workers.plan(tuned_study).studies[StudyId(tuned_study)].trials[number].path[0] for number in range(2)
    )
    assert first == second  # what both begin with
    torch = "resumed under another torch (2.13.0 after 2.12.0)"
    workers.record(tuned_study, e.ExactnessLost(node=first, step=11, reason=torch))
    assert http.get(f"/studies/{tuned_study}/trials/0").json()["not_exact"] == [f"1 stage {torch}"]
    assert http.get(f"/studies/{tuned_study}").json()["not_exact"] == [f"1 stage {torch}"]


def test_a_trial_that_its_tuner_judged_is_shown_with_what_is_foretold(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    judged = {"class": "opportunistic", "p": 0.25, "expected_seconds": 12.5, "target": 0.9, "steps": 20}
    judged["proven"] = True
    action = c.Prioritize(trial=0, priority=0.0, reason=judged | {"threshold": 0.5})
    workers.decide(tuned_study, c.ApplyTunerActions(study=StudyId(tuned_study), actions=(action,)))
    shown = {"class": "opportunistic", "p": 0.25, "expected_seconds": 12.5, "target": 0.9, "step": 20, "proven": True}
    assert http.get(f"/studies/{tuned_study}/trials/0").json()["prediction"] == shown
    first, second = http.get(f"/studies/{tuned_study}/trials?sort=p").json()["items"]
    assert first["prediction"] == shown and "prediction" not in second
    assert http.get(f"/studies/{tuned_study}/trials:columns").json()["columns"]["prediction.p"] == [0.25, None]


def test_a_trial_that_failed_says_why_in_a_line_and_at_length(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    traceback = "Traceback (most recent call last):\n  ...\nValueError: the data is gone\n"
    workers.fail(tuned_study, workers.assign(tuned_study, 1), traceback)
    shown = http.get(f"/studies/{tuned_study}/trials/1").json()
    assert (shown["state"], shown["value"]) == ("failed", None)
    assert shown["error"] == shown["standing"] == "ValueError: the data is gone, after step 3"
    assert shown["failure"] == {"kind": "exception", "step": 3, "error": traceback, "tries": 1}
    assert shown["trained"] == 3, "though no state of it was kept"
    seen = http.get(f"/studies/{tuned_study}").json()
    assert (seen["failed"], [group["trials"] for group in seen["failures"]]) == (2, [[0, 1]]), "both wait for it"
    listed = http.get(f"/studies/{tuned_study}").json()["trials"][1]
    assert "failure" not in listed and listed["error"] == shown["error"]


def test_an_added_trial_shares_what_is_there(
    http: TestClient, tuned_study: str, workers: Workers, wake_ups: list[str]
) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    wake_ups.clear()
    answer = http.post(f"/studies/{tuned_study}/trials", json={"hp": HP, "steps": 20})
    assert answer.status_code == 201
    assert answer.headers["Location"] == f"{API}/studies/{tuned_study}/trials/2"
    shown = answer.json()
    assert (shown["trial"], shown["state"], shown["value"], shown["reason"]) == (2, "completed", 0.5, {"by": "user"})
    assert wake_ups == ["wake"]


def test_the_same_key_and_body_is_one_trial(http: TestClient, tuned_study: str) -> None:
    answers = [
        http.post(f"/studies/{tuned_study}/trials", json={"hp": HP, "steps": 9}, headers={"Idempotency-Key": "t"})
        for _ in range(2)
    ]
    assert [answer.json()["trial"] for answer in answers] == [2, 2]
    assert len(http.get(f"/studies/{tuned_study}/trials").json()["items"]) == 3


@pytest.mark.parametrize(
    ("body", "errors"),
    [
        ({"hp": {"lr": 0.1}, "steps": 4}, {"hp": "must hold exactly bs, lr, got lr"}),
        ({"hp": {"lr": 0.1, "bs": 1, "x": 2}, "steps": 4}, {"hp": "must hold exactly bs, lr, got bs, lr, x"}),
        (
            {"hp": {"lr": {"family": "linear", "init": 0.1}, "bs": 1}, "steps": 0, "step": 1},
            {
                "hp.lr.slope": "is missing: linear needs it",
                "steps": "must be the number of steps to train for, at least 1, got 0",
                "step": "is not a field here; did you mean steps? There are hp, steps",
            },
        ),
        ({}, {"hp": "is missing: an object from hyper-parameter to sequence", "steps": None}),
        ([], {"": "must be an object with hp and steps, got []"}),
    ],
)
def test_a_trial_that_is_wrong(http: TestClient, study: str, body: Any, errors: dict[str, str | None]) -> None:
    refused = http.post(f"/studies/{study}/trials", json=body)
    assert refused.status_code == 422
    found = {error["field"]: error["problem"] for error in refused.json()["errors"]}
    assert found.keys() == errors.keys()
    for field, problem in errors.items():
        assert problem is None or found[field].startswith(problem.split(":")[0])


def test_the_names_come_from_the_listed_trials_when_there_is_no_space(http: TestClient) -> None:
    file = study_file(tuner={"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 3}]})
    del file["space"]
    study = http.post("/studies", json=file).json()["study"]
    assert http.post(f"/studies/{study}/trials", json={"hp": {"bs": 1}, "steps": 3}).status_code == 422
    assert http.post(f"/studies/{study}/trials", json={"hp": {"lr": 1}, "steps": 3}).status_code == 201


def test_a_trial_of_a_ladder_has_steps_of_its_own(http: TestClient, workers: Workers) -> None:
    """The length in a space is no hyper-parameter, whether the study has trials by now or not."""
    lr = {"family": "wsd", "peak": 0.1, "warmup": 2, "decay": {"ratio": 0.2}}
    file = study_file(space={"max_steps": [20, 40], "lr": lr}, tuner={"kind": "grid"})
    study = http.post("/studies", json=file).json()["study"]
    refused = http.post(f"/studies/{study}/trials", json={"hp": {"lr": 0.1, "max_steps": 20}, "steps": 3})
    assert refused.json()["errors"] == [{"field": "hp", "problem": "must hold exactly lr, got lr, max_steps"}]
    assert http.post(f"/studies/{study}/trials", json={"hp": {"lr": 0.1}, "steps": 3}).status_code == 201
    workers.tune(study)
    found = [(trial["hp"], trial["steps"]) for trial in http.get(f"/studies/{study}/trials").json()["items"][1:]]
    written = {**lr, "final": 0, "shape": "linear"}
    assert found == [
        ({"lr": {**written, "stable_until": steps * 4 // 5, "decay": steps // 5}}, steps) for steps in (20, 40)
    ]
    assert http.post(f"/studies/{study}/trials", json={"hp": {"lr": 0.2}, "steps": 3}).status_code == 201
    names = {each["field"]: each["steps"] for each in http.post("/studies:preview", json=file).json()["choices"]}
    assert names.keys() == {"max_steps", "lr.stable_until", "lr.decay"}


def test_a_trial_is_cancelled(http: TestClient, tuned_study: str, wake_ups: list[str]) -> None:
    wake_ups.clear()
    for _ in range(2):
        answer = http.delete(f"/studies/{tuned_study}/trials/1")
        assert (answer.status_code, answer.content) == (204, b"")
    assert http.get(f"/studies/{tuned_study}/trials/1").json()["state"] == "cancelled"
    assert http.get(f"/studies/{tuned_study}/trials/0").json()["state"] == "waiting"
    assert wake_ups == ["wake"] * 2


def test_a_trial_that_waits_for_its_tuner_can_be_cancelled_and_one_that_is_over_cannot(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    http.post(f"/studies/{tuned_study}:pause")
    assert http.delete(f"/studies/{tuned_study}/trials/0").status_code == 204


def test_no_trial_is_added_to_an_ended_study(http: TestClient, study: str) -> None:
    http.post(f"/studies/{study}:cancel")
    assert http.post(f"/studies/{study}/trials", json={"hp": HP, "steps": 9}).status_code == 409


def test_stopped_trials_keep_the_value_they_had(
    http: TestClient, tuned_study: str, workers: Workers, use: Services
) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    workers.decide(
        tuned_study, c.ApplyTunerActions(study=tuned_study, actions=(c.Extend(trial=0, steps=80), c.Stop(trial=1)))
    )
    trials = http.get(f"/studies/{tuned_study}").json()["trials"]
    assert [(trial["state"], trial["steps"], trial["value"]) for trial in trials] == [
        ("waiting", 80, 0.5),
        ("pruned", 40, None),
    ]
    assert http.get(f"/studies/{tuned_study}").json()["best"]["steps"] == 40


def test_trials_are_filtered_and_sorted(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    workers.finish(tuned_study, workers.assign(tuned_study, 1), {"accuracy": 0.9})
    http.post(f"/studies/{tuned_study}/trials", json={"hp": HP, "steps": 50})

    def numbers(query: str) -> list[int]:
        return [trial["trial"] for trial in http.get(f"/studies/{tuned_study}/trials?{query}").json()["items"]]

    assert numbers("state=completed") == [0, 1]
    assert numbers("state=completed&state=waiting") == [0, 1, 2]
    assert numbers("sort=value") == [1, 0, 2]
    assert numbers("sort=-value") == [0, 1, 2]
    assert numbers("sort=-steps&limit=1") == [2]
    page = http.get(f"/studies/{tuned_study}/trials?sort=value&limit=2").json()
    assert numbers(f"sort=value&limit=2&cursor={page['next_cursor']}") == [2]


def test_trials_by_column(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 1), {"accuracy": 0.9})
    found = http.get(f"/studies/{tuned_study}/trials:columns").json()
    assert found["count"] == 2
    columns = found["columns"]
    assert columns["trial"] == [0, 1]
    assert (columns["value"], columns["best.step"]) == ([None, 0.9], [None, 40])
    assert (columns["hp.lr"], columns["hp.lr.family"], columns["hp.bs"]) == ([None, 0.1], ["multistep", None], [64, 64])
    assert columns["shape.lr"] == ["0.1 → 0.01", "0.1"] and "shape.bs" not in columns


def test_schedules_with_the_same_values_are_told_apart_by_when_they_have_them() -> None:
    turning = [{"bs": {"family": "values", "values": [32, 64], "milestones": [step]}} for step in (6, 12, 12)]
    slower = [{"bs": {"family": "values", "values": [32, 128], "milestones": [12]}}]
    trials = [Trial.model_construct(hp=hp, steps=24, trial=number) for number, hp in enumerate(turning + slower)]
    told = columns(trials).columns["shape.bs"]
    assert told == ["32 → 64 at step 6", "32 → 64 at step 12", "32 → 64 at step 12", "32 → 128"]
    cooldown = {"family": "wsd", "peak": 0.1, "warmup": 3, "stable_until": 20, "decay": 12}
    assert schedule_text(cooldown, 32, says_when=True) == "0.0333 → 0.1 at step 3 → 0.00833 at step 31"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"family": "values", "values": [64, 128], "milestones": [6]}, "64 → 128"),
        ({"family": "values", "values": [64, 128], "milestones": [60]}, "64"),
        ({"family": "multistep", "init": 0.1, "milestones": [8, 20], "gamma": 0.1}, "0.1 → 0.01 → 0.001"),
        ({"family": "exponential", "init": 0.1, "gamma": 0.95}, "0.1 → 0.0204"),
        ({"family": "cosine", "init": 0.2, "min": 0.001, "period": 5}, "0.2 → 0.02 → 0.181"),
        ({"family": "wsd", "peak": 0.1, "warmup": 3, "stable_until": 20, "decay": 5}, "0.0333 → 0.1 → 0"),
        ({"family": "wsd", "peak": 0.1, "warmup": 3, "stable_until": 20, "decay": 12}, "0.0333 → 0.1 → 0.00833"),
        ({"family": "values", "values": ["adam", "sgd"], "milestones": [6]}, "adam → sgd"),
        (0.1, "0.1"),
    ],
)
def test_a_schedule_in_words(value: object, text: str) -> None:
    assert schedule_text(value, 32) == text


@pytest.mark.slow
def test_half_a_character_in_a_traceback_breaks_no_view(http: TestClient, tuned_study: str, workers: Workers) -> None:
    """Every view of the study was a server error."""
    workers.fail(tuned_study, workers.assign(tuned_study, 1), "ValueError: caf\udce9 \x1b[2J")
    assert "caf\\udce9" in http.get(f"/studies/{tuned_study}/trials/1").json()["failure"]["error"]
    for path in ("", "/trials", "/events", "/plan", "/log", "/trials:columns"):
        assert http.get(f"/studies/{tuned_study}{path}").status_code == 200
    assert http.post(f"/studies/{tuned_study}:replay").status_code == 200


SORTED_BY = [*KEYS, "hp.bs", "hp.lr", "hp.lr.init", "hp.lr.milestones"]


@pytest.mark.slow
@pytest.mark.parametrize("sort", [f"{sign}{key}" for key in SORTED_BY for sign in ("", "-")])
def test_trials_are_sorted_by_every_column(http: TestClient, tuned_study: str, workers: Workers, sort: str) -> None:
    """Trials with a value there first, in its order, then the others."""
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    items = http.get(f"/studies/{tuned_study}/trials", params={"sort": sort}).json()["items"]
    columns = http.get(f"/studies/{tuned_study}/trials:columns").json()["columns"]
    name = {"value": "value", "best": "best.value", "last": "last.value"}.get(sort.lstrip("-"), sort.lstrip("-"))
    values = [columns.get(name, [None, None])[trial["trial"]] for trial in items]
    known = [value for value in values if value is not None]
    best_first = sort.lstrip("-") in ("value", "best", "last", "p")
    assert values == sorted(known, reverse=sort.startswith("-") != best_first) + [None] * (len(values) - len(known))


@pytest.mark.parametrize(("sort", "meant"), [("valeu", "value"), ("-hp.lrr", "hp.lr"), ("hp.nothere", None)])
def test_a_field_that_trials_do_not_have_is_no_order(
    http: TestClient, tuned_study: str, sort: str, meant: str | None
) -> None:
    problem = http.get(f"/studies/{tuned_study}/trials", params={"sort": sort}).json()["errors"][0]
    fields = ", ".join([*KEYS, "hp.bs", "hp.lr", "hp.lr.family", "hp.lr.gamma", "hp.lr.init", "hp.lr.milestones"])
    guess = f"; did you mean {meant}?" if meant else ""
    said = f"must be one of {fields}, or -FIELD for the other way round, got {sort!r}{guess}"
    assert problem == {"field": "sort", "problem": said}


def test_before_there_are_trials_they_can_be_ordered_by_what_they_will_have(http: TestClient, study: str) -> None:
    path = f"/studies/{study}/trials"
    assert http.get(path, params={"sort": "hp.lr"}).json()["items"] == []
    assert http.get(path, params={"sort": "hp.nothere"}).status_code == 422


def test_pages_in_another_order_are_of_one_moment(http: TestClient, tuned_study: str, workers: Workers) -> None:
    """A trial that becomes the best between two pages is on neither twice, and pushes none out."""
    path = f"/studies/{tuned_study}/trials"
    first = http.get(path, params={"sort": "-trial", "limit": 1}).json()
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    http.post(path, json={"hp": {"lr": 0.3, "bs": 64}, "steps": 1})
    following = {"sort": "-trial", "limit": 1, "cursor": first["next_cursor"]}
    second = http.get(path, params=following).json()
    assert [trial["trial"] for trial in first["items"] + second["items"]] == [1, 0]
    assert second["items"][0]["state"] == "waiting" and second["next_cursor"] is None
    for cursor in ("1", "1at", "at1", "1at0", "x", "1at99"):
        assert http.get(path, params=following | {"cursor": cursor}).status_code == 422
    assert http.get(path, params=following | {"at": 1}).status_code == 422
