"""What `tools.pictures` shows beside the digits: trainers that take seconds, and a study of each kind of its own."""

from __future__ import annotations

from typing import Any

TRAINERS = '''
import math
import time

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import TensorDataset

from stagetree import TorchTrainer, Trainer


class Line(TorchTrainer):
    """May be trained by several slots."""

    name = "line"

    def __init__(self, *, seed, device):
        x = torch.linspace(-1, 1, 256)[:, None]
        data, model = TensorDataset(x, 2 * x), torch.nn.Linear(1, 1)
        super().__init__(seed=seed, device=device, model=model, train_data=data, valid_data=data, shards=8)

    def make_optimizer(self, hp):
        return torch.optim.SGD(self.model.parameters(), lr=hp["lr"])

    def loss(self, batch):
        x, y = batch
        time.sleep(0.02)
        return mse_loss(self.model(x), y)


class Smooth(Trainer):
    """A loss that falls with the sum of its learning rates, and is better after a decay."""

    name = "smooth"

    def __init__(self, *, seed, device):
        self.progress, self.noise = 0.0, 0.0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        self.progress += self.lr
        self.noise += 0.3 * (self.lr - self.noise)
        time.sleep(0.1)

    def evaluate(self):
        return {"val_loss": 0.2 + math.exp(-self.progress) + self.noise}

    def state_dict(self):
        return {"progress": self.progress, "noise": self.noise}

    def load_state_dict(self, state):
        self.progress, self.noise = state["progress"], state["noise"]


class Forgetful(Smooth):
    """Does not save its noise."""

    name = "forgetful"

    def state_dict(self):
        return {"progress": self.progress}

    def load_state_dict(self, state):
        self.progress = state["progress"]
'''

_SMOOTH: dict[str, Any] = {"metric": "val_loss", "mode": "min", "eval_every": 2}
_DECAYS: dict[str, Any] = {
    "lr": [
        {"family": "multistep", "init": rate, "milestones": [at], "gamma": 0.2}
        for rate in (0.05, 0.2)
        for at in (6, 8, 10)
    ]
}

GANG: dict[str, Any] = {
    "name": "gang",
    "trainer": "line",
    "metric": "val_loss",
    "mode": "min",
    "eval_every": 4,
    "shards": 8,
    "ranks": 2,
    "space": {"lr": [0.05, 0.2, {"family": "multistep", "init": 0.2, "milestones": [6], "gamma": 0.1}], "bs": 64},
    "tuner": {"kind": "grid", "max_steps": 12},
}
LADDER: dict[str, Any] = _SMOOTH | {
    "name": "ladder",
    "trainer": "smooth",
    "space": {
        "max_steps": [20, 40, 60, 80],
        "lr": {"family": "wsd", "peak": {"choice": [0.05, 0.1]}, "warmup": 4, "decay": {"ratio": 0.2}, "shape": "sqrt"},
    },
    "tuner": {"kind": "grid"},
}
INEXACT: dict[str, Any] = _SMOOTH | {
    "name": "inexact",
    "trainer": "forgetful",
    "space": _DECAYS,
    "tuner": {"kind": "grid", "max_steps": 12},
}
