"""The three tasks, as the programs of the peers see them: what to choose from, and the hyper-parameters of each step.

stagetree's own program has no need of it: its studies say the same in `studies/`, and a test compares the two.
"""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from itertools import product
from typing import Any

Config = dict[str, Any]
"""What a tool chose: one value for each name."""

SLOTS = 2
CONSTANT = {"momentum": 0.9, "weight_decay": 0.0005, "bs": 64}

BEGINNINGS = {"high": (0.1, 0), "low": (0.05, 0), "warm-5": (0.1, 5), "warm-10": (0.1, 10)}
"""Learning rate, and the steps of a warm-up to it."""

LEAST_STEPS, MOST_STEPS, ETA, DRAWS = 2, 54, 3, 48
TARGET = 0.0252
"""Of ASHA: the loss at which the search is over. Of the 48 configurations of a seed one or two come to it."""


@dataclass(frozen=True)
class Task:
    """What a program searches through, and how often it evaluates."""

    name: str
    choices: dict[str, list[Any]]
    """What a grid is made of; for ASHA none: it draws."""
    every: int
    """Steps from one evaluation to the next."""

    def configurations(self, seed: int) -> list[Config]:
        """All of a grid; for ASHA the configurations of this seed, in the order in which tools begin them."""
        if not self.choices:
            return drawn(seed)
        return [dict(zip(self.choices, each, strict=True)) for each in product(*self.choices.values())]

    def steps(self, config: Config) -> int:
        """How long a configuration is trained where nothing stops it."""
        if self.name == "ladder":
            return int(config["stable"] + config["decay"])
        return 40 if self.name == "grid" else MOST_STEPS

    def values(self, config: Config, step: int) -> dict[str, float]:
        """The hyper-parameters of step `step`, counted from 0."""
        if self.name == "ladder":
            return {**CONSTANT, "lr": cooldown_hp(0.1, step, config["stable"], config["decay"])}
        return grid_values(config, step) if self.name == "grid" else {**config, "bs": 64}


def cooldown_hp(peak: float, step: int, stable: int, decay: int) -> float:
    """A learning rate that climbs for four steps, holds, and falls to nothing by a square root."""
    if step < 4:
        return peak * (step + 1) / 4
    return peak if step < stable else peak * (1 - math.sqrt(min(1.0, (step - stable) / decay)))


def grid_values(config: Config, step: int) -> dict[str, float]:
    """The configurations of the reference grid, `examples/digits/study.yaml`."""
    peak, warmup = BEGINNINGS[config["begin"]]
    if step < warmup:
        rate = peak * (step + 1) / warmup
    else:
        rate = peak * 0.1 ** sum(step >= int(milestone) for milestone in config["falls"].split())
    return {
        "lr": rate,
        "momentum": 0.95 if config["momentum"] == "rises" and step >= 25 else 0.9,
        "weight_decay": 0.0005,
        "bs": 128 if config["bs"] == "rises" and step >= 24 else 64,
    }


TASKS = {
    task.name: task
    for task in (
        Task("ladder", {"stable": [20, 40, 60, 80], "decay": [4, 8, 16]}, every=4),
        Task(
            "grid",
            {
                "begin": list(BEGINNINGS),
                "falls": ["20 30", "30"],
                "bs": ["constant", "rises"],
                "momentum": ["constant", "rises"],
            },
            every=10,
        ),
        Task("asha", {}, every=2),
    )
}


def drawn(seed: int) -> list[Config]:
    draw = random.Random(seed)
    return [
        {
            "lr": math.exp(draw.uniform(math.log(0.0003), math.log(1.0))),
            "momentum": draw.uniform(0.0, 0.98),
            "weight_decay": math.exp(draw.uniform(math.log(1e-5), math.log(1e-2))),
        }
        for _ in range(DRAWS)
    ]
