"""What training leaves in a process is named when the next model begins there, and nothing else is."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from stagetree.runtime.exactness.held_values import ProcessChanges
from stagetree.runtime.loading import load_trainer

CODE = """
import os
from functools import cache
from stagetree import Trainer

PHASE, SEEN, BEST = 0, [], "LEFT_OVER_BEST"

@cache
def data(kind):
    return [1, 2, 3]

def scale(value):
    return value

class Left(Trainer):
    name = "left"
    made, caches = 0, ("SEEN",)

    def __init__(self, *, seed, device):
        self.data = data("train")

    def setup(self, hp): pass
    def train(self): pass
    def evaluate(self): return {}
    def state_dict(self): return {}
    def load_state_dict(self, state):
        global PHASE
        PHASE = state["phase"]
"""


class Process:
    """A process that has trained its first model and now begins with another one."""

    def __init__(self, file: Path, name: str = "left") -> None:
        self.file, kind = str(file), load_trainer(file, name)
        self.trainer: Any = kind(seed=0, device="cpu")
        self.leftovers = ProcessChanges()
        assert self.leftovers.find(self.trainer, self.file) == []
        self.module = sys.modules[kind.__module__]
        self.leftovers.is_used = True

    def find(self) -> list[str]:
        return self.leftovers.find(self.trainer, self.file)


@pytest.fixture
def process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Process]:
    monkeypatch.setattr(sys, "path", [*sys.path])
    name = f"left_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(CODE)
    yield Process(tmp_path / f"{name}.py")
    del sys.modules[name]


def test_unchanged_processes_have_no_leftovers(process: Process) -> None:
    process.module.SEEN.append(1)  # one of the caches
    process.module.data("valid")  # read late, and kept
    os.environ["NO_NAME_IN_THE_CODE"] = "1"
    try:
        assert process.find() == []
    finally:
        del os.environ["NO_NAME_IN_THE_CODE"]


@pytest.mark.parametrize(
    ("change", "name"),
    [
        (lambda module: setattr(module, "PHASE", 1), "PHASE (a global of {file})"),
        (lambda module: setattr(module, "NEW", 1), "NEW (a global of {file})"),
        (lambda module: setattr(module.Left, "made", 1), "Left.made (of the class)"),
        (lambda module: setattr(module, "scale", lambda value: 0.0), "scale (a global of {file})"),
        (lambda module: setattr(module.Left, "train", lambda self: None), "Left.train (of the class)"),
    ],
    ids=["global", "new", "class", "function", "method"],
)
def test_changes_by_training_are_named(process: Process, change: Any, name: str, capfd: Any) -> None:
    change(process.module)
    name = name.format(file=Path(process.file).name)
    assert process.find() == [name]
    assert f"--- other training in this process has changed {name}" in capfd.readouterr().out


def test_settings_of_libraries_and_named_variables_are_compared(process: Process) -> None:
    os.environ["LEFT_OVER_BEST"] = "1"
    torch.set_default_dtype(torch.float64)
    try:
        assert process.find() == ["torch.get_default_dtype()", "os.environ['LEFT_OVER_BEST']"]
    finally:
        torch.set_default_dtype(torch.float32)
        del os.environ["LEFT_OVER_BEST"]


def test_values_restored_by_loading_belong_to_the_state(process: Process) -> None:
    process.module.PHASE, process.module.Left.made = 3, 1
    before = process.leftovers.values_before_load(process.trainer, process.file)
    process.trainer.load_state_dict({"phase": 2})
    left = process.leftovers.find(process.trainer, process.file, before)
    assert left == ["Left.made (of the class)"]


def test_a_script_is_run_anew_so_what_its_file_holds_is_no_leftover(tmp_path: Path) -> None:
    (tmp_path / "loop.py").write_text(
        "import stagetree\nrun = stagetree.attach('loop')\nweight = 0\n"
        "def load(state):\n    global weight\n    weight = state\n"
        "run.state(save=lambda: weight, load=load, evaluate=lambda: {'loss': weight})\n"
        "for step, hp in run.steps():\n    weight += 1\n"
    )
    main = sys.modules["__main__"]
    process = Process(tmp_path / "loop.py", "loop")
    try:
        process.trainer.train()
        assert process.find() == []
    finally:
        process.trainer.close()
        sys.modules["__main__"] = main
