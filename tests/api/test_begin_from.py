"""Studies with `begin_from` and `inputs` over REST: lookups, refusals and views."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from blocked_files import KINDS, block_opening, make, needs_leases
from fastapi import FastAPI
from fastapi.testclient import TestClient
from safetensors.torch import save_file
from stacks import Json
from torch.distributed import checkpoint

from app.domain import events as e
from app.domain.terms import ChainId, NodeId, StudyId, VerificationKind
from app.input_reader import InputReader
from app.service import submission
from app.service.services import Services
from app.storage.object_store import open_store
from app.undeclared_inputs import record_undeclared
from stagetree import load_weights
from tests.api.test_checkpoint_routes import keep
from tests.api.world import API, Workers, study_file

TRAINERS = """
from stagetree import Trainer, TorchTrainer

class Digits(TorchTrainer):
    name = "digits"
    version = "1"

class Own(Trainer):
    name = "own"
    version = "1"

    def begin(self, weights):
        pass

class Plain(Trainer):
    name = "plain"
    version = "1"

class Below(Plain):
    name = "below"
    version = "1"
"""


@pytest.fixture
def trainers(tmp_path: Path) -> str:
    path = tmp_path / "trainers.py"
    path.write_text(TRAINERS)
    return str(path)


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    return tmp_path / "files"


@pytest.fixture
def use(app: FastAPI, tmp_path: Path, files: Path) -> Services:
    found: Services = replace(app.state.services, study_files=[str(files)])
    found.__dict__["store"] = open_store(str(tmp_path / "checkpoints"))
    app.state.services = found
    return found


@pytest.fixture
def reads_all(app: FastAPI, use: Services) -> Iterator[TestClient]:
    """A server as an embedded one, which may read everything, and waits two seconds for it."""
    found: Services = replace(use, study_files=["/"], reader=InputReader(2.0))
    found.__dict__["store"] = use.store
    app.state.services = found
    with TestClient(app, base_url=f"http://test{API}") as client:
        yield client


@pytest.fixture
def http(app: FastAPI, use: Services) -> Iterator[TestClient]:
    with TestClient(app, base_url=f"http://test{API}") as client:
        yield client


def weights(path: Path, value: float) -> str:
    save_file({"weight": torch.full((2, 2), value)}, path)
    return str(path)


def submit(http: TestClient, **fields: Any) -> Json:
    answer = http.post("/studies", json=study_file(**fields))
    assert answer.status_code == 201, answer.text
    found: Json = http.get(f"/studies/{answer.json()['study']}").json()
    return found


def submission_error(http: TestClient, **fields: Any) -> tuple[str, str]:
    answer = http.post("/studies", json=study_file(**fields))
    assert answer.status_code in (400, 422), answer.text
    [error] = answer.json()["errors"]
    return error["field"], error["problem"]


def test_the_content_of_the_file_is_part_of_the_plan(http: TestClient, use: Services, files: Path) -> None:
    path = weights(files / "w.safetensors", 1.0)
    plain = submit(http)["study"]
    first = submit(http, begin_from={"file": path})
    again = submit(http, begin_from={"file": weights(files / "copy.safetensors", 1.0)})
    weights(files / "w.safetensors", 2.0)
    other = submit(http, begin_from={"file": path})
    plans = [use.find(each).stream for each in (plain, first["study"], again["study"], other["study"])]
    assert plans[1] == plans[2] and len(set(plans)) == 3
    assert first["begins"]["text"] == f"begins from w.safetensors ({first['begins']['sha256'][:8]})"
    assert "begins" not in http.get(f"/studies/{plain}").json() and "key" not in first["begins"]
    kept = [key for key in use.store.all_keys() if "/begin-" in key]
    assert len(kept) == 2  # of each content once: a later study on the plan uses the recorded copy
    assert "digest" not in str(first["spec"]) and first["spec"]["begin_from"] == {"file": path, "state": False}


def test_a_study_begins_from_a_trial_of_another(
    http: TestClient, use: Services, workers: Workers, tuned_study: str, files: Path
) -> None:
    for number, value in ((0, 0.5), (1, 0.75)):
        kept = keep(use, workers, tuned_study, number)
        workers.finish(tuned_study, workers.assign(tuned_study, number), {"accuracy": value}, kept)
    best = submit(http, begin_from={"study": tuned_study})
    assert best["begins"]["text"] == f"begins from trial 1 of study {tuned_study} at step 40"
    listed = {item["study"]: item.get("begins") for item in http.get("/studies").json()["items"]}
    assert listed[best["study"]] == f"{tuned_study} trial 1 @ 40" and not listed[tuned_study]
    named = submit(http, begin_from={"study": tuned_study, "trial": 1, "step": 40, "state": True})
    assert named["begins"]["text"].endswith("at step 40, with optimizer and generators")
    assert named["begins"]["sha256"] == best["begins"]["sha256"]
    assert use.find(named["study"]).stream != use.find(best["study"]).stream
    [key] = [key for key in use.store.all_keys() if key.startswith(f"{use.find(best['study']).stream}/begin-")]
    trial = workers.plan(tuned_study).studies[StudyId(tuned_study)].trials[1]
    original = f"p/{trial.path[-1]}/40.safetensors"
    assert b"".join(use.store.read(key)) == b"".join(use.store.read(original))  # its own: the other may be deleted
    field, problem = submission_error(http, begin_from={"study": tuned_study, "step": 7})
    assert field == "begin_from" and "after step 7 is not kept; the steps that are: " in problem
    assert "there is no study unknown" in submission_error(http, begin_from={"study": "unknown"})[1]


def test_invalid_begin_from_is_refused_in_a_sentence(http: TestClient, files: Path, tmp_path: Path) -> None:
    good = weights(files / "w.safetensors", 1.0)
    (files / "note.txt").write_text("no weights at all")
    outside = weights(tmp_path / "outside.safetensors", 1.0)
    (files / "link").symlink_to(outside)
    for given, said in {
        "w.safetensors": "must be an absolute path",
        str(files / "none.pt"): "none.pt: No such file",
        str(files): "Is a directory",
        str(files / "note.txt"): "must be safetensors, a file of torch.save, or a checkpoint",
        outside: "STAGETREE_STUDY_FILES",
        str(files / "link"): "STAGETREE_STUDY_FILES",
    }.items():
        field, problem = submission_error(http, begin_from={"file": given})
        assert field == "begin_from.file" and said in problem, problem
    assert "has weights alone" in submission_error(http, begin_from={"file": good, "state": True})[1]
    assert submission_error(http, begin_from={"file": good, "study": "s"})[1] == "must have one of file, dcp and study"
    assert submission_error(http, begin_from={"dcp": str(files), "trial": 1})[1].startswith(
        "must be left out beside file and dcp"
    )
    assert "what another program wrote" in submission_error(http, begin_from={"dcp": str(files), "state": True})[1]
    for given, said in {
        str(files): "has no file .metadata",
        str(files / "none"): "has no file .metadata",
        "dcp": "must be an absolute path",
        str(tmp_path): "STAGETREE_STUDY_FILES",
    }.items():
        field, problem = submission_error(http, begin_from={"dcp": given})
        assert field == "begin_from.dcp" and said in problem, problem


def test_a_trunk_of_another_program_is_adopted(http: TestClient, use: Services, files: Path) -> None:
    folder = files / "trunk"
    checkpoint.save({"model": {"weight": torch.ones(2, 2)}}, checkpoint_id=folder, no_dist=True)
    first = submit(http, begin_from={"dcp": str(folder), "step": 39_000})["study"]
    begins = http.get(f"/studies/{first}").json()["begins"]
    shown = f"trunk ({begins['sha256'][:8]}) at step 39000"
    assert begins["text"] == f"begins from {shown}, which another program wrote: not compared up to there"
    assert (begins["dcp"], begins["step"], begins["state"]) == (str(folder), 39_000, False)
    assert http.get("/studies").json()["items"][0]["begins"] == shown
    [key] = [key for key in use.store.all_keys() if "/begin-" in key]
    (files / "object").write_bytes(b"".join(use.store.read(key)))
    assert load_weights(files / "object")["weight"].tolist() == [[1.0, 1.0], [1.0, 1.0]]
    other = submit(http, begin_from={"dcp": str(folder)})["study"]
    assert use.find(other).stream == use.find(first).stream  # `step` is only shown, and no part of the plan
    path = weights(files / "w.safetensors", 1.0)
    named = submit(http, begin_from={"file": path, "step": 10})["begins"]["text"]
    assert named.endswith(" at step 10, which another program wrote: not compared up to there")


def test_a_trainer_that_cannot_begin_is_refused_at_the_submission(http: TestClient, files: Path) -> None:
    path = weights(files / "w.safetensors", 1.0)
    field, problem = submission_error(http, trainer="plain", trainer_args={}, begin_from={"file": path})
    assert field == "begin_from" and problem == "needs a method `begin(self, weights)`, and trainer 'plain' has none"
    submit(http, trainer="own", trainer_args={}, begin_from={"file": path})
    submit(http, trainer="below", trainer_args={}, begin_from={"file": path})  # its bases are looked at by the slot


def test_inputs_are_part_of_the_plan_by_their_content(http: TestClient, use: Services, files: Path) -> None:
    folder = files / "data"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "a.txt").write_text("one")

    def plan(*paths: Path) -> str:
        return use.find(submit(http, inputs=[str(path) for path in paths])["study"]).stream

    first = plan(folder)
    os.utime(folder / "deep" / "a.txt", (5, 5))
    assert plan(folder) == first
    (folder / "deep" / "a.txt").write_text("two")
    assert plan(folder) != first
    (folder / "deep" / "a.txt").write_text("one")
    assert plan(folder) == first
    (folder / "b.txt").write_text("")
    assert plan(folder) != first
    assert plan() == use.find(submit(http)["study"]).stream
    seen = submit(http, inputs=[str(folder)])["inputs"][0]
    assert (seen["files"], seen["bytes"]) == (2, 3) and len(seen["sha256"]) == 64


def test_a_missing_input_is_one_sentence(http: TestClient, files: Path) -> None:
    field, problem = submission_error(http, inputs=[str(files / "none")])
    assert field == "inputs[0]"
    assert (
        problem
        == f"must be a file or a folder that can be read: {files}/none cannot be read: No such file or directory"
    )
    assert submission_error(http, inputs=["data"]) == ("inputs[0]", "must be an absolute path here, got data")
    assert submission_error(http, inputs="data")[0] == "inputs"


@pytest.mark.parametrize("kind", KINDS)
def test_inputs_that_are_no_files_are_refused_at_once(reads_all: TestClient, files: Path, kind: str) -> None:
    """The API read a device for ever, and opened a FIFO for ever; the client got no answer."""
    path = make(kind, files)
    if said := KINDS[kind]:
        field, problem = submission_error(reads_all, inputs=[path])
        assert field == "inputs[0]"
        assert problem.startswith(f"must be a file or a folder that can be read: {path} {said}")
    else:
        assert submit(reads_all, inputs=[path])["inputs"][0]["sha256"]
    field, problem = submission_error(reads_all, begin_from={"file": path})
    assert field == "begin_from.file" and problem.startswith("must be a file that can be read: ")
    assert submission_error(reads_all, begin_from={"dcp": path})[0] == "begin_from.dcp"


@needs_leases
def test_a_blocked_input_is_reported_in_a_sentence(reads_all: TestClient, files: Path) -> None:
    path = weights(files / "w.safetensors", 1.0)
    with block_opening(files / "w.safetensors"):
        late = f"{path} was not read within 2 s"
        assert submission_error(reads_all, inputs=[path])[1] == f"must be a file or a folder that can be read: {late}"
        assert submission_error(reads_all, begin_from={"file": path})[1] == f"must be a file that can be read: {late}"
    assert submit(reads_all, inputs=[path], begin_from={"file": path})["inputs"][0]["files"] == 1


def test_weights_without_an_end_are_not_copied(http: TestClient, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may say that it has exabytes, and take no room."""
    path = weights(files / "w.safetensors", 1.0)
    os.truncate(path, submission.MAX_WEIGHTS + 1)
    assert submission_error(http, begin_from={"file": path})[1].startswith("must be at most 1 TiB: ")
    monkeypatch.setattr(submission, "MAX_WEIGHTS", 2**10)
    (files / "trunk").mkdir()
    (files / "trunk" / ".metadata").write_bytes(bytes(2**11))
    assert submission_error(http, begin_from={"dcp": str(files / "trunk")})[1].startswith("must be at most 0 TiB: ")


