"""Small trainers for packs, and ways to train them alone and packed."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar
from weakref import WeakSet

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.optim import SGD, AdamW, Optimizer
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.packed import Failed, PackedModels

Hp = dict[str, Any]
DEVICE = os.environ.get("STAGETREE_TEST_DEVICE", "cpu")
"""The device of packs: tests/gpu/test_gpu_packing.py runs these tests on a GPU."""

DROPPED = 0.3 if DEVICE == "cpu" else 0.0
"""The probability of dropout: on a GPU, packs drop other numbers than single models, which tests/gpu allow for."""

NEAR = 1e-12 if torch.__version__ >= "2.12" else 1e-10
"""The largest rounding error of double precision that was measured; with torch 2.6 it was larger."""

on_a_cpu = pytest.mark.skipif(DEVICE != "cpu", reason="so it is on a CPU")

STEADY: Hp = {"lr": 0.05, "momentum": 0.9, "bs": 4}
Weights = Mapping[str, Tensor]


class Tiny(TorchTrainer):
    """Twenty samples in double precision; dropout, batch norm and noise make every batch matter.

    No bias before the batch norm: its gradient is nothing but rounding, of which Adam makes whole steps.
    """

    name = "tiny"

    def __init__(
        self, *, seed: int, device: str, batches_per_step: int = 2, dtype: str = "float64", **how: Any
    ) -> None:
        numbers = torch.linspace(-1, 1, 40, dtype=getattr(torch, dtype)).view(20, 2)
        data = TensorDataset(numbers, numbers.prod(dim=1, keepdim=True))
        layers = (nn.Linear(2, 5, bias=False), nn.BatchNorm1d(5), nn.Tanh(), nn.Dropout(DROPPED), nn.Linear(5, 1))
        how = {"batches_per_step": batches_per_step, **how}
        model = nn.Sequential(*layers).to(getattr(torch, dtype))
        streams = self.streams_of(data)
        super().__init__(seed=seed, device=device, model=model, train_data=streams, valid_data=data, **how)

    def streams_of(self, data: TensorDataset) -> Any:
        return data

    def make_optimizer(self, hp: Hp) -> Optimizer:
        if hp.get("optimizer") == "adamw":  # whose eps of 1e-8 makes large steps of small gradients' rounding
            return AdamW(self.model.parameters(), lr=hp["lr"], eps=1e-3)
        return SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = mse_loss(self.model(batch[0]), batch[1])
        self.log("loss", loss)
        return loss

    def transform_batch(self, batch: list[Tensor], generator: torch.Generator) -> list[Tensor]:
        noise = torch.randn(1, generator=generator, dtype=torch.float64).to(batch[1])
        return [batch[0], batch[1] + noise / 100]


def model(kind: type[TorchTrainer] = Tiny, **args: Any) -> Model:
    built = Model.build(kind, args, 0, DEVICE)
    if isinstance(made := getattr(built.trainer, "model", None), nn.Module):
        made.to(DEVICE)  # some trainers here replace the optimizer that they gave to `TorchTrainer`
    return built


def train_alone(hp: Hp, steps: int, kind: type[TorchTrainer] = Tiny, **args: Any) -> Model:
    """Train a trial by itself."""
    trained, timeline = model(kind, **args), HpTimeline(hp)
    for _ in range(steps):
        trained.advance(timeline)
    return trained


def train_packed(pack: PackedModels, hps: Mapping[int, Hp], steps: int) -> Failed:
    """Train these models of a pack for some steps; return the failed ones."""
    timelines, failed = {number: HpTimeline(hp) for number, hp in hps.items()}, Failed()
    for _ in range(steps):
        failed |= pack.advance({number: timelines[number] for number in timelines if number not in failed})
    return failed


def new_pack(width: int, numbers: Iterable[int], kind: type[TorchTrainer] = Tiny, **args: Any) -> PackedModels:
    """A pack with these models before their first step."""
    pack = PackedModels(width)
    for number in numbers:
        pack.add(number, model(kind, **args))
    return pack


def reload_checkpoint(trained: Model, hp: Hp, kind: type[TorchTrainer] = Tiny, **args: Any) -> Model:
    """Load the model's checkpoint into a new model, as in another process."""
    fd, _ = trained.save()
    try:
        saved = state_format.read(fd)
    finally:
        os.close(fd)
    loaded = model(kind, **args)
    loaded.load(saved, HpTimeline(hp), trained.step)
    return loaded


