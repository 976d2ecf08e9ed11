"""Trainers with modules of torch that are right, each unusual in one way."""

from __future__ import annotations

import io
from typing import Any

import torch
from torch import Tensor, nn
from wrong_modules import Given, Net, X


class Whole(Net):
    """Model and optimizer, all of it."""

    name = "whole"


class EvaluatesAndGoesBack(Net):
    """Dropout is off while it measures, and on again after that."""

    name = "evaluates-and-goes-back"

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1))

    def evaluate(self) -> dict[str, float]:
        self.model.eval()
        try:
            return super().evaluate()
        finally:
            self.model.train()


class LazyModule(Net):
    """Its first layer takes its shape from the first batch."""

    name = "lazy-module"

    def make(self) -> nn.Module:
        model = nn.Sequential(nn.LazyLinear(3), nn.Tanh(), nn.Linear(3, 1))
        model(X)
        return model


class SavedByTorch(Net):
    """Its state is what `torch.save` writes."""

    name = "saved-by-torch"

    def state_dict(self) -> dict[str, Any]:
        file = io.BytesIO()
        torch.save(super().state_dict(), file)
        return {"all": file.getvalue()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(torch.load(io.BytesIO(state["all"])))


class AverageSaved(Net):
    """A moving average of the weights, which is measured and saved."""

    name = "average-saved"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.mean = {name: each.clone() for name, each in self.model.state_dict().items()}

    def train(self) -> None:
        super().train()
        for name, each in self.model.state_dict().items():
            self.mean[name].mul_(0.9).add_(each, alpha=0.1)

    def evaluate(self) -> dict[str, float]:
        return {"value": sum(each.sum().item() for each in self.mean.values())}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.mean = {name: each.clone() for name, each in state["mean"].items()}


class Plain(Given):
    """A `TorchTrainer` as it should be, with dropout."""

    name = "plain"

    def loss(self, batch: Any) -> Tensor:
        dropped = nn.functional.dropout(batch[0], 0.3, training=torch.is_grad_enabled())
        return super().loss([dropped, batch[1]])


class MoreState(Given):
    """A `TorchTrainer` whose own average is in the state."""

    name = "more-state"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.mean = torch.zeros(3, 2)

    def after_step(self) -> None:
        self.mean = 0.9 * self.mean + 0.1 * self.model[0].weight.detach()  # type: ignore[index]

    def evaluate(self) -> dict[str, float]:
        return {"value": self.mean.sum().item()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "mean": self.mean}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.mean = state["mean"].clone()