def test_inputs_that_only_workers_see_are_left_to_them(http: TestClient, use: Services, tmp_path: Path) -> None:
    found = submit(http, inputs=["/elsewhere/data"])
    assert found["inputs"] == [{"path": "/elsewhere/data"}]
    assert "its inputs are unchecked" in found["not_exact"][0]


def test_the_environment_of_a_plan_is_shown(http: TestClient, study: str, workers: Workers) -> None:
    assert http.get(f"/studies/{study}/environment").json() == {"devices": []}
    about = {"python": "3.11.7", "torch": "2.13.0", "packages": {"torch": "2.13.0"}, "trainer": {"commit": "abc"}}
    for torch_version in ("2.13.0", "2.14.0"):
        workers.record(study, e.EnvironmentSeen(device="cpu", environment={**about, "torch": torch_version}))
    [found] = http.get(f"/studies/{study}/environment").json()["devices"]
    assert found == {"device": "cpu", "driver": None, **about}  # the first one stays
    types = [event["type"] for event in http.get(f"/studies/{study}/events").json()["items"]]
    assert types.count("EnvironmentSeen") == 2


def test_a_trial_shows_its_begin_from(http: TestClient, workers: Workers, files: Path) -> None:
    found = submit(http, begin_from={"file": weights(files / "w.safetensors", 1.0)})["study"]
    workers.tune(found)
    assert http.get(f"/studies/{found}/trials/0").json()["begins"]["text"].startswith("begins from w.safetensors")


