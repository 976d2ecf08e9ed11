"""One weight in training: what the trainers of the bank have in common, without any mistake."""

from __future__ import annotations

import math
from typing import Any, ClassVar

from stagetree import Trainer


class Small(Trainer):
    """A weight that each step pushes on. A difference in the last bit of it grows, and never goes away again.

    is_repeatable: whether training it twice without a break gives the same values. shows_in: the study in which that
    it is wrong shows. kept: the names of a subclass's own part of the state, where `more` and `take` need not say more.
    Each has a `push` for each step.
    """

    is_repeatable: ClassVar[bool] = True
    shows_in: ClassVar[str] = "grid"
    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self, *, seed: int, device: str, tag: str = "") -> None:
        self.seed, self.device = seed, device
        self.weight, self.lr, self.wd = 0.1, 0.0, 0.0

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr, self.wd = hp.get("lr", self.lr), hp.get("wd", self.wd)

    def train(self) -> None:
        self.weight = math.sin(2.7 * self.weight + self.lr * self.push() - 0.01 * self.wd)

    def push(self) -> float:
        return 1.0

    def evaluate(self) -> dict[str, float]:
        return {"value": self.weight}

    def state_dict(self) -> dict[str, Any]:
        return {"weight": self.weight, **self.more()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = state["weight"]
        self.take(state)

    def more(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.kept}

    def take(self, state: dict[str, Any]) -> None:
        """Go back to what `more` gave."""
        for name in self.kept:
            setattr(self, name, state[name])


class Forgetful(Small):
    """As before, with the number of steps, which is not in the state: the mistake itself, where it is read."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.count = 0

    def train(self) -> None:
        super().train()
        self.count += 1


class Counting(Forgetful):
    """As before, with the number of steps in the state."""

    kept = ("count",)
