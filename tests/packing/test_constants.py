"""Lanes share frozen tensors: eight adapters need one base, unless a trainer may write into it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lanes import (
    STEADY,
    Tiny,
    assert_same,
    distance,
    is_packed,
    model,
    new_pack,
    pack_as_alone,
    reload_checkpoint,
    train_alone,
    train_packed,
    weights,
)
from torch import Tensor, nn
from torch.testing._internal.two_tensor import TwoTensor

from stagetree import TorchTrainer
from stagetree.packing import own_constants
from stagetree.packing.stack import Stack
from stagetree.runtime.model import Model
from stagetree.runtime.packed import Lanes, PackedModels

WIDTH, BASE = 8, 32


class Adapted(nn.Module):
    """A frozen layer with a trained adapter of rank two."""

    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Linear(BASE, BASE).requires_grad_(False)
        self.down, self.up = nn.Linear(BASE, 2, bias=False), nn.Linear(2, BASE, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        return self.base(numbers) + self.up(self.down(numbers))


class Adapting(Tiny):
    name = "adapting"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.model = nn.Sequential(nn.Linear(2, BASE), Adapted(), nn.Tanh(), nn.Linear(BASE, 1)).double()


HPS = {number: {**STEADY, "lr": 0.05 / (1 + number)} for number in range(WIDTH)}


def memory(pack: PackedModels, learns: bool) -> int:
    """The numbers that all models of a pack hold, each memory location counted once."""
    models = [pack[number].trainer.model for number in pack.numbers]  # type: ignore[attr-defined]
    held = {
        each.data_ptr(): each.numel() for one in models for each in one.parameters() if each.requires_grad == learns
    }
    return sum(held.values())


def test_eight_adapters_need_one_base_before_and_after_their_first_step() -> None:
    pack = new_pack(WIDTH, HPS, Adapting)
    base, adapter = BASE * BASE + BASE, 4 * BASE + 2 * BASE + BASE + BASE + 1
    for steps in (0, 2):
        assert not train_packed(pack, HPS, steps) and not pack.unpackable_reason
        assert memory(pack, learns=False) == base
        assert memory(pack, learns=True) == WIDTH * adapter
    for number, hp in HPS.items():
        assert distance(weights(pack[number]), weights(train_alone(hp, 2, Adapting))) < 1e-12


def test_one_base_is_there_when_lanes_have_left_and_are_loaded_anew() -> None:
    lanes = Lanes()
    for number in range(3):
        lanes.begin(("adapting",), is_resumed=False)
        lanes.add(number, model(Adapting), WIDTH)
    assert not train_packed(lanes, {number: HPS[number] for number in range(3)}, 1)  # type: ignore[arg-type]
    before = weights(lanes[1])
    lanes.drop([0, 2])
    anew = lanes.begin(("adapting",), is_resumed=True)
    assert anew is not None
    for each in base_of(anew):
        each.data.zero_()  # like loading another one
    assert_same(weights(lanes[1]), before)


def base_of(one: Model) -> list[Tensor]:
    return list(one.trainer.model[1].base.parameters())  # type: ignore[attr-defined]


def test_models_of_other_constants_are_in_packs_of_their_own() -> None:
    """Neighbours have no effect: each model has the bits that it has by itself."""
    hps = {number: HPS[number] for number in range(3)}
    pack, expected = new_pack(WIDTH, hps, Adapting), new_pack(WIDTH, hps, Adapting)
    own_constants(pack[1].trainer)
    for each in base_of(pack[1]):
        each.data.mul_(2)
    assert not train_packed(pack, hps, 2) and not train_packed(expected, hps, 2)
    for number in (0, 2):
        assert_same(weights(pack[number]), weights(expected[number]))
    assert memory(pack, learns=False) == 2 * (BASE * BASE + BASE)


class Teaching(Adapting):
    """Its own code makes the frozen part follow the trained one."""

    name = "teaching"

    def after_step(self) -> None:
        with torch.no_grad():
            self.model[1].base.weight.mul_(0.9).add_(self.model[1].up.weight.sum() * 0.1)


def test_what_a_trainer_writes_itself_is_each_lanes_own() -> None:
    hps = {number: HPS[number] for number in (0, 5)}
    pack_as_alone(WIDTH, hps, 3, Teaching)


class Counting(Adapting):
    """Its loss writes into a frozen tensor."""

    name = "counting"

    def loss(self, batch: list[Tensor]) -> Tensor:
        with torch.no_grad():
            self.model[1].base.bias.add_(1)
        return super().loss(batch)


def test_a_loss_that_writes_into_constants_is_refused_and_spoils_none() -> None:
    hps = {number: HPS[number] for number in (0, 1)}
    pack_as_alone(WIDTH, hps, 1, Counting, reason="writes into")


@pytest.mark.parametrize("kind", [Adapting, Teaching])
def test_a_checkpoint_of_a_lane_goes_on_in_another_pack(kind: type[TorchTrainer]) -> None:
    first = new_pack(WIDTH, [0, 1], kind)
    hps = {number: HPS[number] for number in (0, 1)}
    assert not train_packed(first, hps, 2)
    second = PackedModels(WIDTH)
    for number in (1, 0):
        second.add(number, reload_checkpoint(first[number], hps[number], kind))
    assert not train_packed(first, hps, 2) and not train_packed(second, hps, 2)
    for number in hps:
        assert_same(weights(first[number]), weights(second[number]))


class Coarse(nn.Module):
    """A layer in bf16, whose last digits differ in a pack, like on a GPU, with an adapter in single precision."""

    def __init__(self, error: float) -> None:
        super().__init__()
        self.error = error
        self.base = nn.Linear(BASE, BASE, bias=False, dtype=torch.bfloat16).requires_grad_(False)
        self.down, self.up = nn.Linear(BASE, 2, bias=False), nn.Linear(2, BASE, bias=False)

    def forward(self, numbers: Tensor) -> Tensor:
        product = self.base(numbers.to(self.base.weight.dtype))
        if is_packed(product.sum()):
            product = product * (1 + self.error + torch.finfo(product.dtype).eps / 2 * product.detach().sign())
        return torch.tanh(product.to(numbers.dtype) + self.up(self.down(numbers)))


class OnCoarse(Tiny):
    """A deep model. error: the relative difference of a layer's result in a pack."""

    name = "on-coarse"

    def __init__(self, *, error: float = 0.0, **args: Any) -> None:
        super().__init__(dtype="float32", **args)
        layers = (Coarse(error) for _ in range(8))
        self.model = nn.Sequential(nn.Linear(2, BASE), *layers, nn.Linear(BASE, 1))