def test_the_list_says_it_shortly_of_studies_that_do(http: TestClient, use: Services, files: Path) -> None:
    path = weights(files / "w.safetensors", 1.0)
    found = submit(http, begin_from={"file": path})["study"]
    plain = submit(http)["study"]
    listed = {item["study"]: item for item in http.get("/studies").json()["items"]}
    assert listed[found]["begins"] == f"w.safetensors ({use.find(found).begins['sha256'][:8]})"
    assert not listed[plain].get("begins")


def test_a_preview_tells_of_a_changed_file_that_its_study_leaves_out(
    http: TestClient, use: Services, files: Path
) -> None:
    """Where the study names inputs it is on another plan, which shares nothing of that file."""
    path = files / "rows.csv"
    path.write_text("1,2")
    stream = use.find(http.post("/studies", json=study_file()).json()["study"]).stream
    about = {"chain": ChainId("c"), "proof": VerificationKind.CHECK, "device": "cpu", "node": NodeId("n")}
    test = e.ExactnessTested(**about, begin=0, step=2, files=record_undeclared([str(path)]))  # type: ignore[arg-type]
    use.log.append(stream, [test], expected=None, at=1.0)
    assert advice_about(http, path) == []
    path.write_text("1,3")
    assert [each.split(": ")[0] for each in advice_about(http, path)] == [
        f"{path} has changed since shared results were trained"
    ]
    assert advice_about(http, path, inputs=[str(path)]) == []


def advice_about(http: TestClient, path: Path, **fields: Any) -> list[str]:
    answer = http.post("/studies:preview", json=study_file(**fields))
    assert answer.status_code == 200, answer.text
    return [each for each in answer.json()["advice"] if str(path) in each]
