"""A fake of W&B's library that records its calls: runs by id, which are resumed with their summary."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stagetree.sinks import SinkError, follow, open_sink
from tests.sinks.scripted import ISOLATED, MARK, STRUCK, STUDY, Scripted, busy_study, write_study


class Run:
    """A run as the server keeps it: rows, and a summary of the last values logged."""

    def __init__(self) -> None:
        self.config, self.summary = Config(), dict[str, Any]()
        self.rows, self.exit_codes = list[dict[str, Any]](), list[int]()

    def define_metric(self, name: str, step_metric: str | None = None) -> None: ...

    def log(self, row: dict[str, Any]) -> None:
        self.rows.append(row)
        self.summary |= row

    def finish(self, exit_code: int = 0) -> None:
        self.exit_codes.append(exit_code)


class Away(Exception):
    """An error of W&B."""


class Config(dict[str, Any]):
    def update(self, values: dict[str, Any], allow_val_change: bool) -> None:  # type: ignore[override]
        assert allow_val_change
        super().update(values)


@pytest.fixture
def runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Run]:
    """By id, the runs of the project `mine`. Positions are noted in the working folder."""
    by_id: dict[str, Run] = {}

    def init(*, project: str, group: str, id: str, name: str, resume: str, reinit: str) -> Run:
        assert (project, group, resume, reinit) == ("mine", STUDY, "allow", "create_new")
        return by_id.setdefault(id, Run())

    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(init=init, Error=Away))
    return by_id


def points(run: Run, name: str = "accuracy") -> list[tuple[int, float]]:
    return [(row["step"], row[name]) for row in run.rows if name in row]


def check(runs: dict[str, Run]) -> None:
    first, second = runs[f"{STUDY}-0"], runs[f"{STUDY}-1"]
    assert points(first) == [(10, 0.1), (20, 0.2), (40, 0.4)]
    assert points(second) == [(10, 0.1), (20, 0.2), (30, 0.35), (40, 0.45)]
    assert points(second, "shared_with") == [(10, 0), (20, 0)] and not points(first, "shared_with")
    assert [points(run, "train/loss") for run in (first, second)] == [[(7, 0.7), (25, 0.5)], [(7, 0.7), (27, 0.6)]]
    assert (second.config["parent_trial"], second.config["parent_step"]) == (0, 20)
    assert (second.config["lr"], second.summary["shares_with_trial"], second.summary["shares_steps"]) == (0.1, 0, 20)
    assert [run.summary["state"] for run in runs.values()] == ["completed", "completed"]


def test_each_trial_has_a_run_with_its_whole_curve(runs: dict[str, Run]) -> None:
    write_study("wandb:mine")
    check(runs)


@pytest.mark.parametrize("writes", range(1, 17))
def test_a_sink_killed_after_any_write_resumes_exactly_once(runs: dict[str, Run], writes: int) -> None:
    write_study("wandb:mine", killed_after=writes)
    write_study("wandb:mine")
    check(runs)


def test_an_error_of_the_library_is_a_sentence(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(run: Run, row: dict[str, Any]) -> None:
        raise Away("no answer")

    monkeypatch.setattr(Run, "log", fail)
    with pytest.raises(SinkError, match="W&B: no answer"):
        follow(Scripted(busy_study()), STUDY, [open_sink("wandb:mine")])


def test_few_runs_are_open_at_once(runs: dict[str, Run], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stagetree.sinks.trackers.MOST_OPEN", 1)
    write_study("wandb:mine")
    check(runs)
    assert len(runs[f"{STUDY}-0"].exit_codes) > 1


@pytest.mark.parametrize(
    ("address", "library", "sentence"),
    [
        ("wandb:mine", "wandb", "W&B is not installed: pip install wandb"),
        ("mlflow:runs", "mlflow.tracking", "MLflow is not installed: pip install mlflow"),
        ("tensorboard:runs", "tensorboard.summary.writer.record_writer", "TensorBoard is not installed: pip install"),
    ],
)
def test_a_missing_library_is_reported_in_a_sentence(
    address: str, library: str, sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    with pytest.raises(SinkError, match=sentence):
        open_sink(address)


@pytest.mark.parametrize("address", ["tensorboard", "tensorboard:", "csv:here", ""])
def test_an_invalid_address_is_refused_in_a_sentence(address: str) -> None:
    with pytest.raises(
        SinkError, match="must be tensorboard:DIR, wandb:PROJECT, mlflow:URI, otlp:URL or webhook:URL, got"
    ):
        open_sink(address)


def test_struck_results_are_not_mixed_with_trials_trained_alone(runs: dict[str, Run]) -> None:
    write_study("wandb:mine", ISOLATED)
    struck, alone = runs[f"{STUDY}-0"], runs[f"{STUDY}-0-alone"]
    assert points(struck) == [(10, 0.1), (20, 0.2)] and points(alone) == [(20, 0.1), (40, 0.3)]
    assert (struck.config["struck"], struck.exit_codes) == (STRUCK, [1])
    assert (alone.config["exactness"], alone.summary["state"], alone.exit_codes) == (MARK, "completed", [0])
