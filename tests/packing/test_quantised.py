"""All lanes share a frozen quantised base, which computes them as samples of one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from lanes import (
    DEVICE,
    STEADY,
    Tiny,
    assert_same,
    distance,
    new_pack,
    pack_as_alone,
    reload_checkpoint,
    train_packed,
    weights,
)
from torch import Tensor, nn
from torch.nn import functional
from torch.testing._internal.two_tensor import TwoTensor

from stagetree import TorchTrainer
from stagetree.integrations.huggingface import HFTrainer
from stagetree.packing import own_constants
from stagetree.runtime.packed import PackedModels

WIDTH, BASE = 4, 32
HPS = {number: {**STEADY, "lr": 0.05 / (1 + number)} for number in range(WIDTH)}


class Dequantised(torch.autograd.Function):
    """A function without support for `vmap`, like those of libraries."""

    @staticmethod
    def forward(ctx: Any, numbers: Tensor, levels: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(levels, scale)
        return numbers @ (levels * scale).to(numbers.dtype).T

    @staticmethod
    def backward(ctx: Any, grads: Tensor) -> Any:
        levels, scale = ctx.saved_tensors
        return grads @ (levels * scale).to(grads.dtype), None, None


class Held(TwoTensor):  # type: ignore[misc]
    """A weight that holds tensors with its numbers, like torchao's: levels and their scales."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is functional.linear:
            return Dequantised.apply(args[0], args[1].a, args[1].b)  # type: ignore[no-untyped-call]
        return super().__torch_function__(func, types, args, kwargs or {})

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = super().__torch_dispatch__(func, types, args, kwargs)
        return cls(made.a, made.b) if isinstance(made, TwoTensor) else made


class Beside(nn.Parameter):
    """A weight of levels with its scale as an attribute, like bitsandbytes'."""

    scale: Tensor


def saved_beside(module: Any, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state[f"{prefix}weight.scale"] = module.weight.scale


class LinearBeside(nn.Module):
    def __init__(self, levels: Tensor, scale: Tensor) -> None:
        super().__init__()
        self.weight = Beside(levels, requires_grad=False)
        self.weight.scale = scale
        self.register_state_dict_post_hook(saved_beside)

    def forward(self, numbers: Tensor) -> Tensor:
        made: Tensor = Dequantised.apply(numbers, self.weight.data, self.weight.scale)  # type: ignore[no-untyped-call]
        return made


class Outlying(LinearBeside):
    """A layer that rounds in units of the largest number of a batch."""

    def forward(self, numbers: Tensor) -> Tensor:
        step = numbers.detach().abs().max() / 127
        return super().forward((numbers / step).round() * step)


def levels_and_scale() -> tuple[Tensor, Tensor]:
    chance = torch.Generator().manual_seed(5)
    levels = torch.randint(-127, 128, (BASE, BASE), generator=chance, dtype=torch.int8)
    scale = torch.rand(BASE, 1, generator=chance, dtype=torch.float64) / 500
    return levels.to(DEVICE), scale.to(DEVICE)


def held_layer() -> nn.Module:
    layer = nn.Linear(BASE, BASE, bias=False)
    levels, scale = levels_and_scale()
    layer.weight = nn.Parameter(Held(levels.double(), scale.expand_as(levels).clone()), requires_grad=False)
    return layer


def torchaos(kind: str) -> nn.Module:
    import torchao.quantization as quantised

    layer = nn.Linear(BASE, BASE).requires_grad_(False).to(DEVICE)
    if kind == "nf4":
        from torchao.quantization.quantize_.workflows.nf4 import nf4_tensor as nf4

        layer.weight = nn.Parameter(nf4.to_nf4(layer.weight.data, 64, 16), requires_grad=False)
    else:
        quantised.quantize_(layer, quantised.Int8WeightOnlyConfig())
    return layer


def bitsandbytes() -> nn.Module:
    import bitsandbytes as bnb

    layer: nn.Module = bnb.nn.Linear4bit(BASE, BASE, quant_type="nf4", compute_dtype=torch.float32).to(DEVICE)
    return layer.requires_grad_(False)


def bits8(threshold: float) -> nn.Module:
    """LLM.int8 (Dettmers et al. 2022): columns of a batch with a number above the threshold are computed apart."""
    import bitsandbytes as bnb

    layer: nn.Module = bnb.nn.Linear8bitLt(BASE, BASE, has_fp16_weights=False, threshold=threshold).to(DEVICE)
    return layer.requires_grad_(False)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "held": held_layer,
    "beside": lambda: LinearBeside(*levels_and_scale()),
    "torchao-int8": lambda: torchaos("int8"),
    "torchao-nf4": lambda: torchaos("nf4"),
    "bitsandbytes": bitsandbytes,
    "bitsandbytes-int8": lambda: bits8(0.0),
    "bitsandbytes-outliers": lambda: bits8(6.0),
    "outlying": lambda: Outlying(*levels_and_scale()),
}
LIBRARIES = {name: name.partition("-")[0] for name in KINDS if name.startswith(("torchao", "bitsandbytes"))}
DTYPES = dict.fromkeys(LIBRARIES, torch.float32)
TOGETHER = [name for name in KINDS if name not in ("outlying", "bitsandbytes-outliers")]
NEAR = {**dict.fromkeys(KINDS, 1e-12), **dict.fromkeys(LIBRARIES, 2e-6), "bitsandbytes-int8": 2e-3}
"""The last one computes in half precision."""


