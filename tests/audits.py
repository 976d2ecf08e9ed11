"""Trainers that are right and wrong, studies of them, and stacks with and without proofs: for tests of audits."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from stacks import Json, Service

from app.embedded.stack import Embedded
from stagetree.client import Client

TRAINER = """
import math

from stagetree import Trainer


class Right(Trainer):
    name = "right"
    forgets, late = False, 0

    def __init__(self, *, seed, device, tag=""):
        self.weight, self.count, self.lr = 0.1, 0, 0.0

    def setup(self, hp):
        self.lr = hp.get("lr", self.lr)

    def train(self):
        self.count += 1
        push = 1.0 if self.count < self.late else 1.0 / self.count
        self.weight = math.sin(2.7 * self.weight + self.lr * push)

    def evaluate(self):
        return {"value": self.weight}

    def state_dict(self):
        return {"weight": self.weight} if self.forgets else {"weight": self.weight, "count": self.count}

    def load_state_dict(self, state):
        self.weight, self.count = state["weight"], state.get("count", 0)


class Wrong(Right):
    name = "wrong"
    forgets = True


class Late(Right):
    name = "late"
    forgets, late = True, 9
"""


def study(trainer: str, name: str = "") -> Json:
    """Three trials that part at steps 6 and 8, each of which resumes from a saved state."""
    rates = [{"family": "multistep", "init": 0.3, "milestones": [at], "gamma": 0.5} for at in (6, 8)]
    trials = [{"hp": {"lr": rate}, "steps": 12} for rate in (0.3, *rates)]
    named = {"name": name or trainer, "trainer": trainer, "trainer_args": {"tag": name}}
    return named | {"metric": "value", "mode": "max", "tuner": {"kind": "trials", "trials": trials}, "audit": 0}


@contextmanager
def serving(folder: Path, proofs: str) -> Iterator[Service]:
    """The embedded stack of a folder, with or without proofs."""
    stack = Embedded(folder / "kept", 2, [str(folder / "trainer.py")])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGETREE_PROOFS", proofs)
        stack.start(await_slots=True)
    with Client(stack.url) as client:
        yield Service(client)
    stack.stop()
