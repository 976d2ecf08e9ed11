"""Trainers whose state lacks what matters late, or whose evaluation does."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from small import Counting
from torch import Tensor, nn
from torch.nn.functional import mse_loss
from wrong_modules import CountingNet, Net, X, Y


class OnTheOptimizer(Net):
    """A number that the optimizer counts for itself lowers the rate late."""

    name, shows_in = "on-the-optimizer", "apart"

    def make_optimizer(self) -> torch.optim.Optimizer:
        optimizer = super().make_optimizer()
        optimizer.updates = 0  # type: ignore[attr-defined]
        return optimizer

    def train(self) -> None:
        optimizer: Any = self.optimizer
        rates = [group["lr"] for group in optimizer.param_groups]
        for group in optimizer.param_groups:
            group["lr"] *= 0.2 if optimizer.updates >= 15 else 1.0
        super().train()
        for group, rate in zip(optimizer.param_groups, rates, strict=True):
            group["lr"] = rate
        optimizer.updates += 1


class Lookahead(torch.optim.SGD):
    """Goes back half of the way every seventh update, by a count and slow weights that are in no state."""

    count, slow = 0, None

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        self.count += 1
        weights = self.param_groups[0]["params"]
        if self.count % 7 == 0:
            self.slow = self.slow or [each.clone() for each in weights]  # type: ignore[assignment]
            for slow, weight in zip(self.slow, weights, strict=True):  # type: ignore[arg-type]
                slow += 0.5 * (weight - slow)
                weight.copy_(slow)


class LooksAhead(Net):
    name, shows_in = "looks-ahead", "apart"

    def make_optimizer(self) -> torch.optim.Optimizer:
        return Lookahead(self.model.parameters(), lr=0.1, momentum=0.5)


class SchedulerLeftOut(Net):
    """A scheduler of torch lowers a factor, and is not saved."""

    name, shows_in = "scheduler-left-out", "apart"

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.spare = torch.optim.SGD([torch.zeros(1)], lr=1.0)
        self.schedule = torch.optim.lr_scheduler.MultiStepLR(self.spare, [6, 15], 0.3)
        return super().make_optimizer()

    def train(self) -> None:
        self.optimizer.zero_grad()
        (self.schedule.get_last_lr()[0] * mse_loss(self.model(X), Y)).backward()
        self.optimizer.step()
        self.spare.step()
        self.schedule.step()


class LateCopy(CountingNet):
    """Measures a moving average that begins late, and is not saved."""

    name, shows_in = "late-copy", "apart"
    copied: nn.Module | None = None

    def train(self) -> None:
        super().train()
        self.count += 1
        if self.count >= 6:
            self.copied = self.copied or copy.deepcopy(self.model)
            with torch.no_grad():
                for mine, its in zip(self.copied.parameters(), self.model.parameters(), strict=True):
                    mine.mul_(0.9).add_(its, alpha=0.1)

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return {"value": mse_loss((self.copied or self.model)(X), Y).item()}


class ReadsAtFirst(Counting):
    """Keeps the value it was built with, also where another value is in force when the state is loaded."""

    name, shows_in = "reads-at-first", "apart"
    first: float | None = None

    def setup(self, hp: dict[str, Any]) -> None:
        super().setup(hp)
        self.first = self.lr if self.first is None else self.first

    def push(self) -> float:
        return 1.0 + (self.first or 0.0)


class LateParameters(Net):
    """A layer that is trained from step 7 on, whose part of the optimizer's memory is not saved."""

    name, shows_in = "late-parameters", "apart"
    count = 0

    def make(self) -> nn.Module:
        return nn.Sequential(nn.Linear(2, 4), nn.Tanh(), nn.Linear(4, 1))

    def train(self) -> None:
        for each in self.model[0].parameters():  # type: ignore[index]
            each.requires_grad_(self.count >= 7)
        self.optimizer.zero_grad(set_to_none=True)
        super().train()
        self.count += 1

    def buffers(self) -> list[Tensor | None]:
        last = self.model[2].parameters()  # type: ignore[index]
        return [self.optimizer.state[each].get("momentum_buffer") for each in last]

    def state_dict(self) -> dict[str, Any]:
        return {"model": self.model.state_dict(), "buffers": self.buffers(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.model.load_state_dict(state["model"])
        self.count = state["count"]
        self.optimizer.state.clear()
        for each, buffer in zip(self.model[2].parameters(), state["buffers"], strict=True):  # type: ignore[index]
            if buffer is not None:
                self.optimizer.state[each]["momentum_buffer"] = buffer.clone()


class LateSinglePrecision(Counting):
    """A number of Python that is saved in half its bits, which it needs from step 9 on."""

    name, shows_in = "late-single-precision", "apart"
    memory = 0.0

    def push(self) -> float:
        self.memory = self.memory * 0.5 + (self.weight if self.count >= 9 else 0.5)
        return self.memory

    def more(self) -> dict[str, Any]:
        return {**super().more(), "memory": torch.tensor(self.memory)}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.memory = float(state["memory"])


class LateNumbers(Counting):
    """Reads on in a range, of which only what comes late matters."""

    name, shows_in = "late-numbers", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.numbers = iter(range(10**6))

    def push(self) -> float:
        return 1.0 if next(self.numbers) < 15 else 0.3


class RollsBack(Counting):
    """Measuring halves a weight that has grown, late."""

    name, shows_in = "rolls-back", "measured"

    def evaluate(self) -> dict[str, float]:
        if self.count > 10 and abs(self.weight) > 0.5:
            self.weight *= 0.5
        return super().evaluate()


class SmoothsLate(Counting):
    """Measures its earlier measurements, from step 9 on; that is in the state."""

    name, shows_in = "smooths-late", "measured"
    held = 0.0
    kept = ("count", "held")

    def evaluate(self) -> dict[str, float]:
        if self.count < 9:
            return super().evaluate()
        self.held = 0.5 * (self.held + self.weight)
        return {"value": self.held}


class MovesOnLate(Counting):
    """Measuring takes a sample of the training's, from step 12 on."""

    name, shows_in = "moves-on-late", "measured"
    place = 0
    kept = ("count", "place")

    def push(self) -> float:
        self.place += 1
        return math.sin(self.place)

    def evaluate(self) -> dict[str, float]:
        self.place += self.count > 12
        return super().evaluate()
