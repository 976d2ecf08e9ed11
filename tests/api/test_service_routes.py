"""The service itself: slots, health, readiness, numbers."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from assignments import stage, work
from fastapi import FastAPI
from fastapi.testclient import TestClient
from sqlalchemy import Engine, make_url, text

from app.domain import commands as c
from app.domain.chain_assignment import VerificationOrder
from app.domain.terms import StudyId
from app.events.database import Database
from app.main import create_app
from app.registry import TrainerFileError
from app.service import health
from app.service.health import Checks
from app.service.services import Services
from app.settings import Settings
from tests.api.world import STUDY, MakeApp, Workers, study_file


def test_slots(http: TestClient, tuned_study: str, workers: Workers, use: Services) -> None:
    assert http.get("/slots").json() == {"items": [], "next_cursor": None}
    chain = workers.assign(tuned_study, 1, "gpu1")
    workers.beat(chain, 0, 9)
    with use.records.write() as rows:
        rows.slots.take("gpu0", "worker", instead_of=None, device="cuda:0", host="there", pid=2)
    idle, busy = http.get("/slots").json()["items"]
    assert idle.pop("seen_at") > 1e9
    assert idle == {
        "name": "gpu0",
        "device": "cuda:0",
        "host": "there",
        "state": "idle",
        "note": None,
        "quarantined_until": None,
        "trainers": {},
        "chain": None,
        "stage": None,
        "study": None,
        "kind": "",
        "lent_to": None,
        "estimate_error": None,
    }
    assert (busy["name"], busy["state"], busy["chain"], busy["study"]) == ("gpu1", "busy", chain, tuned_study)
    node = workers.plan(tuned_study).studies[tuned_study].trials[1].path[0]
    assert busy["stage"] == {"node": node, "start": 0, "end": 40, "step": 9, "proof": None}
    workers.beat(chain, 1, 40)
    assert http.get("/slots").json()["items"][1]["stage"] is None


def test_a_slot_that_verifies_says_so(http: TestClient, tuned_study: str, workers: Workers, use: Services) -> None:
    """It was shown like one that trains."""
    node = workers.plan(tuned_study).studies[tuned_study].trials[1].path[0]
    with use.records.write() as rows:
        rows.slots.take("gpu0", "worker", instead_of=None, device="cuda:0", host="there", pid=2)
        order = work(stage(node, 0, 40, tuned_study), proof=VerificationOrder("whole"))
        rows.chains.assign("proof", workers.stream(tuned_study), "gpu0", order, 600)
    assert http.get("/slots").json()["items"][0]["stage"]["proof"] == "whole"


def test_what_a_slot_waits_for_is_said_of_the_study_and_of_the_trials_that_need_it(
    http: TestClient, tuned_study: str, workers: Workers, use: Services
) -> None:
    """The trial was shown as waiting for a slot, while the only slot waited for a disk."""
    before = http.get(f"/studies/{tuned_study}").json()
    standing = http.get(f"/studies/{tuned_study}/trials/1").json()["standing"]
    chain = workers.assign(tuned_study, 1, "gpu1")
    assert "waits_for" not in before
    with use.records.write() as rows:
        rows.slots.describe("gpu1", "worker", trainers={}, note="waits for the store: no route")
    text = "slot gpu1: waits for the store: no route"
    assert http.get(f"/studies/{tuned_study}").json()["waits_for"] == [text]
    assert http.get(f"/studies/{tuned_study}/trials/1").json()["standing"].endswith(f"; {text}")
    for query in ("", "?sort=-steps"):
        shown = {each["trial"]: each for each in http.get(f"/studies/{tuned_study}/trials{query}").json()["items"]}
        assert shown[1]["standing"].endswith(f"; {text}")
    workers.finish(tuned_study, chain, {"accuracy": 0.5})
    assert "waits_for" not in http.get(f"/studies/{tuned_study}").json()
    assert "slot gpu1" not in http.get(f"/studies/{tuned_study}/trials/1").json()["standing"] + standing


def test_a_study_says_that_no_slot_has_its_trainer(
    http: TestClient, tuned_study: str, workers: Workers, use: Services
) -> None:
    """Only the scheduler's log told why it waited."""
    workers.look()
    assert "waits_for" not in http.get(f"/studies/{tuned_study}").json(), "the slot has not described itself yet"
    for trainers, has in (({"digits": "2"}, "at version 2"), ({"other": "1"}, "they do not have it at any version")):
        describe(use, trainers)
        (text,) = http.get(f"/studies/{tuned_study}").json()["waits_for"]
        assert text.startswith("no slot has trainer digits at version 1: ") and text.endswith(has)
    describe(use, {"digits": "1"})
    assert "waits_for" not in http.get(f"/studies/{tuned_study}").json()


