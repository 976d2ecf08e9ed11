"""A failed pass does not identify the failed lane: a lane ends only if it fails by itself, and others continue."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lanes import NEAR, STEADY, Tiny, assert_same, distance, is_packed, new_pack, train_alone, train_packed, weights
from torch import Tensor

from stagetree.packing.stable_width import StableWidth
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.packed import PackedModels

WIDTH, STEPS = 4, 3
HPS = {number: {**STEADY, "lr": rate} for number, rate in enumerate((0.05, 0.3, 0.01))}
HALVES = {"micro_batch_size": 2}


class Failing(Tiny):
    """Its loss fails after some more calls: in passes, or also where the model is by itself. No pack can see that."""

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.mood: dict[str, Any] = {"calls": 0, "fails_after": 10**9, "in_passes_only": False, "error": None}

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)  # after it has drawn numbers and changed its buffers
        self.mood["calls"] += 1
        if self.mood["calls"] > self.mood["fails_after"] and (is_packed(loss) or not self.mood["in_passes_only"]):
            error = self.mood["error"]
            raise type(error)(*error.args)
        return loss


def fail_after(pack: PackedModels, number: int, calls: int, **how: Any) -> None:
    """Let a model's loss fail after this many further calls."""
    error = torch.OutOfMemoryError("no memory for that")
    pack[number].trainer.mood.update({"calls": 0, "fails_after": calls, "error": error, **how})  # type: ignore[attr-defined]


def start_pack(hps: dict[int, Any], **how: Any) -> PackedModels:
    """After a first step, which showed that they can be packed."""
    pack = new_pack(WIDTH, hps, Failing, **how)
    assert not train_packed(pack, hps, 1)
    return pack


def train_without_faults(steps: int, **how: Any) -> PackedModels:
    pack = new_pack(WIDTH, HPS, Tiny, **how)
    assert not train_packed(pack, HPS, steps)
    return pack


@pytest.mark.slow
@pytest.mark.parametrize("error", [torch.OutOfMemoryError("no memory"), MemoryError(), ValueError("no")], ids=repr)
@pytest.mark.parametrize("calls", range(4))
def test_the_lane_whose_loss_fails_ends_alone(error: Exception, calls: int) -> None:
    """Also in the middle of a batch, and of a step: the others have the same bits as without it."""
    pack = start_pack(HPS, **HALVES)
    fail_after(pack, 0, calls, error=error)
    failed = train_packed(pack, HPS, STEPS - 1)
    assert failed.keys() == {0}
    assert failed[0].kind == ("exception" if isinstance(error, ValueError) else "out_of_memory")
    assert "packing/loss.py" not in failed[0].error  # the traceback begins with the user's first line
    expected = train_without_faults(STEPS, **HALVES)
    for number in HPS.keys() - failed.keys():
        assert_same(weights(pack[number]), weights(expected[number]))
        assert pack[number].logged_means() == expected[number].logged_means()
    assert not pack.evicted and not pack.unpackable_reason


@pytest.mark.parametrize("calls", range(4))
def test_for_want_of_memory_for_all_each_goes_on_by_itself(calls: int) -> None:
    pack = start_pack(HPS, **HALVES)
    fail_after(pack, 0, calls, in_passes_only=True)
    for number in HPS:
        pack[number].trainer.mood = pack[0].trainer.mood  # type: ignore[attr-defined]
    assert not train_packed(pack, HPS, STEPS - 1)
    assert "choose fewer lanes" in pack.unpackable_reason and pack.evicted == list(HPS)
    for number, hp in HPS.items():
        by_itself = train_alone(hp, STEPS, **HALVES)
        assert distance(weights(pack[number]), weights(by_itself)) < NEAR
        assert pack[number].logged_means() == pytest.approx(by_itself.logged_means())


def test_only_who_fails_in_passes_leaves_them() -> None:
    pack = start_pack(HPS)
    fail_after(pack, 0, 1, in_passes_only=True, error=ValueError("not in a pass"))
    assert not train_packed(pack, HPS, STEPS - 1)
    assert pack.evicted == [0]
    expected = train_without_faults(STEPS)
    assert distance(weights(pack[0]), weights(expected[0])) < NEAR
    for number in (1, 2):
        assert_same(weights(pack[number]), weights(expected[number]))


@pytest.mark.parametrize("number", [0, 2])
def test_who_fails_in_one_of_several_passes_ends_alone(monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    monkeypatch.setattr(
        "stagetree.packing.fallback.stable_width", lambda *_: StableWidth(rows=WIDTH, lanes=2, exact=False)
    )
    pack = start_pack(HPS)
    fail_after(pack, number, 1)
    assert train_packed(pack, HPS, STEPS - 1).keys() == {number}
    expected = train_without_faults(STEPS)
    for other in HPS.keys() - {number}:
        assert_same(weights(pack[other]), weights(expected[other]))


def test_where_there_never_is_memory_for_a_pack_each_is_what_it_is_alone() -> None:
    pack = new_pack(WIDTH, HPS, Failing)
    for number in HPS:
        fail_after(pack, number, 0, in_passes_only=True)
    assert not train_packed(pack, HPS, STEPS)
    assert "choose fewer lanes" in pack.unpackable_reason and pack.evicted == list(HPS)
    for number, hp in HPS.items():
        assert_same(weights(pack[number]), weights(train_alone(hp, STEPS)))


@pytest.mark.parametrize("number", [0, 1])
def test_who_fails_before_the_first_pass_ends_alone(number: int) -> None:
    pack = new_pack(WIDTH, HPS, Failing)
    fail_after(pack, number, 0)
    assert train_packed(pack, HPS, STEPS).keys() == {number}
    expected = train_without_faults(STEPS)
    for other in HPS.keys() - {number}:
        assert_same(weights(pack[other]), weights(expected[other]))
    assert not pack.evicted


def test_a_broken_device_concerns_all() -> None:
    pack = start_pack(HPS)
    fail_after(pack, 0, 0, error=RuntimeError("CUDA error: an illegal memory access was encountered"))
    with pytest.raises(TrainerFailed, match="illegal memory") as failed:
        train_packed(pack, HPS, 1)
    assert failed.value.kind == "device"


class Illegible(Tiny):
    """The second batch of seven samples cannot be read."""

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> list[Tensor]:
        if len(batch[0]) == 7 and self.offset:
            raise OSError("unreadable")
        return super().transform_batch(batch, generator)


def test_what_cannot_be_read_ends_the_lanes_that_are_to_learn_from_it() -> None:
    hps = {**HPS, 1: {**STEADY, "bs": 7}}
    pack = new_pack(WIDTH, hps, Illegible)
    failed = train_packed(pack, hps, STEPS)
    assert failed.keys() == {1} and "unreadable" in failed[1].error
    expected = train_without_faults(STEPS)
    for number in (0, 2):
        assert_same(weights(pack[number]), weights(expected[number]))
