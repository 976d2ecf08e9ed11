"""What every program trains: a small network on the digits of scikit-learn, one epoch a step, on one thread.

Its steps are a function of the seed, of their number and of the hyper-parameters, and of nothing else, so that every
program comes to the same weights. How long a step or an evaluation took is written here, the same way for all.
"""

from __future__ import annotations

import json
import os
import time
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

Values = dict[str, float]
"""The hyper-parameters of one step: `lr`, `momentum`, `weight_decay` and `bs`."""

WIDTH = 16


class Model:
    """A network with its optimizer, as every program uses it."""

    def __init__(self, seed: int = 0) -> None:
        torch.set_num_threads(1)
        torch.manual_seed(seed)
        self.network = nn.Sequential(
            *convolution(1, WIDTH),
            *convolution(WIDTH, 2 * WIDTH, stride=2),
            nn.MaxPool2d(2),
            nn.Flatten(),
            nn.Linear(8 * WIDTH, 10),
        )
        self.optimizer = torch.optim.SGD(self.network.parameters(), lr=0.1, momentum=0.9)
        self.seed, self.step = seed, 0
        self.train_images, self.train_labels, self.valid_images, self.valid_labels = digits(seed)

    def train(self, values: Values) -> None:
        """One step: an epoch, in an order that its number decides."""
        begun = Clocks()
        bs = int(values["bs"])
        for group in self.optimizer.param_groups:
            group |= {name: value for name, value in values.items() if name != "bs"}
        drawn = torch.Generator().manual_seed(self.seed * 100_003 + self.step)
        self.network.train()
        for batch in torch.randperm(len(self.train_labels), generator=drawn).split(bs):
            self.optimizer.zero_grad()
            cross_entropy(self.network(self.train_images[batch]), self.train_labels[batch]).backward()
            self.optimizer.step()
        self.step += 1
        record("train", begun, step=self.step)

    def evaluate(self) -> float:
        """The loss on the held-out part."""
        begun = Clocks()
        self.network.eval()
        with torch.no_grad():
            loss = float(cross_entropy(self.network(self.valid_images), self.valid_labels))
        record("evaluate", begun, step=self.step, loss=loss)
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {"step": self.step, "network": self.network.state_dict(), "optimizer": self.optimizer.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.step = state["step"]
        self.network.load_state_dict(state["network"])
        self.optimizer.load_state_dict(state["optimizer"])


def convolution(inputs: int, outputs: int, stride: int = 1) -> tuple[nn.Module, ...]:
    return nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU()


def digits(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Images and labels to train on, four fifths, and those to measure on."""
    data = load_digits()
    images = torch.tensor(data.images / 16, dtype=torch.float32).unsqueeze(1)  # [1797, 1, 8, 8], from 0 to 1
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(seed))
    valid, train = order[:360], order[360:]
    return images[train], labels[train], images[valid], labels[valid]


class Clocks:
    """When something began, on the clock and by the processor's time of this thread."""

    def __init__(self) -> None:
        self.clock, self.processor = time.perf_counter(), time.thread_time()


def record(kind: str, begun: Clocks, **what: float) -> None:
    """A line in the file that `PEERS_LOG` names: the action, its seconds, and the time of its end."""
    if path := os.environ.get("PEERS_LOG"):
        now = Clocks()
        took = {"seconds": now.clock - begun.clock, "processor": now.processor - begun.processor}
        line = json.dumps({"kind": kind, **took, "at": time.time(), **what}) + "\n"
        with open(path, "ab", buffering=0) as file:  # one write of one line: processes do not mix theirs
            file.write(line.encode())
