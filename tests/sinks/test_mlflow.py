"""Runs in a folder, read back by MLflow itself."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from mlflow.tracking import MlflowClient

from stagetree.sinks import follow, open_sink
from tests.sinks.scripted import ISOLATED, MARK, STRUCK, STUDY, Scripted, busy_study, write_study


@pytest.fixture(autouse=True)
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A store that is a folder. Positions are noted in the working folder."""
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    return f"file://{tmp_path / 'store'}"


def read(uri: str) -> dict[str, Any]:
    """By run: its measurements and parameters, its notes about sharing, and its end."""
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name(STUDY).experiment_id])
    return {
        run.info.run_name: {
            "accuracy": [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "accuracy")],
            "loss": [(each.step, each.value) for each in client.get_metric_history(run.info.run_id, "train/loss")],
            "parent": run.data.tags.get("mlflow.parentRunId", ""),
            "id": run.info.run_id,
            "hp": run.data.params,
            "note": run.data.tags.get("mlflow.note.content", ""),
            "status": run.info.status,
            "exactness": run.data.tags.get("stagetree.exactness", ""),
        }
        for run in runs
    }


def test_each_trial_has_a_run_with_its_whole_curve(store: str) -> None:
    write_study(f"mlflow:{store}")
    runs = read(store)
    assert runs["trial 0"]["accuracy"] == [(10, 0.1), (20, 0.2), (40, 0.4)]
    assert runs["trial 1"]["accuracy"] == [(10, 0.1), (20, 0.2), (30, 0.35), (40, 0.45)]
    assert [run["parent"] for _, run in sorted(runs.items())] == ["", runs["trial 0"]["id"]]
    assert runs["trial 1"]["note"].startswith("Shares its steps up to 20 with trial 0")
    assert [(run["hp"], run["status"]) for run in runs.values()] == [({"lr": "0.1"}, "FINISHED")] * 2


@pytest.mark.slow
@pytest.mark.parametrize("writes", range(1, 17))
def test_a_sink_killed_after_any_write_resumes_exactly_once(store: str, writes: int) -> None:
    write_study(f"mlflow:{store}", killed_after=writes)
    write_study(f"mlflow:{store}")
    runs = read(store)
    assert [run["loss"] for _, run in sorted(runs.items())] == [[(7, 0.7), (25, 0.5)], [(7, 0.7), (27, 0.6)]]
    assert [run["accuracy"] for _, run in sorted(runs.items())] == [
        [(10, 0.1), (20, 0.2), (40, 0.4)],
        [(10, 0.1), (20, 0.2), (30, 0.35), (40, 0.45)],
    ]


def test_struck_results_are_not_mixed_with_trials_trained_alone(store: str) -> None:
    for _ in range(2):
        write_study(f"mlflow:{store}", ISOLATED)
    runs = read(store)
    assert runs["trial 0"]["accuracy"] == [(10, 0.1), (20, 0.2)]
    assert (runs["trial 0"]["note"], runs["trial 0"]["status"]) == (STRUCK, "KILLED")
    alone = [runs["trial 0 (alone)"], runs["trial 1 (alone)"]]
    assert [run["accuracy"] for run in alone] == [[(20, 0.1), (40, 0.3)], [(20, 0.15), (40, 0.35)]]
    assert [(run["status"], run["exactness"]) for run in alone] == [("FINISHED", MARK)] * 2


def test_a_mark_goes_when_the_rest_was_compared(store: str) -> None:
    """An audit after the study's end: rows that are followed again lose their marks."""
    follow(Scripted(busy_study(), exactness="unchecked: it resumed"), STUDY, [open_sink(f"mlflow:{store}")])
    assert read(store)["trial 0"]["exactness"] == "unchecked: it resumed"
    follow(Scripted(busy_study()), STUDY, [open_sink(f"mlflow:{store}")])
    assert read(store)["trial 0"]["exactness"] == ""