def weights(trained: Model) -> dict[str, Any]:
    """All tensors of a model's state, by their path."""
    return dict(_leaves("", trained.state()))


def _leaves(place: str, value: Any) -> Any:
    if isinstance(value, Tensor):
        yield place, value.clone()
    elif isinstance(value, Mapping):
        for key, each in value.items():
            yield from _leaves(f"{place}.{key}", each)
    elif isinstance(value, Sequence) and not isinstance(value, str | bytes):
        for index, each in enumerate(value):
            yield from _leaves(f"{place}.{index}", each)
    else:
        yield place, torch.tensor(float(value)) if isinstance(value, int | float) else value


def assert_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> None:
    """Equal bit for bit."""
    assert one.keys() == other.keys()
    for place, value in one.items():
        same = value.equal(other[place]) if isinstance(value, Tensor) else value == other[place]
        assert same, place


def distance(one: Mapping[str, Any], other: Mapping[str, Any]) -> float:
    """The largest difference of two numbers at the same path."""
    assert one.keys() == other.keys()
    pairs = ((value, other[place]) for place, value in one.items() if isinstance(value, Tensor) and value.numel())
    return max(float((a.double() - b.double()).abs().max()) for a, b in pairs)


def pack_as_alone(
    width: int,
    hps: Mapping[int, Hp],
    steps: int,
    kind: type[TorchTrainer] = Tiny,
    *,
    most: float = NEAR,
    reason: str = "",
    **args: Any,
) -> PackedModels:
    """A pack after some steps, each of whose models is as far as it would be alone, but for rounding errors.

    most: the largest difference. reason: why they are trained one by one; they are the same to the bit then.
    """
    pack = new_pack(width, hps, kind, **args)
    assert not train_packed(pack, hps, steps)
    assert reason in pack.unpackable_reason and bool(reason) == bool(pack.unpackable_reason)
    for number, hp in hps.items():
        by_itself = train_alone(hp, steps, kind, **args)
        assert distance(weights(pack[number]), weights(by_itself)) < most
        if reason:
            assert_same(weights(pack[number]), weights(by_itself))
    return pack


class Moody(Tiny):
    """Raises in its own code if its learning rate is bad."""

    name = "moody"

    def after_step(self) -> None:
        if self.hp["lr"] == 666.0:
            os._exit(7)
        if self.hp["lr"] > 5:
            raise ArithmeticError("too much")


class Delicate(Tiny):
    """Ends its process in a measurement if its learning rate is bad."""

    name = "delicate"

    def evaluate(self) -> dict[str, float]:
        if self.hp["lr"] == 666.0:
            os._exit(7)
        return super().evaluate()


class Unpackable(Tiny):
    name = "unpackable"

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        return loss * (1 + 0 * loss.item())


class Turned(Tiny):
    """Its dropout is on a transposed tensor, and draws other numbers in a pack than alone."""

    name = "turned"

    def __init__(self, **args: Any) -> None:
        super().__init__(**args)
        self.model = nn.Sequential(
            nn.Linear(2, 5), Transposed(), nn.Dropout(0.3), Transposed(), nn.Linear(5, 1)
        ).double()


class Transposed(nn.Module):
    def forward(self, numbers: Tensor) -> Tensor:
        return numbers.transpose(0, 1)


class Greedy(Tiny):
    """Where its learning rate is bad there is no memory for it.

    room: how many of these models there is memory for in a process. tight: whether from the second step on there is
    none for several at once.
    """

    name = "greedy"
    alive: ClassVar[WeakSet[Greedy]] = WeakSet()

    def __init__(self, *, room: int = 100, tight: bool = False, **args: Any) -> None:
        super().__init__(**args)
        self.tight = tight
        self.alive.add(self)
        if len(self.alive) > room:
            raise torch.OutOfMemoryError("no room for another model")

    def loss(self, batch: list[Tensor]) -> Tensor:
        loss = super().loss(batch)
        if self.hp["lr"] > 5 or (self.tight and self.offset >= 8 and is_packed(loss)):
            raise torch.OutOfMemoryError("no memory for a batch")
        return loss


def is_packed(loss: Tensor) -> bool:
    """Whether the tensor stands for several models: only such a one has no single value."""
    try:
        loss.item()
    except RuntimeError:
        return True
    return False
