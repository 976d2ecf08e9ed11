"""The weights of a trial over HTTP, and studies that are deleted."""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

import pytest
import torch
from fastapi.testclient import TestClient
from safetensors.torch import load, load_file

from app.domain import events as e
from app.domain.terms import StudyId, Unknown
from app.service.files import kept_state
from app.service.services import Services
from app.storage.object_store import PART, open_store
from app.workers.state import State
from stagetree import AsyncStudy, Client, Conflict, NotFound, Study, load_state
from stagetree.runtime.checkpoints import state_format
from tests.api.world import Workers
from tests.plans import METRIC, Story

WEIGHTS = {"weight": torch.arange(12.0).reshape(3, 4), "bias": torch.ones(3)}


@pytest.fixture
def store(use: Services, tmp_path: Path) -> Iterator[Path]:
    use.__dict__["store"] = open_store(str(tmp_path / "checkpoints"))
    yield tmp_path / "checkpoints"


def keep(use: Services, workers: Workers, study: str, number: int, state: object = None) -> e.CheckpointKept:
    """The last state of a trial is stored."""
    model = {"model": WEIGHTS if state is None else state, "epoch": 3}
    written = State(*state_format.write({"trainer": model, "generators": {}}))
    image = bytes(written.view())
    written.close()
    trial = workers.plan(study).studies[StudyId(study)].trials[number]
    key = f"p/{trial.path[-1]}/{trial.steps}.safetensors"
    use.store.write(key, [memoryview(image)])
    digest = sha256(image).hexdigest()
    return e.CheckpointKept(node=trial.path[-1], step=trial.steps, key=key, sha256=digest, size=len(image))


@pytest.fixture
def trained_study(tuned_study: str, use: Services, workers: Workers, store: Path) -> str:
    """A study both of whose trials are trained; the second is the better one."""
    for number, value in ((0, 0.5), (1, 0.75)):
        kept = keep(use, workers, tuned_study, number)
        workers.finish(tuned_study, workers.assign(tuned_study, number), {"accuracy": value}, kept)
    return tuned_study


def test_the_weights_of_the_best_trial_are_a_safetensors_file(http: TestClient, trained_study: str) -> None:
    answer = http.get(f"/studies/{trained_study}/checkpoint")
    assert answer.status_code == 200, answer.text
    assert (
        answer.headers["content-disposition"] == f'attachment; filename="{trained_study}-trial-1-step-40.safetensors"'
    )
    assert answer.headers["content-type"] == "application/octet-stream"
    found = load(answer.content)
    assert found.keys() == WEIGHTS.keys()
    assert all(torch.equal(found[name], WEIGHTS[name]) for name in WEIGHTS)


def test_a_trial_and_a_step_can_be_named(http: TestClient, trained_study: str) -> None:
    answer = http.get(f"/studies/{trained_study}/checkpoint?trial=0&step=40")
    assert "trial-0-step-40" in answer.headers["content-disposition"]
    refused = http.get(f"/studies/{trained_study}/checkpoint?trial=0&step=7")
    assert refused.status_code == 404
    assert refused.json()["detail"].startswith("the state of trial 0 after step 7 is not kept; the steps that are: ")
    assert http.get(f"/studies/{trained_study}/checkpoint?holds=all").status_code == 422


def test_where_the_best_step_has_no_state_it_is_said_what_keeps_one() -> None:
    story = Story()
    study = story.submit(({"lr": 0.1}, 10), value="best", eval_every=5)
    for step, value in ((5, 0.9), (10, 0.1)):
        story.happen(e.Evaluated(node=story.path(study, 0)[-1].id, step=step, metrics={METRIC: value}))
    with pytest.raises(Unknown, match=r"\Ano state of trial 0 is kept\Z"):
        kept_state(story.plan, story.plan.studies[study], None, 7)
    story.keep(story.path(study, 0)[-1].id, 10)
    with pytest.raises(Unknown, match=r"after step 5 is not kept; .*; keep_every in the study file has"):
        kept_state(story.plan, story.plan.studies[study], None, None)
    with pytest.raises(Unknown, match=r"after step 7 is not kept; the steps that are: 10$"):
        kept_state(story.plan, story.plan.studies[study], None, 7)


