"""Trainers that draw, read data or measure in a way that a break disturbs, each in one way."""

from __future__ import annotations

import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import numpy as np
import torch
from small import Counting, Forgetful, Small
from torch.utils.data import DataLoader

DATA = [0.1 * number * (-1) ** number for number in range(11)]


class NumpyGenerator(Small):
    name = "numpy-generator"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.rng = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.rng.random())


class PythonGenerator(Small):
    name = "python-generator"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.rng = random.Random(self.seed)

    def push(self) -> float:
        return self.rng.random()


class TorchGenerator(Small):
    name = "torch-generator"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.generator = torch.Generator().manual_seed(self.seed)

    def push(self) -> float:
        return torch.rand(1, generator=self.generator).item()


class HiddenGenerator(Small):
    """A generator inside of an object of its own, as an augmentation has."""

    name = "hidden-generator"

    class Augmentation:
        def __init__(self, seed: int) -> None:
            self.pipeline = [np.random.RandomState(seed)]

        def __call__(self, value: float) -> float:
            return value + self.pipeline[0].random_sample()

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.augment = self.Augmentation(self.seed)

    def push(self) -> float:
        return self.augment(0.5)


class LoaderGenerator(Small):
    """A loader that shuffles by a generator of its own, and is begun again after a break."""

    name = "loader-generator"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        generator = torch.Generator().manual_seed(self.seed)
        self.loader = DataLoader(DATA, batch_size=2, shuffle=True, generator=generator)  # type: ignore[arg-type]
        self.batches: Iterator[Any] = iter(())

    def push(self) -> float:
        try:
            return float(next(self.batches).sum())
        except StopIteration:
            self.batches = iter(self.loader)
            return self.push()


class DataPosition(Forgetful):
    name = "data-position"

    def push(self) -> float:
        return DATA[self.count % len(DATA)]


class ShuffledOrder(Counting):
    """Shuffles its data anew in each epoch, in place; the order is not saved."""

    name = "shuffled-order"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.order = list(DATA)

    def push(self) -> float:
        if self.count % len(DATA) == 0:
            random.shuffle(self.order)
        return self.order[self.count % len(DATA)]


class Unseen(Small):
    """Draws without replacement; the rest of the urn is not saved."""

    name = "unseen"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.left: list[float] = []

    def push(self) -> float:
        self.left = self.left or list(DATA)
        return self.left.pop(random.randrange(len(self.left)))


class Stream(Small):
    """An endless generator function, which is begun again after a break."""

    name = "stream"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.samples = self.read()

    def read(self) -> Iterator[float]:
        number = 0
        while True:
            number += 1
            yield 1.0 / number

    def push(self) -> float:
        return next(self.samples)


class MeasuringDraws(PythonGenerator):
    """Measures with the generator that it trains with, which is in the state."""

    name = "measuring-draws"

    def evaluate(self) -> dict[str, float]:
        return {"value": self.weight + 0.0 * self.rng.random()}

    def more(self) -> dict[str, Any]:
        version, numbers, gauss = self.rng.getstate()
        return {"rng": [version, list(numbers), gauss]}

    def take(self, state: dict[str, Any]) -> None:
        version, numbers, gauss = state["rng"]
        self.rng.setstate((version, tuple(numbers), gauss))


class MeasuringReads(Counting):
    """A measurement takes the next sample, so training continues from another one."""

    name = "measuring-reads"

    def push(self) -> float:
        return DATA[self.count % len(DATA)]

    def evaluate(self) -> dict[str, float]:
        self.count += 1
        return {"value": self.weight}


class MeasuringSums(Small):
    """A metric that accumulates over measurements."""

    name = "measuring-sums"
    total, times = 0.0, 0

    def evaluate(self) -> dict[str, float]:
        self.total, self.times = self.total + self.weight, self.times + 1
        return {"value": self.total / self.times}


class MeasuringSchedules(Small):
    """The rate is lowered where a measurement is no better, in `evaluate`; all of it is in the state."""

    name = "measuring-schedules"
    best, scale = -2.0, 1.0
    kept = ("best", "scale")

    def push(self) -> float:
        return self.scale

    def evaluate(self) -> dict[str, float]:
        self.scale *= 0.5 if self.weight <= self.best else 0.9
        self.best = max(self.best, self.weight)
        return {"value": self.weight}


class SeedsAtFirst(Small):
    """Seeds NumPy at the first step of each object."""

    name = "seeds-at-first"
    is_seeded = False

    def push(self) -> float:
        if not self.is_seeded:
            np.random.seed(7)
            self.is_seeded = True
        return np.random.rand()


class Remembered(Counting):
    """A cached function repeats for each epoch the first result in the process, from any trial."""

    name = "remembered"

    def push(self) -> float:
        return shelf(self.count // 5).setdefault("weight", self.weight)


@cache
def shelf(epoch: int) -> dict[str, float]:
    return {}


class Unseeded(Small):
    name = "unseeded"
    is_repeatable = False

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.rng = np.random.default_rng()

    def push(self) -> float:
        return float(self.rng.random())
