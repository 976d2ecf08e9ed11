"""A state that is loaded into an object which has trained another trial continues as in a fresh one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer, function_trainer
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.model import HpTimeline, Model
from stagetree.trainer import Trainer

State = dict[str, Any]
LATE = 6


def build(seed: int, device: str) -> State:
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return {"model": model, "optimizer": optimizer, "steps": 0, "_x": torch.linspace(0, 1, 8)[:, None]}


def step(state: State, hp: State) -> None:
    """From a step on, it averages the weights: the name is there no sooner."""
    state["steps"] += 1
    for group in state["optimizer"].param_groups:
        group["lr"] = hp["lr"]
    state["optimizer"].zero_grad()
    ((state["model"](state["_x"]) - 2 * state["_x"]) ** 2).mean().backward()
    state["optimizer"].step()
    if state["steps"] > LATE:
        weight = state["model"].weight.detach().clone()
        state["mean"] = 0.5 * state["mean"] + 0.5 * weight if "mean" in state else weight


def measure(state: State) -> dict[str, float]:
    return {"loss": float((state.get("mean", state["model"].weight.detach()) - 2).abs().sum())}


class Weighted(TorchTrainer):
    """Its batches are drawn by weights that a hyper-parameter shapes."""

    name = "weighted"

    def __init__(self, *, seed: int, device: str) -> None:
        drawn = torch.Generator().manual_seed(1)
        data = TensorDataset(torch.randn(32, 4, generator=drawn), torch.randn(32, 1, generator=drawn))
        super().__init__(seed=seed, device=device, model=nn.Linear(4, 1), train_data=data, valid_data=data)
        self.batch_size = 8

    def apply(self, name: str, value: Any) -> None:
        if name != "focus":
            super().apply(name, value)

    def order(self, generator: torch.Generator) -> Tensor:
        weights = torch.linspace(0.1, 1, 32) ** self.hp.get("focus", 0.0)
        return torch.multinomial(weights, 32, replacement=True, generator=generator)

    def make_optimizer(self, hp: State) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: tuple[Tensor, Tensor]) -> Tensor:
        return ((self.model(batch[0]) - batch[1]) ** 2).mean()


def timeline(**values: float) -> HpTimeline:
    return HpTimeline({name: {"family": "constant", "value": value} for name, value in values.items()})


def train_until(model: Model, hp: HpTimeline, until: int) -> Model:
    while model.step < until:
        model.advance(hp)
    return model


@pytest.mark.parametrize("used", [False, True])
@pytest.mark.parametrize(
    "trainer, other, own",
    [
        (lambda: function_trainer("late", build, step, measure), timeline(lr=0.9), timeline(lr=0.01)),
        (lambda: Weighted, timeline(lr=0.05, focus=0.0), timeline(lr=0.05, focus=4.0)),
    ],
    ids=["names that a step makes", "an order by a hyper-parameter"],
)
@pytest.mark.parametrize("at", [4, 8])
def test_a_trial_resumes_in_an_object_that_trained_another(
    trainer: Callable[[], type[Trainer]], other: HpTimeline, own: HpTimeline, used: bool, at: int
) -> None:
    kind = trainer()
    alone = train_until(Model.build(kind, {}, 0, "cpu"), own, at)
    fd, _ = alone.save()
    here = Model.build(kind, {}, 0, "cpu")
    if used:
        train_until(here, other, 9)
    here.load(state_format.read(fd), own, at)
    assert train_until(here, own, 12).evaluate() == train_until(alone, own, 12).evaluate()
