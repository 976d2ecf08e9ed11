"""Trainers of a millisecond that are exact, or are not, each in its own way."""

from __future__ import annotations

import os
from typing import Any

import torch

from stagetree import Trainer


class Right(Trainer):
    """Eight weights that a step moves by `lr`, chance, and how many steps there were. journal: gets a line a step."""

    name = "right"

    def __init__(self, *, seed: int, device: str, journal: str = "") -> None:
        self.journal = journal
        self.weights = torch.randn(8, dtype=torch.float64)
        self.count = 0
        self.lr = 0.0

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.weights = torch.sin(self.weights + self.lr * (torch.randn(8, dtype=torch.float64) + self.count))
        self.count += 1
        if self.journal:
            with open(self.journal, "a") as journal:
                journal.write(f"{os.getpid()} {self.count}\n")

    def evaluate(self) -> dict[str, float]:
        return {"score": float(self.weights.mean())}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights, "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.count = state["weights"].clone(), state["count"]


class Ordinary(Trainer):
    """A network with dropout and an optimizer, whose mode each step and each evaluation set, and a list of scores."""

    name = "ordinary"

    def __init__(self, *, seed: int, device: str) -> None:
        self.net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Dropout(0.5), torch.nn.Linear(4, 1))
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.1, momentum=0.9)
        self.scores: list[float] = []

    def setup(self, hp: dict[str, Any]) -> None:
        self.optimizer.param_groups[0]["lr"] = hp["lr"] / 100

    def train(self) -> None:
        self.net.train()
        self.optimizer.zero_grad()
        self.net(torch.randn(8, 4)).square().mean().backward()
        self.optimizer.step()
        self.scores.clear()

    def evaluate(self) -> dict[str, float]:
        self.net.eval()
        with torch.no_grad():
            self.scores.append(float(self.net(torch.ones(1, 4))))
        return {"score": self.scores[-1]}

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])
        self.optimizer.load_state_dict(state["optimizer"])


class Forgetful(Right):
    """How many steps there were is not in its state."""

    name = "forgetful"

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"].clone()


class Idle(Right):
    """Keeps a number that nothing reads. It says so of another one."""

    name = "idle"
    caches = ("last",)

    def train(self) -> None:
        super().train()
        self.seen = getattr(self, "seen", 0) + 1
        self.last = self.weights


class Unloadable(Right):
    """A fresh process cannot take its state: something is only there once it was trained."""

    name = "unloadable"

    def train(self) -> None:
        super().train()
        self.made = True

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not hasattr(self, "made"):
            raise RuntimeError("the buffers are not there yet")
        super().load_state_dict(state)


class Failing(Right):
    """Fails at its first step."""

    name = "failing"

    def train(self) -> None:
        print("a batch of 4, and a loss of 1e30")
        raise ValueError("the loss went through the roof")


class Leaving(Right):
    """Ends its process at its first step."""

    name = "leaving"

    def train(self) -> None:
        os._exit(7)


class Silent(Right):
    """Reports another metric than it should."""

    name = "silent"

    def evaluate(self) -> dict[str, float]:
        return {"size": 8.0}
