"""Trainers of one number: one can begin from weights, the other cannot."""

from __future__ import annotations

from typing import Any

import torch

from stagetree import Trainer


class Beginner(Trainer):
    name = "beginner"
    version = "1"

    def __init__(self, *, seed: int, device: str, tag: str = "") -> None:
        self.weight, self.momentum, self.lr = torch.zeros(1), torch.zeros(1), 0.0

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr = hp["lr"]

    def begin(self, weights: dict[str, Any]) -> None:
        self.weight = weights["weight"].clone() + 0 * torch.rand(1)  # `begin` may draw

    def train(self) -> None:
        self.momentum = 0.5 * self.momentum + self.lr
        self.weight = self.weight + self.momentum + torch.rand(1) / 1000

    def evaluate(self) -> dict[str, float]:
        return {"score": float(self.weight)}

    def state_dict(self) -> dict[str, Any]:
        return {"model": {"weight": self.weight}, "momentum": self.momentum}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight, self.momentum = state["model"]["weight"].clone(), state["momentum"].clone()


class Stubborn(Beginner):
    name = "stubborn"
    begin = Trainer.begin
