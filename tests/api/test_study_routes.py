"""Studies over HTTP: submitted, listed, looked at, paused, resumed, cancelled, previewed."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from app.domain import commands as c
from app.domain.accounting import Forecast
from app.domain.terms import plan_id
from app.service.services import ID, Services
from app.simulation.forecast import forecast
from tests.api.world import API, STUDY, MakeApp, Workers, study_file


def test_an_edited_trainer_is_another_plan_at_once(http: TestClient, trainers: str, use: Services) -> None:
    """Without a restart; and one that is broken now says so, without taking the others away."""
    mine = study_file(trainer="letters")
    Path(trainers).write_text('from stagetree import Trainer\n\nclass Letters(Trainer):\n    name = "letters"\n')
    studies = [http.post("/studies", json=mine).json()["study"]]
    text = Path(trainers).read_text()
    Path(trainers).write_text(text + "\n# edited\n")
    studies.append(http.post("/studies", json=mine).json()["study"])
    assert len({use.find(study).stream for study in studies}) == 2
    Path(trainers).write_text("def (")
    answer = http.post("/studies", json=mine)
    assert answer.status_code == 422 and "cannot be used as its file is now: " in answer.text
    Path(trainers).write_text(text)
    assert use.find(http.post("/studies", json=mine).json()["study"]).stream == use.find(studies[0]).stream


def test_a_study_is_submitted(http: TestClient, use: Services, wake_ups: list[str]) -> None:
    answer = http.post("/studies", json=STUDY)
    assert answer.status_code == 201
    shown = answer.json()
    assert re.fullmatch(r"digits-again-[0-9a-f]{6}", shown["study"])
    assert answer.headers["Location"] == f"{API}/studies/{shown['study']}"
    assert (shown["state"], shown["best"], shown["trials"], shown["merge_rate"]) == ("running", None, [], None)
    assert use.find(shown["study"]).stream == plan_id("digits", "1", {"width": 32}, 0)
    assert wake_ups == ["wake"]


def test_the_recorded_study_file_is_complete_and_validated(http: TestClient, study: str, workers: Workers) -> None:
    spec = workers.plan(study).studies[study].spec.json
    given = {
        "seed": 0,
        "value": "last",
        "priority": 1.0,
        "weight": 1.0,
        "max_restarts": 2,
        "merge": True,
        "keep_best": 1,
    }
    assert spec == STUDY | given


@pytest.mark.parametrize(
    ("name", "slug"),
    [("Große Suche #3", "groe-suche-3"), ("---", "study"), ("学习率", "study"), ("x" * 200, "x" * 56), ("a_b", "a-b")],
)
def test_the_id_can_stand_in_a_url(http: TestClient, name: str, slug: str) -> None:
    found = http.post("/studies", json=study_file(name=name)).json()["study"]
    assert ID.fullmatch(found)
    assert found[:-7] == slug


def test_studies_of_the_same_trainer_share_a_plan_and_others_do_not(http: TestClient, use: Services) -> None:
    files = [STUDY, study_file(name="b", metric="loss"), study_file(seed=1), study_file(trainer="letters")]
    found = [use.find(http.post("/studies", json=file).json()["study"]).stream for file in files]
    assert found[0] == found[1]
    assert len(set(found)) == 3


def test_a_study_under_way(http: TestClient, tuned_study: str, workers: Workers) -> None:
    chain = workers.assign(tuned_study, 0)
    workers.beat(chain, 0, 7)
    shown = http.get(f"/studies/{tuned_study}").json()
    node = workers.plan(tuned_study).studies[tuned_study].trials[0].path[0]
    stage = {"slot": "gpu0", "study": tuned_study, "node": node, "start": 0, "end": 20, "step": 7, "since": 1.0}
    under_way = {**stage, "members": [], "trials": [0, 1], "trial_count": 2, "forms": {"bs": "64", "lr": "0.1"}}
    under_way |= {"proof": None}
    assert shown["progress"] == {
        "trials": {"done": 0, "resting": 0, "expected": 2},
        "steps": {"done": 7, "expected": 60},
        "seconds_left": None,
        "rungs": [],
        "last": None,
        "running": [under_way],
    }
    assert [trial["state"] for trial in shown["trials"]] == ["running", "running"]
    assert shown["steps"] == {"requested": 80, "unique": 60, "executed": 0}
    assert shown["merge_rate"] == 1.333
    assert shown["finished_at"] is None
    assert shown["wall_seconds"] >= 0


def test_one_step_of_many_says_nothing_of_the_time_that_is_left(http: TestClient, workers: Workers) -> None:
    """It took a second and a half, most of it a start. The steps under way say more, when they are done."""
    trials = [{"hp": {"lr": 0.1, "bs": 64}, "steps": 1}, {"hp": {"lr": 0.2, "bs": 64}, "steps": 1000}]
    study = study_file(tuner={"kind": "trials", "trials": trials})
    del study["space"]
    name = http.post("/studies", json=study).json()["study"]
    workers.tune(name)
    workers.finish(name, workers.assign(name, 0), {"accuracy": 0.9})
    workers.beat(workers.assign(name, 1), 0, 500)
    progress = http.get(f"/studies/{name}").json()["progress"]
    assert progress["steps"] == {"done": 501, "expected": 1001}
    assert progress["seconds_left"] is None


def test_a_study_with_results(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.9})
    workers.finish(tuned_study, workers.assign(tuned_study, 1), {"accuracy": 0.95})
    workers.close(tuned_study)
    shown = http.get(f"/studies/{tuned_study}").json()
    assert (shown["state"], shown["error"]) == ("completed", None)
    constant = {"family": "constant", "value": 0.1}
    hp = {"bs": {"family": "constant", "value": 64}, "lr": constant}
    results: dict[str, Any] = {name: {"step": 40, "value": 0.95} for name in ("last", "best")}
    results["exactness"] = shown["exactness"]["mark"].replace("trial 1", "it")
    assert results["exactness"].startswith("unchecked: it resumed from the state of step 20, which was not compared")
    assert shown["best"] == {"trial": 1, "value": 0.95, "steps": 40, "hp": hp, **results}
    stands = {"state": "completed", "standing": "trained to step 40", "rung": None, "rank": None}
    steps = {"steps": 40, "trained": 40}
    assert shown["trials"][1] == {"trial": 1, **stands, **steps, "value": 0.95, **results, "hp": hp}
    assert shown["counts"] == {
        "waiting": 0,
        "running": 0,
        "completed": 2,
        "pruned": 0,
        "failed": 0,
        "cancelled": 0,
    }
    assert shown["steps"] == {"requested": 80, "unique": 60, "executed": 60}
    parts = {"alone": 80, "stopped_early": 0, "unfinished": 0, "shared": 20, "known": 0, "run": 60, "taken": 80}
    again = dict.fromkeys(("repeated", "retried", "lost", "struck"), 0)
    saved = {"spared": 20, "saved_by_sharing": 0.25, "saved_by_stopping": 0}
    assert shown["cost"] == {**parts, **again, **saved}
    assert (shown["failed"], shown["failures"]) == (0, [])
    assert shown["gpu_seconds"] == 4.5
    assert shown["finished_at"] >= shown["submitted_at"]


def test_trials_can_be_left_out(http: TestClient, tuned_study: str) -> None:
    whole = http.get(f"/studies/{tuned_study}").json()
    short = http.get(f"/studies/{tuned_study}?trials=false").json()
    assert "trials" not in short
    assert short.keys() | {"spec", "trials"} == whole.keys()
    assert short["counts"]["waiting"] == 2


def test_the_etag_is_the_version_of_the_plan_and_saves_looking_again_at_what_is_over(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    path = f"/studies/{tuned_study}"
    running = http.get(path)
    assert running.headers["ETag"] == f'W/"{workers.plan(tuned_study).version}"'
    assert running.headers["Cache-Control"] == "no-cache"
    assert http.get(path, headers={"If-None-Match": running.headers["ETag"]}).status_code == 200
    http.post(f"{path}:cancel")
    over = http.get(path).headers["ETag"]
    again = http.get(path, headers={"If-None-Match": over})
    assert (again.status_code, again.content, again.headers["ETag"]) == (304, b"", over)
    assert http.get(path, headers={"If-None-Match": running.headers["ETag"]}).status_code == 200


def test_pause_resume_and_cancel_keep_the_list_in_step(http: TestClient, study: str, wake_ups: list[str]) -> None:
    for verb, state in [("pause", "paused"), ("pause", "paused"), ("resume", "running"), ("cancel", "cancelled")]:
        answer = http.post(f"/studies/{study}:{verb}")
        assert (answer.status_code, answer.json()["state"]) == (200, state)
        assert "trials" not in answer.json()
        assert http.get("/studies").json()["items"][0]["state"] == state
    assert len(wake_ups) == 5


def test_an_ended_study_cannot_be_changed(http: TestClient, study: str) -> None:
    http.post(f"/studies/{study}:cancel")
    for verb in ("pause", "resume"):
        refused = http.post(f"/studies/{study}:{verb}")
        assert refused.status_code == 409
        assert refused.json()["detail"] == f"study {study} is cancelled and cannot be changed any more"
    assert http.post(f"/studies/{study}:cancel").status_code == 200


def test_pages_of_studies_are_stable_under_writes(http: TestClient) -> None:
    first = [http.post("/studies", json=study_file(name=f"s{n}")).json()["study"] for n in range(5)]
    page = http.get("/studies?limit=2").json()
    assert [item["study"] for item in page["items"]] == [first[4], first[3]]
    http.post("/studies", json=study_file(name="new"))
    rest, cursor = [], page["next_cursor"]
    while cursor:
        page = http.get("/studies", params={"limit": 2, "cursor": cursor}).json()
        rest += [item["study"] for item in page["items"]]
        cursor = page["next_cursor"]
    assert rest == [first[2], first[1], first[0]]
    assert http.get("/studies?limit=6").json()["next_cursor"] is None


def test_a_listed_study(http: TestClient, study: str, use: Services) -> None:
    item = http.get("/studies").json()["items"][0]
    assert item.pop("submitted_at") > 1e9
    stream = use.find(study).stream
    assert item == {"study": study, "name": "Digits, again!", "state": "running", "plan": stream} | {
        "slots": {"used": 0, "due": None},
        "begins": "",
        "project": "",
        "owner": "",
        "tags": [],
    }


def test_a_preview_runs_nothing(http: TestClient, use: Services, wake_ups: list[str]) -> None:
    answer = http.post("/studies:preview?slots=2", json=STUDY)
    assert answer.status_code == 200, answer.text
    shown = answer.json()
    assert (shown["trials"], shown["requested"], shown["unique"], shown["merge_rate"]) == (2, 80, 60, 1.333)
    assert (shown["critical_path_steps"], shown["makespan_steps"]) == (40, 40)
    assert shown["time"] is None
    assert http.post("/studies:preview", json=STUDY).json()["makespan_steps"] == 60
    assert use.log.head() == 0
    assert wake_ups == []


def test_a_preview_tells_the_time_by_what_was_measured(http: TestClient, workers: Workers) -> None:
    """Four settings of 40 steps at 1.5 s each: similar ones take as long, and sharing takes less."""
    four = study_file(space={"lr": [0.1, 0.2, 0.4, 0.8], "bs": 64})
    study = http.post("/studies", json=four).json()["study"]
    workers.tune(study)
    for trial in range(4):
        workers.finish(study, workers.assign(study, trial), {"accuracy": 0.9})
    shown = http.post("/studies:preview?slots=2", json=study_file(space={"lr": [0.3, 0.5], "bs": 64})).json()
    measured = {"slot_seconds": 3.0, "makespan_seconds": 1.5, "settings": 4, "error": pytest.approx(0.0, abs=1e-6)}
    assert shown["time"] == measured
    other = http.post("/studies:preview", json=study_file(space={"lr": [0.3, 0.5]}, seed=1)).json()
    assert other["time"] is None, "another seed is another plan"


# ---------------------------------------------------------------------------------------------------------- once only


def test_the_same_key_and_body_is_one_study_and_one_answer(http: TestClient, workers: Workers) -> None:
    first = http.post("/studies", json=STUDY, headers={"Idempotency-Key": "k"})
    workers.tune(first.json()["study"])
    again = http.post("/studies", json=STUDY, headers={"Idempotency-Key": "k"})
    assert (again.status_code, again.content) == (201, first.content)
    assert again.headers["Location"] == first.headers["Location"]
    assert len(http.get("/studies").json()["items"]) == 1


def test_the_same_key_with_another_body_or_path_is_refused(http: TestClient, study: str) -> None:
    headers = {"Idempotency-Key": "k"}
    http.post("/studies", json=STUDY, headers=headers)
    for path, body in [("/studies", study_file(seed=1)), (f"/studies/{study}:pause", None)]:
        refused = http.post(path, json=body, headers=headers)
        assert refused.status_code == 422
        assert refused.json()["detail"] == "This idempotency key was used before, with another request."
    assert http.get(f"/studies/{study}").json()["state"] == "running"


def test_the_same_key_with_another_query_is_refused(http: TestClient, workers: Workers) -> None:
    """A request may be in the query."""
    growing = study_file(space={"lr": {"uniform": [0, 1]}}, tuner={"kind": "random", "num_trials": 1, "max_steps": 40})
    study = http.post("/studies", json=growing).json()["study"]
    workers.tune(study)
    workers.finish(study, workers.assign(study, 0), {"accuracy": 0.5})
    workers.close(study)
    headers = {"Idempotency-Key": "k"}
    assert http.post(f"/studies/{study}:reopen?num_trials=2", headers=headers).json()["state"] == "running"
    assert http.post(f"/studies/{study}:reopen?num_trials=2", headers=headers).status_code == 200
    assert http.post(f"/studies/{study}:reopen?num_trials=9", headers=headers).status_code == 422


def test_without_a_key_each_post_is_a_study(http: TestClient) -> None:
    assert http.post("/studies", json=STUDY).json()["study"] != http.post("/studies", json=STUDY).json()["study"]


def test_a_refused_request_leaves_its_key_free(http: TestClient) -> None:
    headers = {"Idempotency-Key": "k"}
    assert http.post("/studies", json=study_file(trainer="x"), headers=headers).status_code == 422
    assert http.post("/studies", json=STUDY, headers=headers).status_code == 201


@pytest.mark.parametrize("key", ["", "a b", "ü", "x" * 256])
def test_a_key_that_is_none(http: TestClient, key: str) -> None:
    refused = http.post("/studies", json=STUDY, headers={"Idempotency-Key": key.encode()})
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "Idempotency-Key"
    assert "must be 1 to 255 visible ASCII characters, without spaces, got" in refused.json()["detail"]


def _post(http: TestClient) -> Any:
    return http.post(f"{API}/studies", json=STUDY, headers={"Idempotency-Key": "k"})


def test_posts_at_once_with_one_key_are_one_study(make_app: MakeApp, database_url: str) -> None:
    """In two processes, as far as the database can tell: each application has connections and plans of its own."""
    apps = [make_app(database_url), make_app(database_url)]
    with TestClient(apps[0]) as one, TestClient(apps[1]) as two, ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(_post, [one, two] * 8))
        assert {answer.status_code for answer in answers} == {201}
        assert len({answer.content for answer in answers}) == 1
        assert len(one.get(f"{API}/studies").json()["items"]) == 1


def test_a_whole_life_on_each_database(make_app: MakeApp, database_url: str) -> None:
    app = make_app(database_url)
    with TestClient(app, base_url=f"http://test{API}") as http:
        workers = Workers(app.state.services)
        workers.look()
        study = http.post("/studies", json=STUDY, headers={"Idempotency-Key": "k"}).json()["study"]
        workers.tune(study)
        http.post(f"/studies/{study}/trials", json={"hp": {"lr": 0.1, "bs": 64}, "steps": 50})
        for trial in range(3):
            workers.finish(study, workers.assign(study, trial), {"accuracy": trial / 10})
        workers.close(study)
        shown = http.get(f"/studies/{study}").json()
        assert (shown["state"], shown["best"]["trial"], shown["steps"]["executed"]) == ("completed", 2, 70)
        events = http.get(f"/studies/{study}/events?limit=1000").json()["items"]
        assert [event["position"] for event in events] == list(range(1, app.state.services.log.head()))
        assert http.get("/slots").json()["items"][0]["state"] == "idle"
        assert http.get("http://test/readyz").status_code == 200


def test_an_id_that_is_taken_is_not_given_again(http: TestClient, use: Services, app: FastAPI) -> None:
    ids = iter(["seed0", "aaaaaa", "seed1", "aaaaaa", "bbbbbb"])  # draws have an id of their own
    app.state.services = replace(use, new_id=lambda: next(ids))
    found = [http.post("/studies", json=study_file(name="x", seed=n)).json()["study"] for n in range(2)]
    assert found == ["x-aaaaaa", "x-bbbbbb"]


def test_the_list_follows_the_log_when_another_process_closes_a_study(
    http: TestClient, study: str, use: Services, workers: Workers
) -> None:
    workers.decide(study, c.FailStudy(study=study, error="the tuner failed", at=2e9))
    assert http.get("/studies").json()["items"][0]["state"] == "failed"
    shown = http.get(f"/studies/{study}").json()
    assert (shown["state"], shown["error"]) == ("failed", "the tuner failed")


@pytest.mark.slow
def test_a_replay_up_to_before_the_study_is_refused(http: TestClient, tuned_study: str) -> None:
    other = http.post("/studies", json=STUDY).json()["study"]
    answer = http.post(f"/studies/{other}:replay?at=0")
    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "at"
    assert http.post(f"/studies/{other}:replay?at=1").json()["events"] == 5


def test_studies_are_filtered(http: TestClient, tuned_study: str) -> None:
    others = [http.post("/studies", json=study_file(name=f"n{number % 2}")).json()["study"] for number in range(4)]
    http.post(f"/studies/{others[3]}:cancel")

    def matching_studies(query: str) -> list[str]:
        return [study["study"] for study in http.get(f"/studies?{query}").json()["items"]]

    assert matching_studies("state=cancelled") == [others[3]]
    assert set(matching_studies("name=n0")) == {others[0], others[2]}
    assert matching_studies("name=n1&state=running") == [others[1]]
    first = http.get("/studies?name=n0&limit=1").json()
    rest = http.get(f"/studies?name=n0&limit=1&cursor={first['next_cursor']}").json()
    assert {first["items"][0]["study"], rest["items"][0]["study"]} == {others[0], others[2]}
    assert rest["next_cursor"] is None
    assert http.get("/studies?state=done").status_code == 422


def test_how_far_a_study_will_go_is_reckoned_while_nobody_is_kept_from_its_plan(
    http: TestClient, use: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes seconds for a large study, and blocked submissions and reads of the plan."""
    tuner = {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3}
    study = http.post("/studies", json=study_file(tuner=tuner)).json()["study"]
    stream, reckoned = use.find(study).stream, list[int]()

    def forecast_beside(spec: dict[str, Any]) -> Forecast | None:
        with ThreadPoolExecutor(1) as other:
            other.submit(use.plans.get, stream).result(timeout=60)
        found = forecast(spec)
        assert found is not None
        reckoned.append(found.steps)
        return found

    monkeypatch.setattr("app.simulation.forecast.forecast", forecast_beside)
    for moment in ("", "?at=1"):
        shown = http.get(f"/studies/{study}{moment}").json()["progress"]
        assert shown["steps"]["expected"] == reckoned[-1] > 0
    assert len(reckoned) == 2


def test_a_study_names_only_sinks_that_are_configured(http: TestClient) -> None:
    refused = http.post("/studies", json=study_file(sinks=["tensorboard:runs", "mlflow:http://169.254.169.254/"]))
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "sinks[1]"
    assert "which the operator has configured (STAGETREE_SINKS)" in refused.json()["detail"]
    assert http.post("/studies", json=study_file(sinks=["tensorboard:runs"])).status_code == 201


def test_a_study_whose_tuner_cannot_begin_is_refused(http: TestClient) -> None:
    lr = {"family": "wsd", "peak": 0.05, "warmup": 0, "stable_until": 6, "decay": 4, "final": {"choice": [0, 0.05]}}
    body = study_file(space={"lr": lr, "max_steps": {"end": "lr"}}, tuner={"kind": "grid"})
    for where in ("/studies", "/studies:preview"):
        answer = http.post(where, json=body)
        assert answer.status_code == 422
        (error,) = answer.json()["errors"]
        assert error["field"] == "space.max_steps.end" and "lr never does where it is " in str(error)
    assert http.get("/studies").json()["items"] == []
