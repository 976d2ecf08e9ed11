"""Trainers that are exact, and ones that are not in the ways that people's are not."""

from __future__ import annotations

import ctypes
import os
import threading
import time
import warnings
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

from stagetree import Trainer


class Noisy(Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.randn(2) + index


class Exact(Trainer):
    """Learns the mean of noise, which workers may draw."""

    name = "exact"
    persistent = False

    def __init__(self, *, seed: int, device: str, workers: int = 0) -> None:
        super().__init__(seed=seed, device=device)
        self.net = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 1))
        keep = self.persistent and workers > 0
        self.loader = DataLoader(Noisy(), 4, shuffle=True, num_workers=workers, persistent_workers=keep)
        self.lr = 0.0

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr = hp.get("lr", self.lr)

    def train(self) -> None:
        for batch in self.loader:
            self.net.zero_grad()
            self.net(batch).square().mean().backward()
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter -= self.lr * parameter.grad

    def evaluate(self) -> dict[str, float]:
        self.net.eval()
        with torch.no_grad():
            value = float(self.net(torch.ones(1, 2)))
        self.net.train()
        return {"value": value}

    def state_dict(self) -> dict[str, Any]:
        return {"net": self.net.state_dict()}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.net.load_state_dict(state["net"])


class Warned(Exact):
    name = "warned"

    def train(self) -> None:
        warnings.warn("the module has a scheduler", stacklevel=1)
        super().train()

    def evaluate(self) -> dict[str, float]:
        warnings.warn("the module says another thing", stacklevel=1)
        return super().evaluate()


class ForgotTrain(Exact):
    name = "forgot-train"

    def evaluate(self) -> dict[str, float]:
        found = super().evaluate()
        self.net.eval()
        return found


class Persistent(ForgotTrain):
    """Its `train` begins in training mode, after any mode."""

    name = "persistent"
    persistent = True

    def train(self) -> None:
        self.net.train()
        super().train()


class Averaged(Exact):
    """Persistent workers, and a moving average that is measured in evaluation mode and never trained."""

    name = "averaged"
    persistent = True

    def __init__(self, *, seed: int, device: str, workers: int = 0) -> None:
        super().__init__(seed=seed, device=device, workers=workers)
        self.ema = nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5))

    def evaluate(self) -> dict[str, float]:
        self.ema.eval()
        return super().evaluate()


class Counting(Exact):
    """Its own generator, and a count, are not in the state."""

    name = "counting"

    def __init__(self, *, seed: int, device: str) -> None:
        super().__init__(seed=seed, device=device)
        self.chance = np.random.default_rng(seed)

    def train(self) -> None:
        super().train()
        with torch.no_grad():
            self.net[0].bias += float(self.chance.normal())


class Clock(Exact):
    name = "clock"

    def train(self) -> None:
        super().train()
        with torch.no_grad():
            self.net[0].bias += time.perf_counter_ns() % 1_000_003 / 1e6


class Wandering(Exact):
    """Is exact, but not measured alike twice."""

    name = "wandering"

    def __init__(self, *, seed: int, device: str) -> None:
        super().__init__(seed=seed, device=device)
        self.measured = 0

    def evaluate(self) -> dict[str, float]:
        self.measured += 1
        return {"value": super().evaluate()["value"] + self.measured}


class Broken(Exact):
    name = "broken"

    def train(self) -> None:
        raise ValueError("no luck")


class Crashing(Exact):
    name = "crashing"

    def train(self) -> None:
        ctypes.string_at(0)


class Diverging(Exact):
    name = "diverging"

    def evaluate(self) -> dict[str, float]:
        return {"value": float("nan")}


class Leaving(Exact):
    name = "leaving"

    def train(self) -> None:
        os._exit(3)


class Orphaning(Exact):
    """Leaves, and leaves a process behind."""

    name = "orphaning"

    def __init__(self, *, seed: int, device: str, journal: str) -> None:
        super().__init__(seed=seed, device=device)
        self.journal = journal

    def train(self) -> None:
        if (pid := os.fork()) == 0:
            threading.Event().wait()
        with open(self.journal, "w") as journal:
            journal.write(str(pid))
        os._exit(3)


class Endless(Exact):
    name = "endless"

    def train(self) -> None:
        threading.Event().wait()


class Ranked(Exact):
    """Learns faster in rank 1 than in rank 0, and adds up what differs."""

    name = "ranked"

    def __init__(self, *, seed: int, device: str, workers: int = 0, fails: bool = False, strays: bool = False) -> None:
        super().__init__(seed=seed, device=device, workers=workers)
        self._fails, self._strays = fails, strays

    def train(self) -> None:
        if self._fails and self.ranks.rank:
            raise ArithmeticError("in one rank only")
        if self._strays and self.ranks.rank:
            self.ranks.any([True])
        super().train()
        weights = [each.detach().clone() * (1 + self.ranks.rank) for each in self.net.parameters()]
        totals = self.ranks.sum([weights])
        with torch.no_grad():
            for parameter, total in zip(self.net.parameters(), totals, strict=True):
                parameter.copy_(total)
