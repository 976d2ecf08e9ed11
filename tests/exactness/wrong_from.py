"""Trainers that are sound up to a step, and wrong from there on: of the property that no number is wrong in silence."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from small import Counting, Forgetful, Small


class WrongFrom(Forgetful):
    """Its count is not in the state, and matters from the step `since` on."""

    name = "wrong-from"

    def __init__(self, *, since: int, **how: Any) -> None:
        super().__init__(**how)
        self.since = since

    def push(self) -> float:
        return 1.0 / self.count if self.count and self.count >= self.since else 0.5


class WrongEpochs(Counting):
    """Draws for each epoch with a hidden generator that is not in the state, as a loader does.

    Its place in the epoch and the drawn order are in the state: nothing shows before the first end of an epoch
    behind a break.
    """

    name = "wrong-epochs"
    drawn = 0.0
    kept = ("count", "drawn")

    def __init__(self, *, every: int, **how: Any) -> None:
        super().__init__(**how)
        self.every, self.draws = every, self.draw()

    def draw(self) -> Iterator[float]:
        generator = random.Random(self.seed)
        while True:
            yield generator.random()

    def push(self) -> float:
        if self.count % self.every == 0:
            self.drawn = next(self.draws)
        return self.drawn


class WrongOption(Small):
    """Counts in a hidden place, and reads that with one of two optimizers only, as if the state lacked its memory."""

    name = "wrong-option"
    optimizer = "sgd"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.updates = self.count_updates()

    def count_updates(self) -> Iterator[int]:
        number = 0
        while True:
            number += 1
            yield number

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.optimizer = hp.get("optimizer", self.optimizer)

    def push(self) -> float:
        number = next(self.updates)
        return 1.0 / number if self.optimizer == "adam" else 0.5
