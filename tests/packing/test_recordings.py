"""When a pass is recorded, and when what a recording plays is taken: with recordings of a CPU, which play one result.

That a GPU's recordings play the same bits is in `tests/gpu/test_gpu_packs.py`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any
from weakref import WeakSet

import pytest
import torch
from lanes import STEADY, Tiny, assert_same, new_pack, train_packed, weights
from torch import Tensor

from stagetree.packing import fallback
from stagetree.packing.loss import BackwardResult
from stagetree.packing.recordings import (
    CHECK_EVERY,
    MAX_KEYS,
    MAX_RECORDINGS,
    WARMUP_PASSES,
    Pass,
    Recordings,
    clone_batch,
)
from stagetree.packing.rows import LaneBatches
from stagetree.packing.stable_width import StableWidth

CPU = torch.device("cpu")


class Recorder:
    """Its recordings repeat the tensor operations of a pass, even if values on the host have changed since."""

    def __init__(self, scale: list[float]) -> None:
        self.made, self.played, self._scale = 0, 0, scale

    def __call__(self, compute: Pass, batch: Any) -> Pass:
        compute(batch)  # like the host's part of a recording
        self.made += 1
        scale = self._scale[0]

        def play(batch: Any) -> BackwardResult:
            self.played += 1
            return result_of(batch * scale)

        return play


def result_of(rows: Tensor) -> BackwardResult:
    return BackwardResult({"weight": rows}, {}, {"loss": rows.sum(0)}, {"loss": 1})


def passes(scale: list[float], calls: list[int]) -> Callable[[Any], BackwardResult]:
    def compute(batch: Any) -> BackwardResult:
        calls.append(1)
        return result_of(batch * scale[0])

    return compute


def test_a_pass_is_recorded_once_and_compared_ever_less_often() -> None:
    scale, calls = [2.0], list[int]()
    recorder = Recorder(scale)
    recordings, compute = Recordings(CPU, recorder), passes(scale, calls)
    for number in range(WARMUP_PASSES + CHECK_EVERY):
        batch = torch.full((3,), float(number))
        assert recordings.result("key", compute, batch).gradients["weight"].equal(batch * 2)
    assert (recorder.made, recorder.played) == (1, CHECK_EVERY)
    powers = CHECK_EVERY.bit_length()
    assert len(calls) == WARMUP_PASSES + 1 + powers  # one of them is the recorded pass


@pytest.mark.parametrize("late", [0, 2, 100])
def test_what_a_recording_does_not_see_ends_it(late: int, caplog: pytest.LogCaptureFixture) -> None:
    """At the next comparison, which already returns the pass's own result."""
    scale, calls = [2.0], list[int]()
    recorder = Recorder(scale)
    recordings, compute = Recordings(CPU, recorder), passes(scale, calls)
    batch = torch.ones(3)
    for _ in range(WARMUP_PASSES + 1 + late):
        recordings.result("key", compute, batch)
    scale[0] = 3.0
    results = [recordings.result("key", compute, batch).gradients["weight"][0].item() for _ in range(300)]
    assert results == sorted(results) and results[-1] == 3.0 and results.count(2.0) <= late
    assert "it gave other numbers than the same pass computed anew" in caplog.text


def test_draws_on_the_host_are_not_recorded_and_go_on(caplog: pytest.LogCaptureFixture) -> None:
    def compute(batch: Any) -> BackwardResult:
        return result_of(batch * random.random())

    random.seed(0)
    expected = [random.random() for _ in range(5)]
    random.seed(0)
    recordings = Recordings(CPU, Recorder([1.0]))
    results = [recordings.result("key", compute, torch.ones(3)).gradients["weight"][0].item() for _ in range(5)]
    assert results == pytest.approx(expected)
    assert "its loss draws random numbers on the CPU" in caplog.text


def test_a_pass_that_cannot_be_recorded_is_computed(caplog: pytest.LogCaptureFixture) -> None:
    def refuse(compute: Pass, batch: Any) -> Pass:
        raise RuntimeError("operation not permitted when stream is capturing")

    recordings, calls = Recordings(CPU, refuse), list[int]()
    for _ in range(5):
        recordings.result("key", passes([2.0], calls), torch.ones(3))
    assert len(calls) == 5
    assert caplog.text.count("operation not permitted") == 1


def test_the_recordings_that_were_played_last_are_kept() -> None:
    recorder = Recorder([1.0])
    recordings, compute = Recordings(CPU, recorder), passes([1.0], [])
    for key in (*range(MAX_RECORDINGS + 1), MAX_RECORDINGS):
        for _ in range(WARMUP_PASSES + 1):
            recordings.result(key, compute, torch.ones(3))
    assert recorder.made == MAX_RECORDINGS + 1
    for _ in range(WARMUP_PASSES + 1):
        recordings.result(0, compute, torch.ones(3))
    assert recorder.made == MAX_RECORDINGS + 2


def test_keys_that_come_seldom_are_forgotten() -> None:
    """Otherwise a hyper-parameter that the loss reads, with another value at each step, would fill the memory."""
    recorder = Recorder([1.0])
    recordings, compute = Recordings(CPU, recorder), passes([1.0], [])
    for key in (*["seldom"] * WARMUP_PASSES, *range(MAX_KEYS), "seldom"):
        recordings.result(key, compute, torch.ones(3))
    assert recorder.made == 0
    for key in range(MAX_RECORDINGS + 2):  # earlier recordings stay
        for _ in range(WARMUP_PASSES + 1):
            recordings.result(f"{key}", compute, torch.ones(3))
        for other in range(MAX_KEYS // 4):
            recordings.result(f"{key}/{other}", compute, torch.ones(3))
    assert recorder.made == MAX_RECORDINGS + 2


def test_without_a_recorder_a_pass_is_computed_each_time() -> None:
    calls = list[int]()
    for _ in range(5):
        Recordings(CPU).result("key", passes([1.0], calls), torch.ones(3))
    assert len(calls) == 5


def test_a_batch_is_copied_with_its_form() -> None:
    batch = LaneBatches({3: (torch.ones(2), {"name": "a"}), 5: (torch.zeros(2), {"name": "b"})})
    other = clone_batch(batch)
    assert isinstance(other, LaneBatches) and isinstance(other[3], tuple) and other[5][1] == {"name": "b"}
    batch[3][0].zero_()
    assert other[3][0].equal(torch.ones(2))


class Hungry(Tiny):
    """Its batches of five have no memory beside a recording."""

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        if len(batch[0]) == 5 and RECORDINGS:
            raise torch.OutOfMemoryError("no memory for that")
        return loss


RECORDINGS = WeakSet[Any]()


def record(compute: Pass, batch: Any) -> Pass:
    def play(batch: Any) -> BackwardResult:
        return compute(batch)

    RECORDINGS.add(play)
    return play


def test_recordings_are_given_up_where_a_pass_needs_their_memory(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    growing = {"family": "values", "values": [4, 5], "milestones": [4]}
    hps = {number: {**STEADY, "lr": 0.05 * (1 + number), "bs": growing} for number in range(2)}
    monkeypatch.setattr(fallback, "stable_width", lambda *_: StableWidth(rows=2, lanes=2, exact=False))
    expected = new_pack(2, hps)
    train_packed(expected, hps, 8)
    monkeypatch.setattr(fallback, "Recordings", lambda device: Recordings(device, record))
    pack = new_pack(2, hps, Hungry)
    assert not train_packed(pack, hps, 8) and not RECORDINGS
    assert "too little memory beside them" in caplog.text and not pack.unpackable_reason
    for number in hps:
        assert_same(weights(pack[number]), weights(expected[number]))
