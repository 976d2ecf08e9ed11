"""The source of trainers in cells and scripts: it runs by itself, and its content names it."""

from __future__ import annotations

import json
import linecache
import os
import subprocess
import sys
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from app.registry import describe, files_in
from stagetree.errors import StagetreeError
from stagetree.runtime.loading import load_trainer
from stagetree.source.cells import SourceFolder, source_of
from stagetree.trainer import Trainer

CELL = '''
import math
import torch.nn as nn
from collections import OrderedDict as Ordered
from dataclasses import dataclass
from torch import float64
from stagetree import Trainer

LIMITS = {"low": [1, 2.5], "high": None}

def double(x):
    return 2 * halve_twice(x)

def halve_twice(x):
    return x / 4 if x > 1 else double(1)

@dataclass
class Point:
    x: float = 0.0

class Walk(Trainer):
    """Walks."""
    name = "walk"

    def __init__(self, *, seed, device):
        self.at, self.layer = Point(), nn.Linear(1, 1)

    def setup(self, hp): self.hp = hp
    def train(self): self.at = Point(self.at.x + double(math.sqrt(4)) + LIMITS["low"][1])
    def evaluate(self): return {"x": self.at.x, "n": len(Ordered(a=float64))}
    def state_dict(self): return {"x": self.at.x}
    def load_state_dict(self, state): self.at = Point(state["x"])
'''

Cell = Callable[[str], dict[str, Any]]


@pytest.fixture
def cell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cell]:
    """Runs a source as a notebook does: in `__main__`, with its lines where tracebacks look for them."""
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    names = []

    def run(text: str) -> dict[str, Any]:
        names.append(f"<cell {len(names)}>")
        linecache.cache[names[-1]] = (len(text), None, text.splitlines(keepends=True), names[-1])
        exec(compile(text, names[-1], "exec"), vars(main))
        return vars(main)

    yield run
    for name in names:
        del linecache.cache[name]


def load_from_folder(under: Path, source: SourceFolder, monkeypatch: pytest.MonkeyPatch) -> type[Trainer]:
    """The trainer in a folder, as a slot's process loads it."""
    monkeypatch.setattr(sys, "path", [*sys.path])
    return load_trainer(under / source.folder / source.entry, source.name)


@pytest.mark.slow
def test_a_trainer_of_a_cell_runs_by_itself(cell: Cell, tmp_path: Path) -> None:
    source = source_of(cell(CELL)["Walk"])
    source.write(tmp_path)
    assert describe([str(tmp_path)]).keys() == {source.name} and source.name.startswith("walk@")
    trainer = tmp_path / source.folder / "trainer.py"
    program = (
        f"from stagetree.runtime.loading import load_trainer; cls = load_trainer({str(trainer)!r}, {source.name!r});"
        "walk = cls(seed=0, device='cpu'); walk.train(); print(walk.evaluate(), cls.__doc__)"
    )
    said = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True, cwd="/")
    assert said.stdout == "{'x': 3.5, 'n': 1} Walks.\n"


def test_the_same_source_is_the_same_trainer_and_changed_code_another(cell: Cell) -> None:
    first = source_of(cell(CELL)["Walk"])
    assert source_of(cell(f"unrelated = 3\n{CELL}")["Walk"]) == first
    for old, new in [("2.5", "3.5"), ("x / 4", "x / 8"), ("Walks.", "Strolls.")]:
        assert source_of(cell(CELL.replace(old, new))["Walk"]).name != first.name


def test_definitions_may_come_from_several_cells(cell: Cell, tmp_path: Path) -> None:
    start = CELL.index("class Walk")
    cell(CELL[:start])
    assert source_of(cell(CELL[start:])["Walk"]).name == source_of(cell(CELL)["Walk"]).name


def test_modules_of_ones_own_are_copied(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = tmp_path / "own"
    (own / "mine").mkdir(parents=True)
    (own / "mine" / "__init__.py").write_text("")
    (own / "mine" / "nets.py").write_text("from .sizes import WIDTH\ndef net(): return WIDTH\n")
    (own / "mine" / "sizes.py").write_text("WIDTH = 8\n")
    (own / "unused.py").write_text("")
    monkeypatch.syspath_prepend(str(own))
    text = CELL.replace("LIMITS =", "import unused\nfrom mine.nets import net\nLIMITS =").replace(
        "Point()", "Point(net())"
    )
    source = source_of(cell(text)["Walk"])
    assert sorted(source.files) == ["mine/__init__.py", "mine/nets.py", "mine/sizes.py", "trainer.py"]
    (own / "mine" / "sizes.py").write_text("WIDTH = 9\n")
    assert source_of(cell(text)["Walk"]).name != source.name


def test_a_trainer_of_a_module_is_taken_with_its_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "walking.py").write_text(CELL)
    monkeypatch.syspath_prepend(str(tmp_path))
    from walking import Walk  # type: ignore[import-not-found]

    source = source_of(Walk)
    assert sorted(source.files) == ["trainer.py", "walking.py"]
    source.write(tmp_path / "trainers")
    assert issubclass(load_from_folder(tmp_path / "trainers", source, monkeypatch), Walk)


