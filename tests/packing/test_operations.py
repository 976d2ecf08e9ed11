"""The operations of a packed step on a device: about as many as for one model, for any number of lanes, and no sync."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest
import torch
from kinds import Operations, Usual, one_batch_each, trainer
from lanes import STEADY, Tiny, Weights, assert_same, model, new_pack, train_alone, train_packed
from torch.fx.experimental.proxy_tensor import make_fx
from torch.optim import SGD, Adam, AdamW, Optimizer, RMSprop

from stagetree import TorchTrainer
from stagetree.packing import Lane
from stagetree.packing.loss import Loss
from stagetree.packing.stack import Stack, StackRows
from stagetree.trainer import generators


@pytest.fixture(autouse=True)
def as_a_gpu_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compute whole packs at once, like on a GPU; see `test_caches.py`."""
    monkeypatch.setattr("stagetree.packing.batched.SLOW_GROUP_NORM_DEVICES", frozenset())
    monkeypatch.setattr("stagetree.packing.update_rules.BYTES_PER_CORE", 1 << 40)
    monkeypatch.setattr("stagetree.packing.stable_width.MAX_SAVED_BYTES", 1 << 40)


MORE = 15
"""The most operations that a packed step may have beyond a step of the model alone."""

READS = "_local_scalar_dense"
"""Alone, a counter of steps is read on the host, which is no operation of the device."""

WAITS = ("_local_scalar_dense", "item", "is_nonzero", "nonzero", "equal", "unique", "masked_select")
"""These operations wait for the device."""

OPTIMIZERS: dict[str, Any] = {
    "sgd": lambda net: SGD(net.parameters(), lr=0.01, momentum=0.9, weight_decay=5e-4, foreach=True),
    "adam": lambda net: Adam(net.parameters(), lr=0.01, foreach=True),
    "adamw": lambda net: AdamW(net.parameters(), lr=0.01, foreach=True),
    "rmsprop": lambda net: RMSprop(net.parameters(), lr=0.01, momentum=0.9),  # its own code, as users write it
}
"""Alone, all but the last change all parameters at once, like on a GPU."""

RULED = ("sgd", "adam", "adamw")


def trainer_with(kind: type[TorchTrainer], optimizer: str, clip: float | None) -> type[TorchTrainer]:
    class With(one_batch_each(kind)):  # type: ignore[misc]
        def __init__(self, **args: Any) -> None:
            super().__init__(**args)
            self.clip_grad_norm = clip

        def make_optimizer(self, hp: dict[str, Any]) -> Optimizer:
            made: Optimizer = OPTIMIZERS[optimizer](self.model)
            return made

    return With


def step_operations(kind: type[TorchTrainer], hp: dict[str, Any]) -> Counter[str]:
    """The operations of a third step, alone."""
    trained = train_alone(hp, 2, kind)
    with Operations() as found:
        trained.trainer.train()
    return found.counts


def packed_step_operations(width: int, kind: type[TorchTrainer], hp: dict[str, Any], numbers: range) -> Counter[str]:
    """The operations of a third step of a pack with these lanes, which have rates of their own."""
    hps = {number: {**hp, "lr": 0.01 * (1 + number)} for number in numbers}
    pack = new_pack(width, hps, kind)
    assert not train_packed(pack, hps, 2) and not pack.unpackable_reason
    with Operations() as found:
        assert not train_packed(pack, hps, 1)
    return found.counts


MODELS = {
    "mlp": ("benchmarks/data/mlp.py", "Mlp"),
    "cnn": ("examples/digits/trainer.py", "Digits"),
    "transformer": ("examples/charlm/trainer.py", "CharLM"),
}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, optimizer",
    [
        *product(("mlp", "cnn"), RULED),
        ("mlp", "rmsprop"),
        ("transformer", "sgd"),
        pytest.param("transformer", "adam", marks=pytest.mark.night),
        pytest.param("transformer", "adamw", marks=pytest.mark.night),
    ],
)
def test_a_packed_step_is_about_as_many_operations_as_one_alone(name: str, optimizer: str) -> None:
    assert_few(name, optimizer, widths=(1, 8, 64) if name == "mlp" else (1, 8))


@pytest.mark.night
@pytest.mark.parametrize("name, optimizer", product(["cnn", "transformer"], RULED))
def test_a_step_of_64_lanes_is_no_more_operations(name: str, optimizer: str) -> None:
    assert_few(name, optimizer, widths=(64,))


def assert_few(name: str, optimizer: str, widths: Sequence[int]) -> None:
    kind = trainer_with(trainer(*MODELS[name]), optimizer, 1.0 if optimizer == "adamw" else None)
    hp = {"lr": 0.01, "bs": 32}
    alone = step_operations(kind, hp)
    most = alone.total() - alone[READS] + MORE
    for width in widths:
        found = packed_step_operations(width, kind, hp, range(width))
        assert found.total() <= most, found
        assert not found.keys() & set(WAITS)


@pytest.mark.slow
def test_attention_of_all_lanes_is_one_kernel_for_each_layer() -> None:
    """On a CPU, torch has no batching rule for it, and once called its kernel for each lane."""
    kind = trainer_with(trainer(*MODELS["transformer"]), "sgd", None)
    found = packed_step_operations(4, kind, {"lr": 0.01, "bs": 8}, range(4))
    kernels = {name: count for name, count in found.items() if "attention" in name}
    assert kernels and set(kernels.values()) == {2}  # layers; forward and backward


class Logging(Tiny):
    """It logs, has buffers and gradients that are clipped."""

    def __init__(self, **args: Any) -> None:
        super().__init__(clip_grad_norm=0.1, **args)


@pytest.mark.parametrize("batches", [{"bs": 4}, {"bs": 8}], ids=str)
def test_lanes_that_nobody_has_and_what_is_logged_cost_no_operations(batches: dict[str, int]) -> None:
    hp, few = {**STEADY, **batches}, range(2)
    full = packed_step_operations(8, Logging, hp, range(8))
    assert packed_step_operations(8, Logging, hp, few).total() <= full.total()
    assert full.total() == packed_step_operations(4, Logging, hp, range(4)).total()


@pytest.mark.slow
@pytest.mark.parametrize("net", ["convolving", "channelled", "attending", "encoding", "layered", "tempered"])
def test_a_pass_can_be_captured(net: str) -> None:
    """Traced with fake tensors, it is one graph, so no operation reads a number; the graph gives the same bits."""
    trained = model(Usual, net=net)
    trained.set_up({"lr": 0.1, "bs": 8})
    lane = Lane(trained.trainer, "cpu", generators.state("cpu"), 0)
    stack = Stack(lane.model, [], width=3)
    batch, _ = next(lane.read(lane.next_batch()))

    def gradients(parameters: Weights, buffers: Weights, batch: Any) -> Weights:
        return Loss(lane.trainer).run_packed(StackRows(range(3), parameters, stack.constants, buffers), batch).gradients

    with generators.preserve("cpu"):
        graph = make_fx(gradients, tracing_mode="fake")(stack.rows().parameters, stack.rows().buffers, batch)
    whole = torch.compile(graph, fullgraph=True, backend="eager")
    with generators.preserve("cpu"):
        expected = gradients(stack.rows().parameters, stack.rows().buffers, batch)
    found = whole(stack.rows().parameters, stack.rows().buffers, batch)
    assert_same(found, expected)
