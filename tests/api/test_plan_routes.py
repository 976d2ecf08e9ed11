"""What lies behind a study: its plan and its stage tree."""

from __future__ import annotations

from fastapi.testclient import TestClient

from app.service.services import Services
from tests.api.world import STUDY, Workers, study_file


def test_the_plan_with_the_nodes_of_all_its_studies(http: TestClient, tuned_study: str, workers: Workers) -> None:
    other = http.post("/studies", json=study_file(tuner={"kind": "grid", "max_steps": 30}, space={"lr": 0.1, "bs": 64}))
    workers.tune(other.json()["study"])
    chain = workers.assign(tuned_study, 0)
    shown = http.get(f"/studies/{tuned_study}/plan").json()
    assert shown["studies"] == [tuned_study, other.json()["study"]]
    common = {"trainer": "digits", "trainer_version": "1", "trainer_args": {"width": 32}, "seed": 0}
    assert common.items() <= shown.items()
    root, low = shown["nodes"]
    assert (root["parent"], root["start"], root["forms"]) == (None, 0, {"bs": "64", "lr": "0.1"})
    assert (low["parent"], low["start"], low["forms"]["lr"]) == (root["id"], 20, "0.01")
    assert (root["studies"], low["studies"]) == ([tuned_study, other.json()["study"]], [tuned_study])
    assert {(each["step"], each["study"]) for each in root["waiting"]} == {
        (40, tuned_study),
        (30, other.json()["study"]),
    }
    assert root["running"] == [{"chain": chain, "start": 0, "end": 20}]


def test_a_trial_that_never_changes_is_one_node(http: TestClient, workers: Workers) -> None:
    study = http.post("/studies", json=study_file(space={"lr": 0.1})).json()["study"]
    workers.tune(study)
    workers.finish(study, workers.assign(study, 0), {"accuracy": 0.5})
    (node,) = http.get(f"/studies/{study}/plan").json()["nodes"]
    assert (node["checkpoints"], node["waiting"], node["running"]) == ([40], [], [])
    assert node["metrics"] == [{"step": 40, "metrics": {"accuracy": 0.5}}]
    assert node["studies"] == [study]


def test_the_stage_tree_is_what_is_left(http: TestClient, tuned_study: str, workers: Workers) -> None:
    shown = http.get(f"/studies/{tuned_study}/stage-tree").json()
    assert [(stage["start"], stage["end"], stage["ready"]) for stage in shown["stages"]] == [
        (0, 20, True),
        (20, 40, False),
        (20, 40, False),
    ]
    root = shown["stages"][0]
    assert {stage["parent"]["node"] for stage in shown["stages"][1:]} == {root["node"]}
    assert shown["critical_path_steps"] == 40
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    shown = http.get(f"/studies/{tuned_study}/stage-tree").json()
    assert [(stage["start"], stage["end"], stage["ready"], stage["parent"]) for stage in shown["stages"]] == [
        (20, 40, True, None)
    ]


def test_the_stage_tree_leaves_out_what_only_others_need(http: TestClient, tuned_study: str, workers: Workers) -> None:
    other = http.post("/studies", json=study_file(space={"lr": 0.1, "bs": 64}, tuner={"kind": "grid", "max_steps": 90}))
    workers.tune(other.json()["study"])
    mine = http.get(f"/studies/{tuned_study}/stage-tree").json()["stages"]
    assert max(stage["end"] for stage in mine) == 40
    assert (
        max(stage["end"] for stage in http.get(f"/studies/{other.json()['study']}/stage-tree").json()["stages"]) == 90
    )


def test_nothing_is_left_for_a_study_that_is_paused(http: TestClient, tuned_study: str) -> None:
    http.post(f"/studies/{tuned_study}:pause")
    assert http.get(f"/studies/{tuned_study}/stage-tree").json() == {"stages": [], "critical_path_steps": 0}


def test_both_are_empty_before_the_tuner_has_asked_for_anything(http: TestClient, study: str, use: Services) -> None:
    assert http.get(f"/studies/{study}/plan").json()["nodes"] == []
    assert http.get(f"/studies/{study}/stage-tree").json()["stages"] == []
    assert STUDY["trainer"] == http.get(f"/studies/{study}/plan").json()["trainer"]