def test_an_audit_says_what_it_waits_for(
    http: TestClient, app: FastAPI, tuned_study: str, workers: Workers, use: Services
) -> None:
    def waits() -> list[str]:
        found: list[str] = http.get(f"/studies/{tuned_study}").json().get("waits_for", [])
        return found

    chain = workers.assign(tuned_study, 1, "gpu1")
    workers.finish(tuned_study, chain, {"accuracy": 0.5})
    http.post(f"/studies/{tuned_study}:cancel")
    with use.records.write() as rows:
        rows.slots.retire("gpu1", "worker")
    assert waits() == [], "no audit is requested"
    app.state.services = replace(use, proofs=True)
    assert http.post(f"/studies/{tuned_study}:audit").json()["exactness"]["audited"]
    assert waits() == ["the audit waits: no slot is at work"]
    workers.look()
    describe(use, {"digits": "2"})
    assert waits() == ["the audit waits: no slot has trainer digits at version 1: they have it at version 2"]
    describe(use, {"digits": "1"})
    assert waits() == []
    other = http.post("/studies", json=study_file(name="other", seed=1)).json()["study"]
    workers.tune(other)
    workers.assign(other, 0)
    assert waits() == ["the audit waits for a slot that has nothing else to do"]
    workers.decide(tuned_study, c.EndAudit(study=StudyId(tuned_study), at=2.0))
    assert waits() == []


def test_a_study_says_on_which_slots_its_trainer_fails(
    http: TestClient, tuned_study: str, workers: Workers, use: Services
) -> None:
    workers.look()
    describe(use, {"digits": "1"})
    plan = workers.plan(tuned_study)
    for root in plan.roots:
        plan.check_failures[root] = {"error": "Traceback\nModuleNotFoundError: no module named 'timm'"}
    (text,) = http.get(f"/studies/{tuned_study}").json()["waits_for"]
    assert text.endswith("so those slots train nothing of it: ModuleNotFoundError: no module named 'timm'")


def test_where_proofs_are_switched_off_an_audit_is_refused(
    http: TestClient, app: FastAPI, tuned_study: str, use: Services
) -> None:
    """It would have waited for ever."""
    app.state.services = replace(use, proofs=False)
    answer = http.post(f"/studies/{tuned_study}:audit")
    assert answer.status_code == 409
    assert answer.json()["detail"] == "nothing is compared here: STAGETREE_PROOFS is false"


def test_a_study_says_for_which_kind_of_gpu_it_waits(
    http: TestClient, tuned_study: str, workers: Workers, use: Services
) -> None:
    def record_activity(kind: str) -> None:
        with use.records.write() as rows:
            before = rows.slots.get("gpu0")
            owner = before and before.owner
            rows.slots.take("gpu0", "worker", instead_of=owner, device="cuda:0", host="here", pid=1, kind=kind)
            rows.slots.describe("gpu0", "worker", trainers={"digits": "1"}, note=None)

    record_activity("NVIDIA H100")
    assert "waits_for" not in http.get(f"/studies/{tuned_study}").json()
    named = http.post("/studies", json=study_file(name="named", devices=["A100"])).json()["study"]
    text = "no slot is of its devices, A100: those at work are NVIDIA H100"
    assert http.get(f"/studies/{named}").json()["waits_for"] == [text]
    plan = workers.plan(tuned_study)
    plan.nodes[plan.studies[StudyId(tuned_study)].trials[0].path[0]].gpu = "NVIDIA A100"
    plan.gpus.add("NVIDIA A100")
    (text,) = http.get(f"/studies/{tuned_study}").json()["waits_for"]
    assert text.startswith("trials that began on NVIDIA A100 wait for such a slot: those at work are NVIDIA H100;")
    assert "`devices: [NVIDIA A100, NVIDIA H100]`" in text
    record_activity("NVIDIA A100")
    assert "waits_for" not in http.get(f"/studies/{tuned_study}").json()


