"""The claim of a profile about a trainer's bits is true, in both directions, on examples and usual models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from kinds import NETS, Operations, Usual, one_batch_each, trainer
from lanes import Unpackable, assert_same, distance, new_pack, train_alone, train_packed, weights
from torch import Generator, OutOfMemoryError, Tensor, nn

from stagetree import TorchTrainer
from stagetree.packing import Lane, Profile
from stagetree.packing.profiling import PackCost, measure_cost
from stagetree.packing.stable_width import StableWidth
from stagetree.runtime.model import HpTimeline
from stagetree.trainer import generators
from stagetree.trainer.tensors import map_tensors

WIDTH = 4
ROUNDING = 1e-7
"""The largest difference of results in double precision: nine digits are left for optimizers to magnify the last."""


def double_precision(kind: type[TorchTrainer]) -> type[TorchTrainer]:
    """The same trainer, with its model and its batches in double precision."""

    class Double(kind):  # type: ignore[misc, valid-type]
        def __init__(self, **args: Any) -> None:
            super().__init__(**args)
            self.model.double()

        def transform_batch(self, batch: Any, generator: Generator) -> Any:
            return map_tensors(super().transform_batch(batch, generator), as_double)

    return Double


def as_double(tensor: Tensor) -> Tensor:
    return tensor.double() if tensor.is_floating_point() else tensor


def profile_of(kind: type[TorchTrainer], hp: dict[str, Any], **how: Any) -> Profile | None:
    pack = new_pack(WIDTH, [0], kind, **how)
    assert not train_packed(pack, {0: hp}, 1)
    return pack.profile()


def distance_after(steps: int, kind: type[TorchTrainer], hp: dict[str, Any], **how: Any) -> float:
    """The largest difference between a lane and the trial trained alone."""
    pack = new_pack(WIDTH, [0, 1], kind, **how)
    assert not train_packed(pack, {0: hp, 1: {**hp, "lr": hp["lr"] / 2}}, steps)
    assert not pack.unpackable_reason
    return distance(weights(pack[0]), weights(train_alone(hp, steps, kind, **how)))


def assert_claim_holds(profile: Profile | None, kind: type[TorchTrainer], hp: dict[str, Any], **how: Any) -> None:
    """Whether the trainer's numbers are what the profile says, in steps of one batch each.

    Where no equal bits are claimed there may be some all the same: that depends on the CPU. The difference is rounding
    and nothing else: in double precision next to nothing is left of it. In single precision no bound holds on every
    CPU. Adam makes whole steps of a gradient that is only rounding, and batch normalization divides by the spread that
    a batch happens to have.
    """
    assert profile is not None
    if profile.is_exact:
        assert distance_after(3, kind, hp, **how) == 0.0
    else:
        assert distance_after(3, double_precision(kind), hp, **how) < ROUNDING


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("benchmarks/data/mlp.py", "Mlp"),
        ("examples/digits/trainer.py", "Digits"),
        ("examples/charlm/trainer.py", "CharLM"),
    ],
)
def test_the_claim_is_so_on_the_examples(path: str, name: str) -> None:
    kind, hp = one_batch_each(trainer(path, name)), {"lr": 0.02, "bs": 32}
    assert_claim_holds(profile_of(kind, hp), kind, hp)


@pytest.mark.slow
@pytest.mark.parametrize(("net", "size"), [("tempered", 8), ("relu", 4), ("relu", 8), ("dropping", 8), ("grouped", 4)])
def test_the_claim_is_so_on_models_of_the_usual_kinds(net: str, size: int) -> None:
    hp, how = {"lr": 0.01, "bs": size, "optimizer": "asgd"}, {"net": net, "batches_per_step": 1}
    assert_claim_holds(profile_of(Usual, hp, **how), Usual, hp, **how)


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_equal_bits_are_claimed_only_where_the_optimizers_steps_have_them(optimizer: str) -> None:
    hp, how = {"lr": 0.3, "bs": 8, "optimizer": optimizer}, {"net": "relu", "batches_per_step": 1}
    assert_claim_holds(profile_of(Usual, hp, **how), Usual, hp, **how)


def wide(between: type[nn.Module]) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 64), between(), nn.Linear(64, 64), between(), nn.Linear(64, 10))


def test_the_claim_is_not_that_of_another_model_with_the_same_shapes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A packed SiLU has other bits than a single one; a ReLU with the same weights has the same."""
    hp, how = {"lr": 0.01, "bs": 32, "optimizer": "asgd"}, {"batches_per_step": 1}
    for kind in (nn.ReLU, nn.SiLU):
        monkeypatch.setitem(NETS, "wide", lambda kind=kind: wide(kind))
        assert_claim_holds(profile_of(Usual, hp, net="wide", **how), Usual, hp, net="wide", **how)


def test_no_equal_bits_are_claimed_where_gradients_are_clipped() -> None:
    clipped = profile_of(Usual, {"lr": 0.3, "bs": 8}, net="tempered", batches_per_step=1, clip_grad_norm=0.1)
    assert clipped is not None and not clipped.is_exact


