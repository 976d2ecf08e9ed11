"""What stagetree trains: the same model, cut into step, state and evaluation."""

from __future__ import annotations

from typing import Any

from stagetree import Trainer

from .model import Model


class Peer(Trainer):
    """Hyper-parameters: `lr`, `momentum`, `weight_decay`, `bs`. A step is an epoch."""

    name = "peer"

    def __init__(self, *, seed: int, device: str) -> None:
        self.model, self.values = Model(seed), dict[str, float]()

    def setup(self, hp: dict[str, Any]) -> None:
        self.values |= hp

    def train(self) -> None:
        self.model.train(self.values)

    def evaluate(self) -> dict[str, float]:
        return {"val_loss": self.model.evaluate()}

    def state_dict(self) -> dict[str, Any]:
        return self.model.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state)