def test_damaged_and_deleted_checkpoints_are_refused_before_any_byte(
    http: TestClient, trained_study: str, store: Path
) -> None:
    [path] = [path for path in store.rglob("*.safetensors") if "/40" in str(path)][-1:]
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    answers = [http.get(f"/studies/{trained_study}/checkpoint?trial={number}") for number in (0, 1)]
    assert sorted(answer.status_code for answer in answers) == [200, 404]
    assert "is damaged" in next(answer.json()["detail"] for answer in answers if answer.status_code == 404)
    path.unlink()
    answers = [http.get(f"/studies/{trained_study}/checkpoint?trial={number}") for number in (0, 1)]
    said = next(answer.json()["detail"] for answer in answers if answer.status_code == 404)
    assert "is not in the store any more" in said


def test_a_store_outage_is_no_deleted_checkpoint(http: TestClient, trained_study: str, store: Path) -> None:
    store.rename(store.with_name("elsewhere"))
    answer = http.get(f"/studies/{trained_study}/checkpoint")
    assert answer.status_code == 503 and "is it mounted?" in answer.json()["detail"]


def test_large_tensors_come_in_parts(
    http: TestClient, tuned_study: str, use: Services, workers: Workers, store: Path
) -> None:
    large = {"weight": torch.arange(PART // 4 + 100, dtype=torch.float32)}
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    workers.record(tuned_study, keep(use, workers, tuned_study, 0, large))
    assert torch.equal(load(http.get(f"/studies/{tuned_study}/checkpoint").content)["weight"], large["weight"])


def test_the_client_writes_it_to_a_folder(server: str, trained_study: str, tmp_path: Path) -> None:
    with Client(server) as client:
        path = client.checkpoint(trained_study, tmp_path / "best")
        assert path == tmp_path / "best" / f"{trained_study}-trial-1-step-40.safetensors"
        assert torch.equal(load_file(path)["weight"], WEIGHTS["weight"])
        state = load_state(client.checkpoint(trained_study, tmp_path / "whole", trial=0, holds="state"))
        assert state["epoch"] == 3 and torch.equal(state["model"]["bias"], WEIGHTS["bias"])
        with pytest.raises(NotFound, match="is not kept"):
            client.checkpoint(trained_study, tmp_path, step=3)
    with Study.open(trained_study, url=server) as study:
        assert study.checkpoint(tmp_path).exists()
    assert not list(tmp_path.rglob("*.partial"))
    assert AsyncStudy.checkpoint.__doc__


def test_a_study_that_is_over_can_be_deleted(
    http: TestClient, trained_study: str, use: Services, tmp_path: Path
) -> None:
    refused = http.delete(f"/studies/{trained_study}")
    assert refused.status_code == 409
    assert refused.json()["detail"] == f"study {trained_study} is running: cancel it before it is deleted"
    http.post(f"/studies/{trained_study}:cancel")
    assert http.delete(f"/studies/{trained_study}").status_code == 204
    assert http.get(f"/studies/{trained_study}").status_code == 404
    assert http.delete(f"/studies/{trained_study}").status_code == 404
    assert http.get("/studies").json()["items"] == []


@pytest.mark.slow
def test_others_that_share_its_plan_lose_nothing(
    http: TestClient, trained_study: str, workers: Workers, server: str
) -> None:
    from tests.api.world import study_file

    other = http.post("/studies", json=study_file(name="other")).json()["study"]
    workers.tune(other)
    before = http.get(f"/studies/{other}").json()
    with Client(server) as client:
        with pytest.raises(Conflict, match="cancel it before it is deleted"):
            client.delete(trained_study)
        client.cancel(trained_study)
        client.delete(trained_study)
    after = http.get(f"/studies/{other}").json()
    assert after["best"] == before["best"] and after["trials"] == before["trials"]
    assert http.get(f"/studies/{other}/plan").json()["studies"] == [other]
    assert http.post(f"/studies/{other}:replay").json()["identical"]
