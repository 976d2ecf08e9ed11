"""Lanes with their own orders of data share a pass, in which each has a row of samples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from kinds import Operations, one_batch_each, trainer
from lanes import STEADY, Tiny, assert_same, new_pack, on_a_cpu, pack_as_alone, train_alone, train_packed, weights
from torch import Tensor
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.runtime.model import Model
from stagetree.sequences import parse

WIDTH = 4
HPS: dict[int, dict[str, Any]] = {
    number: {**STEADY, "lr": 0.05 / (1 + number), "data_seed": number} for number in range(WIDTH)
}


def assert_near_alone(kind: type[TorchTrainer], hps: dict[int, dict[str, Any]] = HPS) -> None:
    """The results are close to training alone, and equal bit for bit without the other lanes."""
    pack = pack_as_alone(WIDTH, hps, 3, kind)
    for number, hp in hps.items():
        by_itself = new_pack(WIDTH, [0], kind)
        assert not train_packed(by_itself, {0: hp}, 3)
        assert_same(weights(by_itself[0]), weights(pack[number]))


def operations(hps: dict[int, dict[str, Any]], kind: type[TorchTrainer]) -> int:
    """The operations of a third step."""
    pack = new_pack(8, hps, kind)
    assert not train_packed(pack, hps, 2) and not pack.unpackable_reason
    with Operations() as found:
        assert not train_packed(pack, hps, 1)
    return found.counts.total()


@on_a_cpu
def test_eight_orders_take_one_pass() -> None:
    """Only reading samples grows with the lanes: a few operations for each."""
    kind = one_batch_each(trainer("benchmarks/data/mlp.py", "Mlp"))
    hps = {number: {"lr": 0.01, "momentum": 0.9, "bs": 32, "data_seed": number} for number in range(8)}
    one, all_ = operations({0: hps[0]}, kind), operations(hps, kind)
    assert all_ - one <= 7 * 8


class Normed(Tiny):
    """Its loss counts samples that it finds in a nest of its own, and logs."""

    name = "normed"

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> Any:
        found = super().transform_batch(batch, generator)
        return {"pair": (found[0], found[1]), "words": "kept", "few": 2}

    def loss(self, batch: Any) -> Tensor:
        numbers, targets = batch["pair"]
        assert isinstance(batch["pair"], tuple) and batch["words"] == "kept"
        return super().loss([numbers * batch["few"], targets])


class Ragged(Tiny):
    """In some orders a batch has fewer samples."""

    name = "ragged"

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> Any:
        return [each[: 3 + self.data_seed % 2] for each in super().transform_batch(batch, generator)]


@dataclass
class Pair:
    numbers: Tensor
    targets: Tensor


class Hidden(Tiny):
    """A trainer whose batches hide their tensors from a search."""

    name = "hidden"

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> Any:
        return Pair(*super().transform_batch(batch, generator))

    def loss(self, batch: Any) -> Tensor:
        return super().loss([batch.numbers, batch.targets])


class Drawing(Tiny):
    """Its batches are changed by random numbers of the model's own."""

    name = "drawing"

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> Any:
        return [each + torch.randn(1).to(each) / 100 for each in super().transform_batch(batch, generator)]


class Seeing(Tiny):
    """Its loss depends on the seed of the data."""

    name = "seeing"

    def loss(self, batch: Any) -> Tensor:
        return super().loss(batch) * (1 + self.data_seed)


class Streams(Tiny):
    """Its samples come from two streams, in shares that are a hyper-parameter."""

    name = "streams"

    def streams_of(self, data: TensorDataset) -> Any:
        return {"web": TensorDataset(*data[:13]), "code": TensorDataset(*data[13:])}


class Telling(Streams):
    """Its loss depends on the shares themselves."""

    name = "telling"

    def loss(self, batch: list[Tensor]) -> Tensor:
        return super().loss(batch) * (1 + len(str(self.hp["data"])) / 100)


MIXES: dict[int, dict[str, Any]] = {
    0: {**STEADY, "data": "web"},
    1: {**STEADY, "data": {"mix": {"web": 0.7, "code": 0.3}}},
    2: {**STEADY, "data": {"mix": {"web": 1, "code": 1}}, "lr": 0.02, "data_seed": 0},
    3: {**STEADY, "data": parse({"family": "values", "values": ["web", "code"], "milestones": [1]})},
}


@pytest.mark.parametrize("kind", [Streams, Telling])
def test_a_lane_learns_from_streams_in_its_own_shares(kind: type[TorchTrainer]) -> None:
    assert_near_alone(kind, MIXES)


def test_lanes_with_shares_of_their_own_take_one_pass() -> None:
    """Their places in the streams are kept apart, and are in their checkpoints."""
    kind = one_batch_each(Streams)
    one, all_ = operations({0: MIXES[0]}, kind), operations({number: MIXES[number] for number in (0, 1)}, kind)
    assert all_ - one <= 8
    pack = new_pack(WIDTH, MIXES, Streams)
    assert not train_packed(pack, MIXES, 3)
    for number, hp in MIXES.items():
        assert place(pack[number]) == place(train_alone(hp, 3, Streams))


def place(trained: Model) -> Any:
    return trained.state()["trainer"]["mix"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Tiny, Normed, Ragged, Hidden, Drawing, Seeing])
def test_a_lane_learns_from_its_own_samples_whatever_its_batches_are(kind: type[TorchTrainer]) -> None:
    assert_near_alone(kind)


def test_parts_of_batches_are_each_lanes_own() -> None:
    class Parted(Tiny):
        def __init__(self, **args: Any) -> None:
            super().__init__(micro_batch_size=2, **args)

    assert_near_alone(Parted)


class Unreadable(Tiny):
    """A sample of one of the orders cannot be read after the first step."""

    name = "unreadable"

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> Any:
        if self.data_seed == 1 and self.offset >= 8:
            raise OSError("no such sample")
        return super().transform_batch(batch, generator)


def test_a_lane_whose_samples_cannot_be_read_fails_alone() -> None:
    pack, expected = new_pack(WIDTH, HPS, Unreadable), new_pack(WIDTH, HPS, Tiny)
    assert train_packed(pack, HPS, 3).keys() == {1}
    assert not train_packed(expected, HPS, 3)
    for number in HPS.keys() - {1}:
        assert_same(weights(pack[number]), weights(expected[number]))
