"""Trainers that are right, though they accumulate, print and keep much that no state has. None of them gets a mark."""

from __future__ import annotations

import json
import pickle
import random
import time
from collections import Counter, namedtuple
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import torch
from small import Counting
from torch import nn
from torch.nn.functional import mse_loss
from tqdm import tqdm
from wrong_between import Accumulates
from wrong_modules import Net, X, Y

Seen = namedtuple("Seen", ["loss", "when"])


class AccumulatesSaved(Accumulates):
    """The gradients that wait for an update are in the state."""

    name, shows_in = "accumulates-saved", "apart"

    def state_dict(self) -> dict[str, Any]:
        waiting = [None if each.grad is None else each.grad.clone() for each in self.model.parameters()]
        return {**super().state_dict(), "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        for each, gradient in zip(self.model.parameters(), state["waiting"], strict=True):
            each.grad = None if gradient is None else gradient.clone()


class Clocks(Counting):
    """When it was begun, how long steps take, and what to print: nothing of that is in the state."""

    name, shows_in = "clocks", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.begun_at, self.losses, self.seen = time.time(), list[float](), Counter[bool]()
        self.last = Seen(0.0, self.begun_at)

    def train(self) -> None:
        super().train()
        self.losses.append(self.weight)
        self.seen[self.weight > 0] += 1
        self.last = Seen(self.weight, time.time())


class ProgressBar(Counting):
    name, shows_in = "progress-bar", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.bar = tqdm(total=20, disable=False, leave=False)

    def train(self) -> None:
        super().train()
        self.bar.set_postfix(loss=self.weight)
        self.bar.update()


class Closures(Net):
    """LBFGS, which keeps much in its state and calls a closure."""

    name, shows_in = "closures", "apart"

    def make_optimizer(self) -> torch.optim.Optimizer:
        return torch.optim.LBFGS(self.model.parameters(), lr=0.1, max_iter=3, history_size=4)

    def train(self) -> None:
        def closure() -> Any:
            self.optimizer.zero_grad()
            loss = mse_loss(self.model(X), Y)
            loss.backward()
            return loss

        self.optimizer.step(closure)


class HalfPrecision(Net):
    name, shows_in = "half-precision", "apart"

    def make(self) -> nn.Module:
        return nn.Linear(2, 1).to(torch.bfloat16)

    def train(self) -> None:
        self.optimizer.zero_grad()
        mse_loss(self.model(X.bfloat16()), Y.bfloat16()).backward()
        self.optimizer.step()

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return {"value": mse_loss(self.model(X.bfloat16()), Y.bfloat16()).item()}


class Averaged(Net):
    """`AveragedModel` of torch, whose number of models is in its state."""

    name, shows_in = "averaged", "apart"
    count = 0

    def make_optimizer(self) -> torch.optim.Optimizer:
        self.average = torch.optim.swa_utils.AveragedModel(self.model)
        return super().make_optimizer()

    def train(self) -> None:
        super().train()
        self.count += 1
        if self.count % 3 == 0:
            self.average.update_parameters(self.model)

    def evaluate(self) -> dict[str, float]:
        with torch.no_grad():
            return {"value": mse_loss(self.average(X), Y).item()}

    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "average": self.average.state_dict(), "count": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        super().load_state_dict(state)
        self.average.load_state_dict(state["average"])
        self.count = state["count"]


class OwnSampler(Counting):
    name, shows_in = "own-sampler", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.rng = np.random.default_rng(self.seed)

    def push(self) -> float:
        return float(self.rng.choice(7))

    def more(self) -> dict[str, Any]:
        return {**super().more(), "rng": json.dumps(self.rng.bit_generator.state)}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.rng.bit_generator.state = json.loads(state["rng"])


class Threads(Counting):
    """Kept threads add up numbers, in any order of threads."""

    name, shows_in = "threads", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.pool = ThreadPoolExecutor(2)

    def push(self) -> float:
        return float(sum(self.pool.map(abs, range(self.count % 5 + 1))))


class Sklearn(Counting):
    name, shows_in = "sklearn", "apart"

    def __init__(self, **how: Any) -> None:
        from sklearn.linear_model import SGDRegressor  # tests that only name this trainer do without

        super().__init__(**how)
        self.model = SGDRegressor(random_state=self.seed, learning_rate="constant")
        self.data = np.random.default_rng(self.seed).normal(size=(32, 3))

    def push(self) -> float:
        self.model.set_params(eta0=self.lr / 10)
        self.model.partial_fit(self.data[:8], self.data[:8].sum(1))
        return float(self.model.coef_.sum())

    def more(self) -> dict[str, Any]:
        return {**super().more(), "model": pickle.dumps(self.model)}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.model = pickle.loads(state["model"])


class SeedsWhereItMeasures(Counting):
    """Measuring seeds all generators; the runner puts them back."""

    name, shows_in = "seeds-where-it-measures", "measured"

    def push(self) -> float:
        return random.random() + float(torch.rand(())) + float(np.random.rand())

    def evaluate(self) -> dict[str, float]:
        random.seed(1)
        torch.manual_seed(1)
        np.random.seed(1)
        return {"value": self.weight + 1e-9 * random.random()}


class OddLeaves(Counting):
    """Its state has what JSON has not."""

    name, shows_in = "odd-leaves", "apart"

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.number = np.array([2**63 + 5], dtype=np.uint64)

    def push(self) -> float:
        self.number = self.number * np.uint64(6364136223846793005) + np.uint64(1)
        return float(self.number[0] >> np.uint64(40)) / 2**24

    def more(self) -> dict[str, Any]:
        odd = [float("nan"), -0.0, 10**30, None, {}, {1: "x"}, b"\x00\xff"]
        return {**super().more(), "number": self.number, "odd": odd}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        self.number = state["number"].copy()


class OnlyLoadedIfThere(Counting):
    """A moving average that begins late and is loaded only where the state has one; a used object would keep it."""

    name, shows_in = "only-loaded-if-there", "rungs"
    average: float | None = None

    def train(self) -> None:
        super().train()
        if self.count > 6:
            self.average = self.weight if self.average is None else 0.5 * (self.average + self.weight)

    def evaluate(self) -> dict[str, float]:
        return {"value": self.weight if self.average is None else self.average}

    def more(self) -> dict[str, Any]:
        return super().more() if self.average is None else {**super().more(), "average": self.average}

    def take(self, state: dict[str, Any]) -> None:
        super().take(state)
        if "average" in state:
            self.average = state["average"]