def describe(use: Services, trainers: dict[str, str]) -> None:
    with use.records.write() as rows:
        rows.slots.describe("gpu0", "worker", trainers=trainers, note=None)


def test_the_api_is_alive_without_a_database(make_app: MakeApp) -> None:
    with TestClient(make_app("sqlite:////nowhere/log.db")) as http:
        assert http.get("/healthz").json() == {"status": "ok"}


WELL = {"database": "ok", "schema": "ok", "broker": "ok", "store": "ok", "scheduler": "ok", "slots": "ok"}


@pytest.fixture
def record_activity(workers: Workers) -> None:
    """A scheduler has looked just now, and a slot is alive."""
    workers.look()


def not_ready(http: TestClient) -> dict[str, str]:
    """The failed checks, by name."""
    answer = http.get("http://test/readyz")
    assert answer.status_code == 503
    assert answer.headers["content-type"] == "application/problem+json"
    wrong = {name: said for name, said in answer.json()["checks"].items() if said != "ok"}
    assert answer.json()["detail"] == f"Not ready: {'; '.join(map(': '.join, wrong.items()))}"
    return wrong


def test_the_api_is_ready(http: TestClient, record_activity: None) -> None:
    answer = http.get("http://test/readyz")
    assert answer.status_code == 200
    assert answer.json() == {"status": "ok", "checks": WELL}


def test_the_api_is_not_ready_without_a_scheduler_and_a_slot(http: TestClient) -> None:
    assert not_ready(http) == {"scheduler": "no scheduler was ever heard of", "slots": "no slot is at work"}


def test_the_api_is_not_ready_when_heartbeats_stop(http: TestClient, record_activity: None, use: Services) -> None:
    with use.records.database.write() as session:
        session.execute(text("UPDATE schedulers SET ticked_at = ticked_at - 100"))
        session.execute(text("UPDATE slots SET seen_at = seen_at - 100"))
    wrong = not_ready(http)
    assert wrong["scheduler"].startswith("no scheduler was heard of for 10")
    assert wrong["slots"] == "no slot is at work"
    assert http.get("/slots").json()["items"][0]["state"] == "lost"


def test_the_api_is_not_ready_with_only_a_quarantined_slot(
    http: TestClient, record_activity: None, use: Services
) -> None:
    with use.records.write() as rows:
        rows.slots.quarantine("gpu0", "worker", seconds=60.0, reason="three failures in a row")
    assert not_ready(http) == {"slots": "no slot is at work; gpu0: three failures in a row"}
    [slot] = http.get("/slots").json()["items"]
    assert (slot["state"], slot["note"]) == ("quarantined", "three failures in a row")


def test_the_api_is_not_ready_on_a_read_only_database(
    make_app: MakeApp, postgres_url: str, postgres_admin: Engine
) -> None:
    with postgres_admin.connect() as connection:
        name = make_url(postgres_url).database
        connection.execute(text(f'ALTER DATABASE "{name}" SET default_transaction_read_only = on'))
    with TestClient(make_app(postgres_url)) as http:
        assert "read-only" in not_ready(http)["database"]
        problem = http.post("http://test/api/v1/studies", json=STUDY)
        assert (problem.status_code, problem.headers["retry-after"]) == (503, "1")


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that does not answer is not waited for long, as its callers do not wait long either."""
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 1.0)


@pytest.mark.slow
@pytest.mark.usefixtures("impatient")
def test_the_api_is_not_ready_without_its_store(trainers: str, sqlite_url: str) -> None:
    url = "s3://bucket/x?endpoint_url=nowhere"
    where = {"database_url": sqlite_url, "broker_url": "memory://", "checkpoints": url}
    settings = Settings(trainers=trainers, hosts="test", **where)
    with pytest.MonkeyPatch.context() as patch, TestClient(create_app(settings)) as http:
        patch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        patch.setenv("AWS_ACCESS_KEY_ID", "unknown")
        patch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
        assert not_ready(http)["store"]


def test_the_api_is_not_ready_on_a_full_disk(sqlite_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slots wait for room, and followers of a study see the reason: reading needs no room."""
    monkeypatch.setattr(health, "LEAST_FREE", 2**80)  # more than there is
    where = {"database_url": sqlite_url, "broker_url": "memory://", "checkpoints": str(tmp_path / "none" / "yet")}
    with TestClient(create_app(Settings(hosts="test", **where))) as http:
        wrong = not_ready(http)
    folder = Path(str(make_url(sqlite_url).database)).parent
    assert wrong["database"].startswith(f"the disk of {folder} is full: ")
    assert wrong["store"].startswith(f"the disk of {tmp_path} is full: ")


