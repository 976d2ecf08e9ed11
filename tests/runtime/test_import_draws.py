"""What packages draw while they are imported is no trainer's: the first one in a process is as the next."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from moods import Start

from app.workers.trainer_connection import Deadline
from stagetree.trainer import generators

DRAWING = """
import random
import numpy as np
import torch

drawn = random.random(), np.random.rand(), float(torch.rand(1))
"""
OUTER = "import {name}_inner\n" + DRAWING

TRAINER = """
import random
import numpy as np
import torch
from stagetree import Trainer

class Late(Trainer):
    name = "late"

    def setup(self, hp):
        pass

    def __init__(self, *, seed, device, outer):
        __import__(outer)

    def train(self):
        import {name}_later
        self.drawn = [random.random(), np.random.rand(), float(torch.rand(1))]

    def evaluate(self):
        return dict(zip("abc", self.drawn))

    def state_dict(self):
        return {{}}

    def load_state_dict(self, state):
        pass
"""


class Slotted(Loader):
    """It has no place for anything else."""

    __slots__ = ()

    def create_module(self, spec: ModuleSpec) -> None:
        return None

    def exec_module(self, module: ModuleType) -> None:
        module.answer = 42  # type: ignore[attr-defined]


class Found(MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> ModuleSpec | None:
        return ModuleSpec(name, Slotted()) if name == "slotted_here" else None


def test_import_hooks_work_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path, Found()])
    generators.undo_draws_of_imports()
    assert importlib.import_module("slotted_here").answer == 42
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("nowhere_at_all")


@pytest.fixture
def build(start: Start, tmp_path: Path, deadline: Deadline, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Any]:
    """Train a step of one more trainer in one process; its random numbers."""
    name = f"drawing_{tmp_path.name.replace('-', '_')}"
    files = {f"{name}.py": OUTER.format(name=name), f"{name}_inner.py": DRAWING, f"{name}_later.py": DRAWING}
    for file, text in {**files, "trainer.py": TRAINER.format(name=name)}.items():
        (tmp_path / file).write_text(text)
    process = start()

    def build_and_train() -> Any:
        process.call(deadline).build(file=str(tmp_path / "trainer.py"), name="late", args={"outer": name}, seed=0)
        process.train({}, 1, deadline=deadline)
        return process.call(deadline).evaluate().metrics

    return build_and_train


def test_draws_of_an_import_do_not_change_a_trainer(build: Callable[[], Any]) -> None:
    """Met on an H100: building the first trainer of Transformers in a process moved Python's numbers."""
    first, second, third = build(), build(), build()
    assert first == second == third
