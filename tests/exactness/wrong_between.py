"""Trainers that are sound where some trials part, and wrong where others do; and whose faults show late."""

from __future__ import annotations

import queue
from collections.abc import Generator
from typing import Any

import torch
from small import Counting, Small
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from wrong_modules import CountingNet, X, Y


class Accumulates(CountingNet):
    """Updates every fourth step; the gradients that wait for it are not in the state."""

    name, shows_in = "accumulates", "apart"

    def train(self) -> None:
        mse_loss(self.model(X), Y).backward()
        self.count += 1
        if self.count % 4 == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()


class AccumulatesCleared(Accumulates):
    """As before, and loading clears what waits, so that nothing is left to be seen at a multiple of four."""

    name = "accumulates-cleared"

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.optimizer.zero_grad()


class Mean(nn.Module):
    """As a metric of a library: its sums are in no state, unless one asks for that."""

    def __init__(self) -> None:
        super().__init__()
        self.total, self.seen = torch.zeros((), dtype=torch.float64), 0

    def update(self, value: float) -> None:
        self.total, self.seen = self.total + value, self.seen + 1


class Windowed(Counting):
    """Each fourth push is the mean of a window, in a metric that is begun anew then."""

    name, shows_in = "windowed", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.mean = Mean()

    def push(self) -> float:
        self.mean.update(abs(self.weight))
        if self.count % 4 < 3:
            return 1.0
        push = 3 * float(self.mean.total) / self.mean.seen
        self.mean = Mean()
        return push


class Queued(Counting):
    """Each fourth step takes what the three before have put into a queue."""

    name, shows_in = "queued", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.queue = queue.Queue[float]()

    def push(self) -> float:
        self.queue.put(self.weight)
        return sum(self.queue.get() for _ in range(self.queue.qsize())) if self.count % 4 == 3 else 1.0


class Window(nn.Module):
    total: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros((), dtype=torch.float64), persistent=False)


class BufferedWindow(Counting):
    """The same in a buffer that is in no state, and that loading clears."""

    name, shows_in = "buffered-window", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.window = Window()

    def push(self) -> float:
        self.window.total += abs(self.weight)
        if self.count % 4 < 3:
            return 1.0
        push = float(self.window.total)
        self.window.total.zero_()
        return push

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.window.total.zero_()


class GeneratorWindow(Small):
    """The same in the frame of a generator, which loading begins anew."""

    name, shows_in = "generator-window", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.rollout = self.begun()

    def begun(self) -> Generator[float, float, None]:
        def run() -> Generator[float, float, None]:
            seen, push = list[float](), 1.0
            while True:
                seen.append((yield push))
                push = sum(seen) if len(seen) == 4 else 1.0
                if len(seen) == 4:
                    seen.clear()

        rollout = run()
        next(rollout)
        return rollout

    def push(self) -> float:
        return self.rollout.send(self.weight)

    def take(self, state: dict[str, Any]) -> None:
        self.rollout = self.begun()


class AveragesWeights(Counting):
    """Averages every fifth weight, and saves the average without the number of them."""

    name, shows_in = "averages-weights", "apart"
    average, taken = 0.1, 0
    kept = ("count", "average")

    def train(self) -> None:
        super().train()
        if self.count % 5 == 0:
            self.taken += 1
            self.average += (self.weight - self.average) / self.taken

    def evaluate(self) -> dict[str, float]:
        return {"value": self.average}
