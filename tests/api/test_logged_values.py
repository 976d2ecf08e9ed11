"""What trainers logged, as rows of a trial: of its whole path, and of the last attempt at each step."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from stacks import Json

from app.service.trial_logs import LogFolder
from tests.api.world import Workers, study_file


class Files:
    """Writes what slots write."""

    def __init__(self, root: Path, plan: str) -> None:
        self.root, self._plan = root, plan

    def attempt(self, node: str, start: int, *steps: int, loss: float = 0.5, study: str = "mine") -> None:
        path = self.root / study / self._plan / f"{node}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        rows = [{"step": step, "metrics": {"loss": loss}} for step in steps]
        with path.open("a") as file:
            file.writelines("\n" + json.dumps(line) + "\n" for line in [{"start": start, "chain": "c"}, *rows])

    def cut_off(self, node: str) -> None:
        with (self.root / "mine" / self._plan / f"{node}.jsonl").open("a") as file:
            file.write('{"step": 19, "met')


@pytest.fixture
def files(app: FastAPI, tmp_path: Path, tuned_study: str, workers: Workers) -> Files:
    app.state.services = replace(app.state.services, logs=LogFolder(tmp_path / "logs"))
    return Files(tmp_path / "logs", workers.stream(tuned_study))


def nodes(http: TestClient, study: str, trial: int) -> list[str]:
    path: list[str] = http.get(f"/studies/{study}/trials/{trial}").json()["path"]
    return path


def rows(http: TestClient, study: str, trial: int) -> list[tuple[int, float]]:
    answer = http.get(f"/studies/{study}/trials/{trial}/metrics")
    assert answer.status_code == 200, answer.text
    return [(item["step"], item["metrics"]["loss"]) for item in answer.json()["items"]]


def test_a_trial_has_the_rows_of_its_path_and_what_it_shares(http: TestClient, tuned_study: str, files: Files) -> None:
    paths = [nodes(http, tuned_study, trial) for trial in range(2)]
    shared = paths[0][0]
    assert paths[1][0] == shared
    files.attempt(shared, 0, 7, 20)
    for trial, path in enumerate(paths):
        if len(path) > 1:
            files.attempt(path[1], 20, 31, 40, loss=trial + 0.1)
        else:
            files.attempt(shared, 20, 33, 40, loss=trial + 0.1)
    for trial, path in enumerate(paths):
        inner = 31 if len(path) > 1 else 33
        assert rows(http, tuned_study, trial) == [(7, 0.5), (20, 0.5), (inner, trial + 0.1), (40, trial + 0.1)]


def test_after_a_lost_worker_the_later_attempt_counts(http: TestClient, tuned_study: str, files: Files) -> None:
    [node, *_] = nodes(http, tuned_study, 0)
    files.attempt(node, 0, 4, 9, 14, loss=1.0)
    files.cut_off(node)
    files.attempt(node, 8, 11, 16, loss=2.0)
    assert rows(http, tuned_study, 0) == [(4, 1.0), (11, 2.0), (16, 2.0)]


def test_an_attempt_that_came_less_far_takes_nothing_away(http: TestClient, tuned_study: str, files: Files) -> None:
    [node, *_] = nodes(http, tuned_study, 0)
    files.attempt(node, 0, 4, 9, 14, loss=1.0)
    files.attempt(node, 0, 3, 5, loss=2.0)
    assert rows(http, tuned_study, 0) == [(3, 2.0), (5, 2.0), (9, 1.0), (14, 1.0)]


def test_where_nothing_was_logged_there_are_no_rows(http: TestClient, tuned_study: str, files: Files) -> None:
    assert rows(http, tuned_study, 0) == []
    assert http.get(f"/studies/{tuned_study}/trials/9/metrics").status_code == 404


def test_rows_of_a_plan_of_the_same_nodes_are_not_mixed_in(http: TestClient, tuned_study: str, files: Files) -> None:
    [node, *_] = nodes(http, tuned_study, 0)
    Files(files.root, "plan-other").attempt(node, 0, 4)
    files.attempt(node, 0, 5, study="another")
    assert rows(http, tuned_study, 0) == [(5, 0.5)]


def test_rows_go_with_the_last_study_whose_trials_may_come_to_their_node(
    http: TestClient, tuned_study: str, files: Files
) -> None:
    shared, later = nodes(http, tuned_study, 0)
    other = submit_trial(http, {"lr": http.get(f"/studies/{tuned_study}/trials/0").json()["hp"]["lr"], "bs": 64}, 10)
    third = submit_trial(http, {"lr": 0.5, "bs": 64}, 40)
    files.attempt(shared, 0, 7, 20, study=tuned_study)
    files.attempt(later, 20, 31, 40, study=tuned_study)
    files.attempt(nodes(http, third, 0)[0], 0, 9, study=third)
    (files.root / tuned_study / "0.log").write_text("epoch 1")
    delete(http, third)
    assert not (files.root / third).exists()
    delete(http, tuned_study)
    assert not (files.root / tuned_study / "0.log").exists()
    assert rows(http, other, 0) == [(7, 0.5)]
    assert http.post(f"/studies/{other}/trials/0:extend", json={"steps": 40}).status_code == 200
    assert rows(http, other, 0) == [(7, 0.5), (20, 0.5), (31, 0.5), (40, 0.5)]
    delete(http, other)
    assert list(files.root.iterdir()) == []


def submit_trial(http: TestClient, hp: Json, steps: int) -> str:
    """A study with one trial that can be extended."""
    study: str = http.post("/studies", json=study_file(tuner={"kind": "external"}, space=None)).json()["study"]
    assert http.post(f"/studies/{study}/trials", json={"hp": hp, "steps": steps}).status_code == 201
    return study


def delete(http: TestClient, study: str) -> None:
    http.post(f"/studies/{study}:cancel")
    assert http.delete(f"/studies/{study}").status_code == 204