def test_the_api_is_not_ready_on_an_empty_database(make_app: MakeApp, empty_url: str) -> None:
    with TestClient(make_app(empty_url)) as http:
        problem = not_ready(http)
        assert problem["schema"].startswith("the database's schema is at nothing, and must be at ")
        assert "broker" not in problem
    Database(empty_url).create()
    with TestClient(make_app(empty_url)) as http:
        assert not_ready(http).keys() == {"scheduler", "slots"}


@pytest.mark.usefixtures("impatient")
def test_the_api_is_not_ready_without_its_broker(sqlite_url: str) -> None:
    url = "redis://:hidden1@127.0.0.1:1/0"
    with TestClient(create_app(Settings(database_url=sqlite_url, broker_url=url, hosts="test"))) as http:
        why = not_ready(http)["broker"]  # the client tries again for about as long as it is given
    assert any(word in why for word in ("refused", "did not answer", "Timeout"))
    assert "hidden" not in why


def test_a_hanging_server_is_probed_once_without_a_wait(
    http: TestClient, app: FastAPI, use: Services, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(health, "PATIENCE_SECONDS", 0.1)
    asked, answered = list[int](), threading.Event()

    def hang() -> None:
        asked.append(1)
        answered.wait(30)

    app.state.services = replace(use, checks=Checks({"broker": hang}))
    for _ in range(3):
        assert not_ready(http) == {"broker": "did not answer within 0.1 s"}
    assert len(asked) == 1
    answered.set()


def test_numbers(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    workers.assign(tuned_study, 1)
    other = http.post("/studies", json=study_file(seed=1)).json()["study"]
    http.post(f"/studies/{other}:pause")
    answer = http.get("http://test/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    lines = answer.text.splitlines()
    for line in (
        'stagetree_studies{state="running"} 1',
        'stagetree_studies{state="paused"} 1',
        'stagetree_studies{state="failed"} 0',
        'stagetree_slots{state="busy"} 1',
        'stagetree_slots{state="idle"} 0',
        'stagetree_chains{state="running"} 1',
        'stagetree_ready{check="database"} 1',
        'stagetree_ready{check="scheduler"} 0',
        f"stagetree_log_head {workers.use.log.head()}",
        "stagetree_lost_commits 0",
        "# TYPE stagetree_log_head gauge",
    ):
        assert line in lines


def test_a_trainer_file_that_cannot_be_used_keeps_the_server_from_starting(sqlite_url: str) -> None:
    with pytest.raises(TrainerFileError, match=r"nowhere\.py"):
        create_app(Settings(database_url=sqlite_url, trainers="nowhere.py"))


def test_numbers_do_not_look_at_any_plan(http: TestClient, tuned_study: str, use: Services, app: FastAPI) -> None:
    app.state.services = replace(use, plans=SimpleNamespace(losses=0))  # type: ignore[arg-type]
    assert http.get("http://test/metrics").status_code == 200


def test_a_lent_slot_says_to_which_trial(http: TestClient, tuned_study: str, workers: Workers, use: Services) -> None:
    chain = workers.assign(tuned_study, 1, "gpu1")
    with use.records.write() as rows:
        rows.slots.take("gpu0", "worker", instead_of=None, device="cuda:0", host="there", pid=2, kind="H200")
        found = rows.chains.get(chain)
        assert found is not None
        rows.chains.end(chain)
        work = replace(found.assignment, members=("gpu0",), study=tuned_study, trial=1)
        rows.chains.assign("gang", found.stream, "gpu1", work, 60.0)
    lent, _ = http.get("/slots").json()["items"]
    assert (lent["state"], lent["chain"], lent["kind"]) == ("lent", None, "H200")
    assert lent["lent_to"] == {"slot": "gpu1", "chain": "gang", "study": tuned_study, "trial": 1}


def test_demand_is_as_the_scheduler_said_last(http: TestClient, use: Services) -> None:
    with use.records.write() as rows:
        rows.schedulers.record_tick("me", "here", 1, {"busy": 3, "more": 5, "idle": ["gpu3"]})
    said = http.get("/demand").json()
    assert said.pop("at") > 1e9
    assert said == {"busy": 3, "more": 5, "wanted": 8, "idle": ["gpu3"], "busy_by_kind": {}, "more_by_kind": {}}
    numbers = http.get("http://test/metrics").text
    assert 'stagetree_demand{slots="more"} 5' in numbers and 'stagetree_demand{slots="busy"} 3' in numbers


def test_demand_for_one_kind_of_gpu(http: TestClient, use: Services) -> None:
    """Each of several autoscalers hears of its own, and one of them of what any kind may have."""
    h100, a100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"
    by_kind = {"busy_by_kind": {h100: 2, a100: 1}, "more_by_kind": {"H100": 3, a100: 4, "": 5, "L40S": 6}}
    with use.records.write() as rows:
        for slot, kind in (("a-gpu0", a100), ("h-gpu0", h100)):
            rows.slots.take(slot, "me", instead_of=None, device=kind, host="here", pid=1, kind=kind)
        said = {"busy": 3, "more": 18, "idle": ["a-gpu0", "h-gpu0"]} | by_kind
        rows.schedulers.record_tick("me", "here", 1, said)

    def demand(**asked: Any) -> tuple[int, list[str]]:
        found = http.get("/demand", params=asked).json()
        assert found["wanted"] == found["busy"] + found["more"]
        return found["wanted"], found["idle"]

    assert demand() == (21, ["a-gpu0", "h-gpu0"])
    assert demand(kind="H100") == (5, ["h-gpu0"])
    assert demand(kind="a100", any=True) == (10, ["a-gpu0"])
    assert demand(kind="L40S 48GB") == (6, [])
    assert demand(kind="B200") == (0, [])


def test_an_old_demand_is_dropped_without_a_live_scheduler(http: TestClient, use: Services) -> None:
    """An autoscaler without an answer leaves the number of slots unchanged."""
    with use.records.write() as rows:
        rows.schedulers.record_tick("me", "here", 1)
    assert http.get("/demand").status_code == 503, "an older scheduler says nothing of it"
    with use.records.write() as rows:
        rows.schedulers.record_tick("me", "here", 1, {"busy": 0, "more": 0, "idle": []})
    with use.records.database.write() as session:  # type: ignore[attr-defined]
        session.execute(text("UPDATE schedulers SET ticked_at = ticked_at - 1000"))
    answer = http.get("/demand")
    assert answer.status_code == 503 and "no scheduler has said of late" in answer.json()["detail"]
    assert "stagetree_demand{" not in http.get("http://test/metrics").text


def test_a_study_delayed_by_an_error_shows_it_in_views_and_metrics(
    http: TestClient, tuned_study: str, workers: Workers, use: Services
) -> None:
    texts = {
        tuned_study: f"study {tuned_study} cannot be scheduled: KeyError: 'x'",
        workers.stream(tuned_study): "plan p cannot be used",
    }
    assert "stagetree_held_up 0" in http.get("http://test/metrics").text
    with use.records.write() as rows:
        rows.schedulers.record_tick("me", "here", 1, held_up=texts)
    assert http.get(f"/studies/{tuned_study}").json()["waits_for"] == [*texts.values()]
    other = http.post("/studies", json=study_file(trainer="letters")).json()["study"]
    assert "waits_for" not in http.get(f"/studies/{other}").json()
    assert "stagetree_held_up 2" in http.get("http://test/metrics").text
    http.post(f"/studies/{tuned_study}:cancel")
    assert "waits_for" not in http.get(f"/studies/{tuned_study}").json()
