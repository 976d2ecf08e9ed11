"""A trainer that adds up parts by shard, and has a mishap in one rank on demand."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import torch

from stagetree import Trainer


class Added(Trainer):
    """mishap: `kill`, `stop`, `raise`, `memory` or `loop`, in rank `who`, when `call` is called. needs: as few ranks
    have the memory for a batch of 64; half of that suffices for 32. forgets: whether rank 1 adds a value that is in no
    state. once: a file that exists after the mishap."""

    name = "added"

    def __init__(
        self,
        *,
        seed: int,
        device: str,
        mishap: str = "",
        call: str = "train",
        who: int = 1,
        needs: int = 1,
        forgets: bool = False,
        once: str = "",
    ) -> None:
        super().__init__(seed=seed, device=device)
        self._mishap, self._call, self._who, self._needs = mishap, call, who, needs
        self.size, self._once, self._forgets, self._kept = 64, once, forgets, 0
        self.weights, self.steps = torch.zeros(5), 0
        self._may_fail("build")

    def setup(self, hp: dict[str, Any]) -> None:
        self.lr, self.size = hp.get("lr", 0.1), hp.get("bs", self.size)

    def train(self) -> None:
        if self.steps == 3:
            self._may_fail("train")
        if self.ranks.world * 64 < self._needs * self.size:
            raise torch.OutOfMemoryError("CUDA out of memory")
        (total,) = self.ranks.sum([self._part(shard)] for shard in self.ranks.own(self.ranks.shards or 4))
        self.weights, self.steps = self.weights - self.lr * total, self.steps + 1

    def evaluate(self) -> dict[str, float]:
        self._may_fail("evaluate")
        self.ranks.barrier()
        return {"sum": float(self.weights.sum()), "world": float(self.ranks.world)}

    def state_dict(self) -> dict[str, Any]:
        self._may_fail("save")
        return {"weights": self.weights, "steps": self.steps}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._may_fail("load")
        self.weights, self.steps = state["weights"].clone(), state["steps"]

    def _part(self, shard: int) -> torch.Tensor:
        self._kept += self._forgets and self.ranks.rank == 1
        return torch.randn(5, generator=torch.Generator().manual_seed(1000 * self.steps + shard)) + self._kept

    def _may_fail(self, call: str) -> None:
        if self._call != call or self.ranks.rank != self._who:
            return
        if self._once:
            if Path(self._once).exists():
                return
            Path(self._once).touch()
        match self._mishap:
            case "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case "stop":
                os.kill(os.getpid(), signal.SIGSTOP)
            case "raise":
                raise ArithmeticError("the user's own")
            case "memory":
                raise MemoryError("no room")
            case "loop":
                while True:
                    time.sleep(60)
