"""Trainers whose state lacks something, each one thing. Without a break, every one of them is sound."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from small import Counting, Forgetful, Small


class Counter(Forgetful):
    name = "counter"

    def push(self) -> float:
        return 1.0 / (1 + self.count)


class Scheduler(Small):
    """Its rate is multiplied at each step, by hand."""

    name = "scheduler"
    factor = 1.0

    def push(self) -> float:
        self.factor *= 0.9
        return self.factor


class LateDecay(Forgetful):
    """The rate falls from step 10 on."""

    name = "late-decay"

    def push(self) -> float:
        return 1.0 if self.count < 10 else 0.1


class LateCurriculum(Forgetful):
    """Harder samples from step 12 on: all that was trained before is equal."""

    name = "late-curriculum"

    def push(self) -> float:
        return float(self.count) if self.count >= 12 else 0.5


class FrozenAtStep(Forgetful):
    """A second weight that is not trained from step 6 on."""

    name = "frozen-at-step"
    head = 0.3
    kept = ("head",)

    def push(self) -> float:
        if self.count < 6:
            self.head = math.cos(self.head + self.weight)
        return self.head


class Average(Small):
    """Measures an exponential moving average of its weight."""

    name = "average"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.ema = self.weight

    def train(self) -> None:
        super().train()
        self.ema = 0.9 * self.ema + 0.1 * self.weight

    def evaluate(self) -> dict[str, float]:
        return {"value": self.ema}


class LateAverage(Forgetful):
    """Averages weights from step 8 on, and does not save how many it has."""

    name = "late-average"
    mean, held = 0.0, 0
    kept = ("mean", "count")

    def train(self) -> None:
        super().train()
        if self.count > 8:
            self.held += 1
            self.mean += (self.weight - self.mean) / self.held

    def evaluate(self) -> dict[str, float]:
        return {"value": self.mean if self.held else self.weight}


class Momentum(Small):
    name = "momentum"
    velocity = 0.0

    def push(self) -> float:
        self.velocity = 0.9 * self.velocity + math.cos(self.weight)
        return self.velocity


class RetryPolicy(Small):
    """Halves its rate when the weight was not better three times."""

    name = "patience"
    best, bad, scale = -1.0, 0, 1.0
    kept = ("best", "scale")

    def push(self) -> float:
        self.best, self.bad = (self.weight, 0) if self.weight > self.best else (self.best, self.bad + 1)
        if self.bad >= 3:
            self.scale, self.bad = self.scale / 2, 0
        return self.scale


class Accumulation(Counting):
    """Updates every third step; the gradients that wait for it are not saved."""

    name = "accumulation"
    gradient = 0.0

    def push(self) -> float:
        self.gradient += math.cos(self.weight + self.count)
        if self.count % 3 < 2:
            return 0.0
        whole, self.gradient = self.gradient, 0.0
        return whole


class LossScale(Small):
    """Rounds as 16 bits do, at a scale that grows every third step."""

    name = "loss-scale"
    scale, good = 1.0, 0

    def push(self) -> float:
        self.good += 1
        if self.good == 3:
            self.scale, self.good = min(3 * self.scale, 999.0), 0
        return float(np.float16(math.cos(self.weight) * self.scale)) / self.scale


class Normaliser(Small):
    """Divides by the running spread of its inputs, as reinforcement learning does."""

    name = "normaliser"
    seen, mean, spread = 0, 0.0, 1.0

    def push(self) -> float:
        self.seen += 1
        last, self.mean = self.mean, self.mean + (self.weight - self.mean) / self.seen
        self.spread += (self.weight - last) * (self.weight - self.mean)
        return (self.weight - self.mean) / math.sqrt(self.spread)


class ReplayBuffer(Small):
    """Learns from earlier samples, which are not in the state."""

    name = "replay-buffer"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.buffer: list[float] = []

    def push(self) -> float:
        self.buffer.append(self.weight)
        return self.buffer[len(self.buffer) // 2]


class TargetNetwork(Counting):
    """Compares with a copy of its weight that is made every fifth step."""

    name = "target-network"
    target = 0.0

    def push(self) -> float:
        if self.count % 5 == 0:
            self.target = self.weight
        return self.weight - self.target


class Vocabulary(Counting):
    """Numbers words as they come."""

    name = "vocabulary"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.numbers: dict[str, int] = {}

    def push(self) -> float:
        word = "abcdefg"[self.count * self.count % 7]
        return float(self.numbers.setdefault(word, len(self.numbers)))


class Snapshot(Counting):
    """A reference gradient, taken anew every seventh step, as SVRG does; only its age is saved."""

    name = "snapshot"
    reference = 0.0

    def push(self) -> float:
        if self.count % 7 == 0:
            self.reference = math.cos(self.weight)
        return math.cos(self.weight) - self.reference


class Truncated(Small):
    """Saves three of the five values that it reads."""

    name = "truncated"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.history: list[float] = []

    def push(self) -> float:
        self.history = [*self.history, self.weight][-5:]
        return sum(self.history) / len(self.history)

    def more(self) -> dict[str, Any]:
        return {"history": self.history[-3:]}

    def take(self, state: dict[str, Any]) -> None:
        self.history = list(state["history"])


class Narrow(Small):
    """Saves a place in the data of 40 samples a step as one byte."""

    name = "narrow"
    place = 0

    def push(self) -> float:
        self.place += 40
        return self.place / 100

    def more(self) -> dict[str, Any]:
        return {"place": np.array([self.place]).astype(np.uint8)}

    def take(self, state: dict[str, Any]) -> None:
        self.place = int(state["place"][0])


class SinglePrecision(Small):
    """Saves its weight in half the bits."""

    name = "single-precision"

    def state_dict(self) -> dict[str, Any]:
        return {"weight": np.array([self.weight], dtype=np.float32)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = float(state["weight"][0])


class SixDigits(Small):
    """Saves its weight as text."""

    name = "six-digits"

    def state_dict(self) -> dict[str, Any]:
        return {"weight": f"{self.weight:.6f}"}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.weight = float(state["weight"])


class OtherKey(Counter):
    """Saves its counter under one name and asks for another, which need not be there."""

    name = "other-key"

    def more(self) -> dict[str, Any]:
        return {"steps": self.count}

    def take(self, state: dict[str, Any]) -> None:
        self.count = state.get("step", 0)


class SavingRounds(Small):
    """Rounds its weight each time the state is saved."""

    name = "saving-rounds"

    def state_dict(self) -> dict[str, Any]:
        self.weight = round(self.weight, 9)
        return {"weight": self.weight}


class SavingCounts(Counting):
    """Ends an epoch each time the state is saved."""

    name = "saving-counts"
    epochs = 0
    kept = ("count", "epochs")

    def push(self) -> float:
        return 1.0 / (1 + self.epochs)

    def more(self) -> dict[str, Any]:
        self.epochs += 1
        return super().more()