@pytest.mark.parametrize("how", [{}, {"precision": "bf16"}], ids=str)
def test_rounding_of_a_base_in_bf16_is_no_other_loss(how: dict[str, Any]) -> None:
    """Once adapters on a Llama of 230 million weights were trained one by one on an H100."""
    hps = {number: HPS[number] for number in (0, 1)}
    pack = new_pack(WIDTH, hps, OnCoarse, **how)
    assert not train_packed(pack, hps, 1) and not pack.unpackable_reason
    assert base_of(pack[0])[0].dtype == base_of(pack[1])[0].dtype == torch.bfloat16
    assert len({base_of(pack[number])[0].data_ptr() for number in hps}) == 1


def test_what_is_more_than_rounding_of_a_base_in_bf16_is_refused() -> None:
    pack = new_pack(WIDTH, [0], OnCoarse, error=0.03)
    assert not train_packed(pack, {0: HPS[0]}, 1)
    assert "the first module with another output is `1` (Coarse)" in pack.unpackable_reason


@pytest.mark.parametrize(("base", "coarse"), [(torch.bfloat16, ["0.weight"]), (torch.float32, []), (torch.float64, [])])
def test_only_constants_of_fewer_digits_are_widened_for_a_comparison(base: torch.dtype, coarse: list[str]) -> None:
    still = nn.Linear(3, 3, bias=False, dtype=base).requires_grad_(False)
    net = nn.Sequential(still, nn.Linear(3, 3))
    stack = Stack(net, [list(net[1].parameters())], WIDTH)
    assert stack.low_precision_constants == coarse
    with stack.upcast_constants(net):
        assert still.weight.dtype == (torch.float32 if coarse else base)
    assert still.weight.dtype == base


class Casting(Coarse):
    """It casts its inputs to bf16, with weights of any type."""

    def forward(self, numbers: Tensor) -> Tensor:
        product: Tensor = self.base(numbers.bfloat16())
        return product.to(numbers.dtype) + self.up(self.down(numbers))


class OnCasting(OnCoarse):
    name = "on-casting"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.model = nn.Sequential(nn.Linear(2, BASE), Casting(0.0), nn.Linear(BASE, 1))


def test_a_loss_that_wants_its_base_in_bf16_is_packed() -> None:
    pack = new_pack(WIDTH, [0], OnCasting)
    assert not train_packed(pack, {0: HPS[0]}, 1) and not pack.unpackable_reason


class Quantised(Adapting):
    """One of its frozen weights is a tensor that holds others, like torchao's."""

    name = "quantised"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        numbers = [torch.rand(3, 3).double() for _ in range(2)]
        self.model.scaled = nn.Parameter(TwoTensor(*numbers), requires_grad=False)


def test_weights_that_are_tensors_in_tensors_are_each_models_own_and_pack_nothing() -> None:
    one, other = model(Quantised), model(Quantised)
    with torch.no_grad():
        other.trainer.model.scaled.a.add_(1)  # type: ignore[attr-defined]
    before = other.trainer.model.scaled.a.clone()  # type: ignore[attr-defined]
    lanes = Lanes()
    for number, each in enumerate((one, other)):
        lanes.begin(("quantised",), is_resumed=False)
        lanes.add(number, each, WIDTH)
    assert not train_packed(lanes, {number: HPS[number] for number in range(2)}, 1)  # type: ignore[arg-type]
    assert "TwoTensor" in lanes.unpackable_reason
    assert other.trainer.model.scaled.a.equal(before)  # type: ignore[attr-defined]