class Adapted(nn.Module):
    """A quantised layer with an adapter of rank two."""

    def __init__(self, base: nn.Module, dtype: torch.dtype) -> None:
        super().__init__()
        self.base = base
        self.down, self.up = (nn.Linear(*shape, bias=False, dtype=dtype) for shape in ((BASE, 2), (2, BASE)))

    def forward(self, numbers: Tensor) -> Tensor:
        made: Tensor = self.base(numbers) + self.up(self.down(numbers))
        return made


class Adapting(Tiny, HFTrainer):
    """Its checkpoints have the adapters only."""

    name = "adapting-quantised"

    def __init__(self, *, base: str, **args: Any) -> None:
        dtype = DTYPES.get(base, torch.float64)
        super().__init__(dtype=str(dtype).removeprefix("torch."), trainable_only=True, **args)
        torch.manual_seed(0)
        first, last = nn.Linear(2, BASE, dtype=dtype), nn.Linear(BASE, 1, dtype=dtype)
        layers = (Adapted(KINDS[base](), dtype) for _ in range(2))
        self.model = nn.Sequential(first, *layers, nn.Tanh(), last)

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> list[Tensor]:
        return batch


def tensors_of(kind: str, layer: nn.Module) -> Iterator[Tensor]:
    """The tensors with the numbers of a base."""
    weight: Any = layer.weight
    yield from (weight.a, weight.b) if kind == "held" else (weight.data, weight.scale)


def bases(pack: PackedModels, number: int) -> list[nn.Module]:
    return [pack[number].trainer.model[at].base for at in (1, 2)]  # type: ignore[attr-defined]


@pytest.mark.parametrize("kind", TOGETHER)
def test_lanes_on_a_quantised_base_learn_what_each_learns_alone(kind: str) -> None:
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    pack_as_alone(WIDTH, HPS, 3, Adapting, base=kind, most=NEAR[kind])


@pytest.mark.parametrize("kind", ["held", "beside"])
def test_a_quantised_base_is_in_memory_once_and_whose_it_is_decides_no_bits(kind: str) -> None:
    hps = {number: HPS[number] for number in (0, 2)}
    pack, few = new_pack(WIDTH, HPS, Adapting, base=kind), new_pack(WIDTH, hps, Adapting, base=kind)
    assert not train_packed(pack, HPS, 2) and not train_packed(few, hps, 2)
    for number in hps:
        assert_same(weights(few[number]), weights(pack[number]))
    for layer in range(2):
        assert len({tuple(each.data_ptr() for each in tensors_of(kind, bases(pack, lane)[layer])) for lane in HPS}) == 1
    few.add(1, reload_checkpoint(pack[1], HPS[1], Adapting, base=kind))
    assert not train_packed(few, {1: HPS[1]}, 1) and not train_packed(pack, HPS, 1)
    assert_same(weights(few[1]), weights(pack[1]))


@pytest.mark.parametrize("kind", ["held", "beside"])
def test_lanes_on_other_quantised_numbers_are_in_packs_of_their_own(kind: str) -> None:
    hps = {number: HPS[number] for number in range(3)}
    pack, expected = new_pack(WIDTH, hps, Adapting, base=kind), new_pack(WIDTH, hps, Adapting, base=kind)
    own_constants(pack[1].trainer)
    next(tensors_of(kind, bases(pack, 1)[0])).neg_()
    assert not train_packed(pack, hps, 2) and not train_packed(expected, hps, 2)
    assert not pack.unpackable_reason
    for number in (0, 2):
        assert_same(weights(pack[number]), weights(expected[number]))
    assert distance(weights(pack[1]), weights(expected[1])) > 1e-3


class Writing(Adapting):
    """Its own code might write into the base."""

    name = "writing"

    def after_step(self) -> None:
        pass


class Biased(Adapting):
    """A layer with quantised numbers and trained ones."""

    name = "biased"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.model[1].base.bias = nn.Parameter(torch.zeros(BASE, dtype=torch.float64))


@pytest.mark.parametrize(
    ("trainer", "kind", "reason"),
    [
        (Adapting, "outlying", "depends on the others of its batch"),
        pytest.param(
            *(Adapting, "bitsandbytes-outliers", "depends on the others of its batch"),
            marks=pytest.mark.skipif(DEVICE == "cpu", reason="bitsandbytes takes no columns apart on a CPU"),
        ),
        (Writing, "beside", "may write into its weights of the kind Beside"),
        (Biased, "beside", "weights of the kind Beside lie beside something that learns"),
    ],
)
def test_a_base_that_lanes_cannot_share_is_trained_alone(trainer: type[TorchTrainer], kind: str, reason: str) -> None:
    if kind in LIBRARIES:
        pytest.importorskip(LIBRARIES[kind])
    pack_as_alone(WIDTH, {number: HPS[number] for number in (0, 1)}, 1, trainer, base=kind, reason=reason)
