"""A trainer whose steps only sleep and whose results follow from its hyper-parameters: for `benchmarks/makespan.py`.

It stands alone, since every process that trains imports its file.
"""

from __future__ import annotations

import math
import time
from typing import Any

from stagetree import Trainer

EVALUATE_SECONDS = 0.05


def score(x: float, step: int) -> float:
    """What a model with this `x` comes to: a curve that rises to x, with a ripple that tells steps apart."""
    return x * (1 - math.exp(-step / 8)) + 0.002 * math.sin(37 * x + step)


def pace(x: float) -> float:
    """How long a step takes for whom, around 1: models differ, and the order in which results come is no coin toss."""
    return 0.7 + 0.6 * x


class Sleeper(Trainer):
    """A step takes about `seconds`. tag: makes another plan."""

    name = "sleeper"

    def __init__(self, *, seed: int, device: str, seconds: float, tag: str) -> None:
        self.seconds, self.trained, self.hp = seconds, 0, dict[str, Any]()

    def setup(self, hp: dict[str, Any]) -> None:
        self.hp |= hp

    def train(self) -> None:
        time.sleep(self.seconds * pace(self.hp["x"]))
        self.trained += 1

    def evaluate(self) -> dict[str, float]:
        time.sleep(EVALUATE_SECONDS)
        return {"score": score(self.hp["x"], self.trained)}

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = state["trained"]
