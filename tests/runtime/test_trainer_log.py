"""What a trainer says with `log`: kept where it is, fetched now and then, and never in the way."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from moods import Start, toy

from app.workers.trainer_connection import Deadline
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.model import DRAIN_SECONDS, HpTimeline, Journal, Model
from stagetree.trainer import Trainer
from stagetree.trainer.base import MetricSums

ONE = HpTimeline({"lr": 1.0})


class OnADevice:
    """A value that counts how often a reader waits for it."""

    waits = 0

    def detach(self) -> OnADevice:
        return self

    float = clone = detach

    def reshape(self, shape: tuple[int, ...]) -> OnADevice:
        return self

    def numel(self) -> int:
        return 1

    def __add__(self, other: OnADevice) -> OnADevice:
        return self

    def __float__(self) -> float:
        OnADevice.waits += 1
        return 6.0


class Talkative(Trainer):
    """Says its step, and something else while it evaluates."""

    def __init__(self, *, seed: int, device: str) -> None:
        self.step = 0

    def setup(self, hp: dict[str, Any]) -> None: ...

    def train(self) -> None:
        self.step += 1
        self.log("step", self.step)

    def evaluate(self) -> dict[str, float]:
        self.log("evaluated", 1.0)
        return {"step": self.step}

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]


def test_logged_values_are_means_since_the_last_row() -> None:
    logged = MetricSums()
    for value in (1, torch.tensor(3.0, requires_grad=True), torch.tensor([2])):
        logged.add("loss", value)
    logged.add("norm", float("nan"))
    assert logged.means() == {"loss": 2.0, "norm": None}
    assert logged.means() == {}


def test_a_logged_tensor_is_copied() -> None:
    logged, value = MetricSums(), torch.tensor(1.0)
    logged.add("loss", value)
    value += 5
    assert logged.means() == {"loss": 1.0}


def test_logging_waits_for_the_device_only_at_fetches() -> None:
    logged, OnADevice.waits = MetricSums(), 0
    for _ in range(100):
        logged.add("loss", OnADevice())
    assert OnADevice.waits == 0
    assert logged.means() == {"loss": 0.06} and OnADevice.waits == 1


@pytest.mark.parametrize("value", [torch.zeros(2), "high", None])
def test_logging_a_value_that_is_no_number_fails_the_step(value: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        MetricSums().add("loss", value)


def test_values_logged_in_evaluation_or_before_a_load_are_dropped() -> None:
    model = Model.build(Talkative, {}, 0, "cpu")
    model.advance(ONE)
    model.evaluate()
    assert model.logged_means() == {}
    saved = model.state()
    model.advance(ONE)
    model.load(saved, ONE, 1)
    assert model.logged_means() == {}


def test_rows_are_periodic_and_a_full_disk_does_not_stop_training(tmp_path: Path) -> None:
    model, journal, path = Model.build(Talkative, {}, 0, "cpu"), Journal(), tmp_path / "rows"
    with path.open("wb", buffering=0) as file:
        journal.write_to(file.fileno())
        begun_at = journal.drained_at
        for seconds in (0.4, 0.8, 1.2, 1.6, 2.3):
            model.advance(ONE)
            journal.look(model, begun_at + seconds * DRAIN_SECONDS)
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    assert rows == [{"step": 3, "metrics": {"step": 2.0}}, {"step": 5, "metrics": {"step": 4.5}}]
    model.advance(ONE)
    journal.write(model, begun_at)  # its file is closed, as good as broken
    assert model.step == 6


def test_a_process_writes_rows_to_the_file_of_the_stage(start: Start, deadline: Deadline, tmp_path: Path) -> None:
    process = toy(start())
    for name, until in (("first", 4), ("second", 6)):
        process.log(tmp_path / "log", tmp_path / "rows" / name)
        process.train({"lr": 0.1}, until, deadline=deadline)
    for name, until in (("first", 4), ("second", 6)):
        rows = [json.loads(line) for line in (tmp_path / "rows" / name).read_text().splitlines()]
        assert rows[-1]["step"] == until and rows[-1]["metrics"].keys() == {"push"}


def test_a_late_device_error_is_reported_as_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model.build(Talkative, {}, 0, "cpu")
    model.advance(ONE)

    def fail(self: MetricSums) -> None:
        raise RuntimeError("CUDA error: device-side assert triggered")

    monkeypatch.setattr(MetricSums, "means", fail)
    with pytest.raises(TrainerFailed) as failed:
        model.logged_means()
    assert failed.value.kind == "device"
