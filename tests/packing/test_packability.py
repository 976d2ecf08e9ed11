"""Models that cannot be packed are refused before the first step, in a sentence."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lanes import STEADY, Tiny, assert_same, distance, new_pack, pack_as_alone, train_alone, train_packed, weights
from torch import Tensor, nn

from stagetree import TorchTrainer


class OwnBatch(Tiny):
    def train_batch(self, batch: Any) -> None:
        super().train_batch(batch)


class Item(Tiny):
    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        return loss * (1 + 0 * loss.item())


class Branch(Tiny):
    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        return loss if loss > 0 else -loss


class Counts(Tiny):
    calls = 0

    def loss(self, batch: list[Tensor]) -> Tensor:
        self.calls += 1
        return super().loss(batch)


class Remembers(Tiny):
    """Each trainer draws the value that its loss adds, where no pack can see it."""

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.own = {"scale": 1.0}

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.own["scale"] = hp.get("lr", 1.0) * 10

    def loss(self, batch: list[Tensor]) -> Tensor:
        return super().loss(batch) * self.own["scale"]


class Elsewhere(Tiny):
    """Its loss holds parameters that a pass cannot replace."""

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.decaying = [self.model[0].weight]

    def loss(self, batch: list[Tensor]) -> Tensor:
        return super().loss(batch) + self.decaying[0].square().sum()


class Summed(Tiny):
    """Its loss is (sum, count)."""

    def loss(self, batch: list[Tensor]) -> tuple[Tensor, int]:
        return super().loss(batch) * len(batch[0]), len(batch[0])


class Unused(Tiny):
    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.model.register_parameter("unused", nn.Parameter(torch.zeros(3)))


HPS = {0: STEADY, 1: {**STEADY, "lr": 0.3}}


@pytest.mark.parametrize(
    ("kind", "how", "reason"),
    [
        (OwnBatch, {}, "overrides `train_batch`"),
        (Item, {}, "asks a tensor for its value"),
        (Branch, {}, "asks a tensor for its value"),
        (Counts, {}, "changes the trainer itself"),
        (Elsewhere, {}, "its loss is another"),
        (Unused, {}, "parameter unused has no gradient"),
        (Tiny, {"precision": "fp16"}, "fp16"),
        pytest.param(Tiny, {"compile": True}, "compiled", marks=pytest.mark.slow),
        (Summed, {"micro_batch_size": 2}, "its loss is (sum, count), and `micro_batch_size` cuts"),
    ],
)
def test_what_cannot_be_packed_is_trained_one_after_the_other_and_it_is_said_why(
    kind: type[TorchTrainer], how: dict[str, Any], reason: str
) -> None:
    pack_as_alone(2, HPS, 2, kind, reason=reason, **how)


def test_a_sum_and_its_count_are_packed() -> None:
    pack_as_alone(2, HPS, 3, Summed)


class DrawsInSetup(OwnBatch):
    """Draws from the global generator in each setup."""

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        with torch.no_grad():
            self.model[0].weight += torch.rand(1).to(self.model[0].weight)


def test_what_is_refused_is_set_up_once() -> None:
    """Once its first step set it up a second time, and its result differed from training alone."""
    pack = new_pack(2, [0], DrawsInSetup)
    assert not train_packed(pack, {0: STEADY}, 2)
    assert_same(weights(pack[0]), weights(train_alone(STEADY, 2, DrawsInSetup)))


@pytest.mark.parametrize("other", [{"lr": 0.3}, {"lr": 0.05, "width": 5}, {"lr": 0.3, "bad": True}])
def test_who_else_is_there_decides_nothing(other: dict[str, Any]) -> None:
    """Another model's shape, or an unpackable trainer beside it, does not change how a model is trained."""
    mine = {"lr": 0.05, "width": 3}
    by_itself = new_pack(2, [0], Choosy)
    assert not train_packed(by_itself, {0: mine}, 3)
    hps = {0: {"width": 3, **other}, 1: mine}
    pack = new_pack(2, hps, Choosy)
    assert not train_packed(pack, hps, 3)
    assert_same(weights(pack[1]), weights(by_itself[0]))
    if "bad" not in other:
        assert distance(weights(pack[0]), weights(train_alone(hps[0], 3, Choosy))) < 1e-12


def test_only_what_cannot_be_packed_is_trained_as_if_alone() -> None:
    hps = {0: {"lr": 0.05, "width": 3}, 1: {"lr": 0.05, "width": 3, "bad": True}}
    pack = new_pack(2, hps, Choosy)
    assert not train_packed(pack, hps, 3)
    assert "asks a tensor for its value" in pack.unpackable_reason
    assert_same(weights(pack[1]), weights(train_alone(hps[1], 3, Choosy)))
    pack.leave(1)
    assert not pack.unpackable_reason


class Choosy(Remembers):
    """`width` shapes the model, and where `bad` is true the loss cannot be packed."""

    def __init__(self, *, seed: int, device: str) -> None:
        super().__init__(seed=seed, device=device)
        del self.model

    def build(self, hp: dict[str, Any]) -> nn.Module:
        return nn.Sequential(nn.Linear(2, hp["width"]), nn.Tanh(), nn.Linear(hp["width"], 1)).double()

    def apply(self, name: str, value: Any) -> None:
        if name != "bad":
            super().apply(name, value)

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        return loss * (1 + 0 * loss.item()) if self.hp.get("bad") else loss