def test_what_packs_cost_is_measured_for_all_powers_of_two_up_to_their_width() -> None:
    pack = new_pack(6, [0, 1, 2, 3], Usual, net="relu", batches_per_step=1)
    assert not train_packed(pack, {number: {"lr": 0.3, "bs": 8} for number in range(4)}, 1)
    before = weights(pack[3])
    for number in range(3):
        pack.leave(number)
    profile = pack.profile()
    assert profile is not None and set(profile.packed) == {2, 4, 6}
    assert all(cost.seconds > 0 for cost in (profile.alone, *profile.packed.values()))
    assert_same(weights(pack[3]), before)


@pytest.mark.parametrize("behind", [0, 3], ids="{} rows behind the lanes".format)
@pytest.mark.parametrize(("optimizer", "step"), [("adamw", "sqrt"), ("rmsprop", "sqrt"), ("asgd", "mul_")])
def test_what_is_measured_is_the_whole_step_and_nothing_is_changed(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, step: str, behind: int
) -> None:
    """The optimizer's step, too: with some it grows with the lanes, for any number of rows that a processor needs."""
    monkeypatch.setattr("stagetree.packing.profiling.stable_width", lambda *_: StableWidth(4 + behind, 4, exact=True))
    counts = list[int]()

    def record_call(compute: Callable[[], object], device: str) -> PackCost:
        with Operations() as found:
            compute()
        counts.append(found.counts[step])
        return PackCost(1.0, 0)

    pack = new_pack(4, [0, 1], Usual, net="relu", batches_per_step=1)
    hps = {number: {"lr": 0.3, "bs": 8, "optimizer": optimizer} for number in range(2)}
    assert not train_packed(pack, hps, 2)
    monkeypatch.setattr("stagetree.packing.profiling.measure_cost", record_call)
    before = weights(pack[0]), weights(pack[1])
    assert pack.profile() is not None
    assert counts == ([6, 24, 12] if optimizer == "asgd" else [6, 1, 1])  # tensors; alone, packs of 4 and 2
    assert_same(weights(pack[0]), before[0])
    assert_same(weights(pack[1]), before[1])


def test_what_takes_long_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a warm-up round."""
    calls = list[int]()
    monkeypatch.setattr("stagetree.packing.profiling.MIN_SECONDS", 0.0)
    assert measure_cost(lambda: calls.append(1), "cpu").seconds > 0
    assert len(calls) == 2


def test_what_cannot_be_packed_has_no_profile() -> None:
    assert profile_of(Unpackable, {"lr": 0.3, "bs": 8}) is None


def measure_profile(monkeypatch: pytest.MonkeyPatch, *seconds: float | Exception, widest: int = 16) -> Profile | None:
    """The profile of a model before its first step, with these costs: alone, and in each pack."""
    costs = iter(seconds)

    def cost(compute: object, device: str) -> PackCost:
        found = next(costs)
        if isinstance(found, Exception):
            raise found
        return PackCost(found, 0)

    monkeypatch.setattr("stagetree.packing.profiling.measure_cost", cost)
    pack = new_pack(1, [0], Usual, net="relu", batches_per_step=1)
    profile = pack.measure(0, HpTimeline({"lr": 0.3, "bs": 8}), widest)
    assert (profile is None) == bool(pack.unpackable_reason)
    return profile


def test_packs_are_measured_as_long_as_a_lane_costs_less(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = measure_profile(monkeypatch, 1.0, 3.0, 4.0, 8.0, 1.0)
    assert profile is not None and {width: cost.seconds for width, cost in profile.packed.items()} == {
        2: 3.0,
        4: 4.0,
        8: 8.0,
    }
    assert profile.alone.seconds == 1.0 and profile.batch == {"bs": 8} and not profile.is_exact


def test_packs_are_measured_up_to_as_many_lanes_as_come_into_question(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = measure_profile(monkeypatch, *[1.0] * 4, widest=6)
    assert profile is not None and set(profile.packed) == {2, 4, 6}


def test_packs_are_measured_as_long_as_there_is_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    profile = measure_profile(monkeypatch, 1.0, 1.0, OutOfMemoryError("no room"))
    assert profile is not None and set(profile.packed) == {2}
    assert measure_profile(monkeypatch, 1.0, OutOfMemoryError("no room")) is None


def test_measuring_leaves_the_weights_as_they_are() -> None:
    pack = new_pack(1, [0], Usual, net="dropping", batches_per_step=1)
    before = {name: each.clone() for name, each in pack[0].trainer.model.state_dict().items()}
    assert pack.measure(0, HpTimeline({"lr": 0.3, "bs": 8}), 4) is not None
    assert_same(pack[0].trainer.model.state_dict(), before)


def test_what_cannot_be_packed_is_not_measured() -> None:
    pack = new_pack(1, [0], Unpackable, batches_per_step=1)
    assert pack.measure(0, HpTimeline({"lr": 0.3, "bs": 8}), 4) is None
    assert "asks a tensor for its value" in pack.unpackable_reason


def test_products_have_all_their_digits_for_a_while() -> None:
    """TF32 is a GPU's default for convolutions; see `tests/gpu/test_gpu_packs.py`."""
    before = torch.backends.cudnn.allow_tf32
    model = Usual(seed=0, device="cpu", net="relu")
    model.setup({"lr": 0.1, "bs": 8})
    lane = Lane(model, "cpu", generators.state("cpu"), 0)
    with lane.full_precision():
        assert not torch.backends.cudnn.allow_tf32
    assert torch.backends.cudnn.allow_tf32 == before
