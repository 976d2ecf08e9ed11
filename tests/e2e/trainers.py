"""Trainers of a millisecond, whose weights show every difference: in values, order, randomness, and restored state."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer, Trainer

leaked: list[bytearray] = []
"""Never let go of, not even with the trainer that left it there."""

broken = False
"""A simulated fault of this process's device: no operation works on it any more."""


class Toy(Trainer):
    """Eight weights that a step moves by `lr`, `momentum` and every global generator.

    seconds: how long a step takes at least; where `slow_while` names a file, as long as that is there. journal: a file
    that gets a line for each step: process, slot's time before and after it. tag: makes another plan. ballast: bytes of
    its state that mean nothing. `mood` says what
    goes wrong, see `MOODS`: "hiccup" once a journal, "sick" where the environment says so, and "device" for all that
    comes after it in the same process.
    """

    name = "toy"
    caches = ("leaked",)
    MOODS: ClassVar = (
        *("fine", "raise", "memory", "gpu_memory", "exit", "leave", "nan", "silent", "absurd", "verbose", "unsavable"),
        *("sleep", "chatty", "leak", "hiccup", "device", "sick"),
    )

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        seconds: float = 0.0,
        slow_while: str = "",
        journal: str = "",
        tag: str = "",
        ballast: int = 0,
    ) -> None:
        self.ballast = torch.zeros(ballast, dtype=torch.uint8)
        self.seconds, self.slow_while, self.journal = seconds, slow_while, journal
        self.hp: dict[str, Any] = {}
        self.weights = torch.randn(8, dtype=torch.float64)
        self.velocity = torch.zeros(8, dtype=torch.float64)
        self.trained = 0

    @property
    def mood(self) -> str:
        return str(self.hp.get("mood", "fine"))

    def setup(self, hp: dict[str, Any]) -> None:
        self.hp |= hp

    def train(self) -> None:
        begun = time.monotonic()
        self._fail_if_in_the_mood()
        push = torch.randn(8, dtype=torch.float64) + random.random() + np.random.rand()
        self.velocity = self.hp.get("momentum", 0.5) * self.velocity + push
        self.weights = torch.sin(self.weights + self.hp["lr"] * self.velocity)
        self.trained += 1
        self.log("push", push.norm())
        if not self.slow_while or os.path.exists(self.slow_while):
            time.sleep(self.seconds)
        if self.journal:
            with open(self.journal, "a") as journal:
                journal.write(f"{os.getpid()} {self.trained} {begun} {time.monotonic()}\n")

    def evaluate(self) -> Any:
        torch.rand(3), random.random(), np.random.rand(2)  # evaluating may draw: training must not notice
        if self.mood == "absurd":
            return "very good"
        if self.mood == "silent":
            return {"size": 8.0}
        if self.mood == "verbose":
            return {f"weight {number}": 0.0 for number in range(2000)}
        score = float("nan") if self.mood == "nan" else float(self.weights.mean())
        return {"score": score, "size": float(self.velocity.norm()), "trained": float(self.trained)}

    def state_dict(self) -> dict[str, Any]:
        state = {"weights": self.weights, "velocity": self.velocity, "trained": self.trained}
        state |= {"ballast": self.ballast} if len(self.ballast) else {}
        return state | ({"lock": object()} if self.mood == "unsavable" else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights, self.velocity = state["weights"].clone(), state["velocity"].clone()
        self.trained = state["trained"]

    def average(self, states: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
        (first, weight), *others = states
        total = weight + sum(each for _, each in others)
        means = [first["weights"] * weight / total, *(state["weights"] * each / total for state, each in others)]
        return {**first, "weights": torch.stack(means).sum(0)}

    def _fail_if_in_the_mood(self) -> None:
        global broken
        broken = broken or self.mood == "device"
        if broken or (self.mood == "sick" and os.environ.get("SICK")):
            raise RuntimeError("CUDA error: device-side assert triggered")
        if self.mood == "hiccup" and not os.path.exists(f"{self.journal}.hiccup"):
            open(f"{self.journal}.hiccup", "w").close()
            raise OSError("stale file handle")
        if self.mood == "raise":
            raise ValueError("the loss went through the roof")
        if self.mood == "memory":
            raise MemoryError("no room")
        if self.mood == "gpu_memory":
            raise torch.OutOfMemoryError("CUDA out of memory")
        if self.mood == "exit":
            os._exit(7)
        if self.mood == "leave":
            raise SystemExit("I quit")
        if self.mood == "chatty":
            print(f"step {self.trained} says hello")
        if self.mood == "leak":
            leaked.append(bytearray(b"x" * 2**26))
        if self.mood == "sleep":
            time.sleep(3600)


class Packable(TorchTrainer):
    """A model of thirteen weights, with dropout. seconds: how long a step takes at least."""

    name = "packable"

    def __init__(self, *, seed: int, device: str, seconds: float = 0.0, tag: str = "") -> None:
        self.seconds = seconds
        numbers = torch.linspace(-1, 1, 40).view(20, 2)
        data = TensorDataset(numbers, numbers.prod(dim=1, keepdim=True))
        model = nn.Sequential(nn.Linear(2, 3), nn.Tanh(), nn.Dropout(0.2), nn.Linear(3, 1))
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=data, batches_per_step=1)

    def make_optimizer(self, hp: dict[str, Any]) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch: list[Tensor]) -> Tensor:
        return mse_loss(self.model(batch[0]), batch[1])

    def after_step(self) -> None:
        time.sleep(self.seconds)


class Blended(Packable):
    """Its average waits as long as there is a file `slow_while`, into which it writes its process."""

    name = "blended"

    def __init__(self, *, slow_while: str, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.slow_while = slow_while

    def average(self, states: Iterable[tuple[dict[str, Any], float]]) -> dict[str, Any]:
        def slowly() -> Iterator[tuple[dict[str, Any], float]]:
            for each in states:
                yield each
                while os.path.exists(self.slow_while):
                    Path(self.slow_while).write_text(str(os.getpid()))
                    time.sleep(0.05)

        return super().average(slowly())


class Sharded(Trainer):
    """Three numbers that each shard of a batch moves: with a rank for every shard, a step takes half as long as alone.

    seconds: how long a shard takes.
    """

    name = "sharded"

    def __init__(self, *, seed: int, device: str, seconds: float = 0.0, tag: str = "") -> None:
        self.seconds, self.lr = seconds, 0.0
        self.weights = torch.randn(3, dtype=torch.float64)

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr = hp.get("lr", self.lr)

    def train(self) -> None:
        (change,) = self.ranks.sum([self._change(shard)] for shard in self.ranks.own(self.ranks.shards))
        self.weights = self.weights + self.lr * change

    def _change(self, shard: int) -> Tensor:
        time.sleep(self.seconds)
        return (self.weights * (1 + shard)).sin() / 3

    def evaluate(self) -> dict[str, float]:
        return {"score": float(self.weights.sum())}

    def state_dict(self) -> dict[str, Any]:
        return {"weights": self.weights}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weights = state["weights"]
