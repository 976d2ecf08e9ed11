"""Trainers whose training leaves something in the process, late, where the next trial in it would find it.

Each of them is sound in a process of its own. None of this shows in a check, which trains two steps.
"""

from __future__ import annotations

import os
import random
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch
from small import Counting

LATE = 12


class Left(Counting):
    """The shared, sound part."""

    shows_in = "one-by-one"


is_frozen = False


class FrozenGlobally(Left):
    """A flag among the globals, as of a backbone that is frozen at an epoch."""

    name = "frozen-globally"

    def push(self) -> float:
        global is_frozen
        is_frozen = is_frozen or self.count == LATE
        return 0.2 if is_frozen else 1.0


@dataclass(slots=True)
class Phase:
    is_frozen: bool = False


PHASE = Phase()


class FrozenInSlots(Left):
    """The flag is in an object without a `__dict__`."""

    name = "frozen-in-slots"

    def push(self) -> float:
        PHASE.is_frozen = PHASE.is_frozen or self.count == LATE
        return 0.2 if PHASE.is_frozen else 1.0


class Defined(Left):
    """A global that is only there once it was set."""

    name = "defined-late"

    def push(self) -> float:
        if self.count == LATE:
            globals()["phase"] = 2
        return 1.0 / globals().get("phase", 1)


class ClassStatistics(Left):
    """Statistics of the class, which are taken from an epoch on."""

    name = "class-statistics"
    seen: ClassVar[list[float]] = []

    def push(self) -> float:
        if self.count >= LATE:
            self.seen.append(self.weight)
        return 1.0 + sum(self.seen)


class Numbered(Left):
    """Each object has a number, which matters late."""

    name = "numbered"
    made = 0

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        Numbered.made += 1
        self.number = Numbered.made

    def push(self) -> float:
        return 1.0 / self.number if self.count >= LATE else 1.0


class DoublePrecision(Left):
    """Computes in double precision from an epoch on, by a setting of torch."""

    name = "double-precision"

    def push(self) -> float:
        if self.count == LATE:
            torch.set_default_dtype(torch.float64)
        return torch.tensor(0.1).div(3).double().item()


class ErrorsOfNumpy(Left):
    name = "errors-of-numpy"

    def push(self) -> float:
        if self.count == LATE:
            np.seterr(divide="raise")
        try:
            return 1.0 if np.isinf(np.float64(1.0) / np.float64(0.0)) else 0.5
        except FloatingPointError:
            return 0.0


class PhaseInEnvironment(Left):
    name = "phase-in-environment"

    def push(self) -> float:
        if self.count == LATE:
            os.environ["EXACTNESS_PHASE"] = "2"
        return 1.0 / float(os.environ.get("EXACTNESS_PHASE", "1"))


def scale(value: float) -> float:
    return value


class Patched(Left):
    """Replaces a function by another one."""

    name = "patched"

    def push(self) -> float:
        if self.count == LATE:
            globals()["scale"] = lambda value: 0.3 * value
        return scale(1.0)


@cache
def samples(kind: str) -> list[float]:
    """Data that is read once in a process."""
    return [0.1 * number for number in range(7)]


class CachedData(Left):
    """Shuffles, in place, data that is kept for the process, where its first epoch ends; its order is in the state."""

    name = "cached-data"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.data = samples("train")

    def push(self) -> float:
        if self.count == LATE:
            random.shuffle(self.data)
        return self.data[self.count % 7]

    def more(self) -> dict[str, Any]:
        return {"count": self.count, "data": list(self.data)}

    def take(self, state: dict[str, Any]) -> None:
        self.count, self.data = state["count"], list(state["data"])