MADE = """
import json
from pathlib import Path
from stagetree.source.cells import source_of
from trainer import Walk
source = source_of(Walk)
source.write(Path("trainers"))
print(json.dumps([source.name, source.folder, source.entry, sorted(source.files)]))
"""
LOADED = """
import sys
from stagetree.runtime.loading import load_trainer
print([each.__module__ for each in load_trainer(*sys.argv[1:]).__mro__ if each.__name__ == "Walk"])
"""


@pytest.mark.slow
@pytest.mark.parametrize("place", ["trainer.py", "trainer/__init__.py"])
def test_a_module_called_trainer_is_taken_as_any_other(tmp_path: Path, place: str) -> None:
    """It was overwritten by the file that imports it, though `trainer.py` is what the guide calls it."""
    (tmp_path / place).parent.mkdir(exist_ok=True)
    (tmp_path / place).write_text(CELL)
    name, folder, entry, files = json.loads(_program_output(MADE, tmp_path))
    assert files == ["stagetree_trainer.py", place]
    assert describe(files_in([str(tmp_path / "trainers")])).keys() == {name}
    assert _program_output(LOADED, tmp_path / "trainers", f"{folder}/{entry}", name) == "['trainer']\n"


def _program_output(program: str, folder: Path, *arguments: str) -> str:
    """What a program prints that is run in a folder."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(Path(__file__).parents[2])])}
    command = [sys.executable, "-c", program, *arguments]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True).stdout


FUNCTIONS = """
import torch
from stagetree import function_trainer

START = 3.0

def build(seed, device):
    model = torch.nn.Linear(1, 1)
    return {"model": model, "n": 0, "_data": torch.ones(4, 1)}

def step(state, hp):
    state["n"] += 1
    with torch.no_grad():
        state["model"].weight += hp["lr"]

def measure(state):
    return {"n": state["n"] + START, "w": state["model"].weight.item()}

Line = function_trainer("my line", build, step, measure)
"""


def test_functions_of_a_cell_make_a_trainer(cell: Cell, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = source_of(cell(FUNCTIONS)["Line"])
    assert source.name.startswith("my line@")
    source.write(tmp_path)
    kind = load_from_folder(tmp_path, source, monkeypatch)
    one, other = kind(seed=0, device="cpu"), kind(seed=1, device="cpu")
    one.setup({"lr": 0.5})
    one.train()
    state = one.state_dict()
    assert state.keys() == {"model", "n"}
    other.load_state_dict(state)
    assert other.evaluate() == one.evaluate() and one.evaluate()["n"] == 4


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            CELL.replace("LIMITS = {", "import torch\nLIMITS = torch.tensor(2.0) if True else {"),
            "Walk uses LIMITS of type Tensor, which cannot be written into its source: make it inside Walk, "
            "or save it to a file and hand over the path in runtime_args (docs/sdk.md)",
        ),
        (
            CELL.replace("LIMITS = {", "LIMITS = object() or {"),
            "Walk uses LIMITS of type object, which cannot be written into its source: make it inside Walk, "
            "or save it to a file and hand over the path in runtime_args (docs/sdk.md)",
        ),
        (
            f"def make():\n    {CELL.strip().replace(chr(10), chr(10) + '    ')}\n    return Walk\nWalk = make()",
            "Walk is defined inside a function: define it at the top of a cell or a file",
        ),
        ("class Walk: pass", "a trainer must be a class that is a Trainer, got <class '__main__.Walk'>"),
    ],
)
def test_a_source_that_cannot_be_had(cell: Cell, text: str, problem: str) -> None:
    with pytest.raises(StagetreeError) as refused:
        source_of(cell(text)["Walk"])
    assert str(refused.value) == problem


def test_a_prompt_without_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(CELL, "<stdin>", "exec"), vars(main))
    with pytest.raises(
        StagetreeError, match="the source of Walk cannot be had, which Walk needs: define it in a noteb"
    ):
        source_of(vars(main)["Walk"])


def test_a_lambda_is_refused_with_an_alternative(cell: Cell) -> None:
    text = """
from stagetree import function_trainer
def build(seed, device): return {"x": 1.0}
def step(state, hp): state["x"] -= hp["lr"]
Walk = function_trainer("walk", build, step, lambda state: {"x": state["x"]})
"""
    with pytest.raises(StagetreeError, match="walk is given a lambda, whose source"):
        source_of(cell(text)["Walk"])
