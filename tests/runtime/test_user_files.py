"""Users' files as they are: neighbours of any name, packages, and names that are taken already."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent
from typing import Any

import pytest
import torch
from moods import Start

from app.workers.trainer_connection import Deadline
from stagetree.runtime.failures import TrainerFailed

TRAINER = """
import sys
import torch
from torch.utils.data import DataLoader
from stagetree import Trainer
{imports}

class Data(torch.utils.data.Dataset):
    def __len__(self):
        return 4

    def __getitem__(self, index):
        return float(VALUE)

class Mine(Trainer):
    name = "mine"

    def __init__(self, *, seed, device, context=None):
        self.loader = DataLoader(Data(), 4, num_workers=2 if context else 0, multiprocessing_context=context)

    def setup(self, hp): ...
    def train(self): ...
    def load_state_dict(self, state): ...

    def state_dict(self):
        return {{}}

    def evaluate(self):
        ours = {{"app.workers", "kombu", "sqlalchemy.orm", "pydantic_core"}} & {{*sys.modules}}
        return {{"value": float(next(iter(self.loader)).sum()), "ours": len(ours)}}
"""


def write(folder: Path, path: str, imports: str) -> str:
    """A trainer whose metric is four times the imported VALUE."""
    return write_text(folder, path, TRAINER.format(imports=imports))


def write_text(folder: Path, path: str, text: str) -> str:
    file = folder / path
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(dedent(text))
    return str(file)


@pytest.fixture
def value(start: Start, deadline: Deadline) -> Any:
    """The metric of the trainer in a file, in a process of its own."""

    def value(file: str, **args: Any) -> float:
        process = start()
        process.call(deadline).build(file=file, name="mine", args=args, seed=0)
        metrics = process.call(deadline).evaluate().metrics
        assert metrics["ours"] == 0
        return float(metrics["value"] or 0.0)

    return value


OLD = pytest.mark.skipif(torch.__version__.startswith("2.6."), reason="this torch imports redis itself")


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["app", "yaml", "celery", pytest.param("redis", marks=OLD), "pydantic", "sqlalchemy", "tests"]
)
def test_a_neighbour_may_have_the_name_of_a_service_module(tmp_path: Path, value: Any, name: str) -> None:
    write_text(tmp_path, f"{name}.py", "VALUE = 3")
    assert value(write(tmp_path, "trainer.py", f"from {name} import VALUE")) == 12


@pytest.mark.slow
@pytest.mark.parametrize("context", [None, "fork", "spawn", "forkserver"])
def test_a_trainer_in_a_package_has_relative_imports_and_workers(tmp_path: Path, value: Any, context: str) -> None:
    write_text(tmp_path, "project/__init__.py", "")
    write_text(tmp_path, "project/values.py", "VALUE = 5")
    write_text(tmp_path, "project/deep/__init__.py", "")
    file = write(tmp_path, "project/deep/trainer.py", "from ..values import VALUE")
    assert value(file, context=context) == 20


def test_torchvision_and_its_dependents_may_be_imported_first(tmp_path: Path, value: Any) -> None:
    """Beside a torch for CPUs it could be imported only after something of ours."""
    file = write_text(tmp_path, "trainer.py", "import torchvision\n" + TRAINER.format(imports="VALUE = 2"))
    assert value(file) == 8


def test_a_package_may_be_the_trainer(tmp_path: Path, value: Any) -> None:
    write_text(tmp_path, "project/values.py", "VALUE = 6")
    assert value(write(tmp_path, "project/__init__.py", "from .values import VALUE")) == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", ["json", "torch", "trainer", "time", "stagetree", "__main__", "my-trainer", "v1.2"])
@pytest.mark.parametrize("context", [None, "fork"])
def test_a_trainer_may_have_any_name(tmp_path: Path, value: Any, name: str, context: str | None) -> None:
    assert value(write(tmp_path, f"{name}.py", "VALUE = 7"), context=context) == 28


def test_a_process_serves_one_file(tmp_path: Path, start: Start, deadline: Deadline) -> None:
    first, second = (write(tmp_path, f"{number}/trainer.py", "VALUE = 1") for number in (1, 2))
    process = start()
    process.call(deadline).build(file=first, name="mine", args={}, seed=0)
    process.call(deadline).build(file=first, name="mine", args={}, seed=1)
    with pytest.raises(TrainerFailed, match="and no other file") as failed:
        process.call(deadline).build(file=second, name="mine", args={}, seed=0)
    assert failed.value.kind == "internal"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("import no_such_module", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("def f(:", "SyntaxError"),
        ("x = 1", "holds no subclass of Trainer whose name is 'mine'"),
        ("raise SystemExit(3)", "SystemExit: 3"),
    ],
)
def test_an_unusable_file_is_reported_with_its_reason(
    tmp_path: Path, start: Start, deadline: Deadline, text: str, words: str
) -> None:
    file = write_text(tmp_path, "trainer.py", text)
    with pytest.raises(TrainerFailed, match=words) as failed:
        start().call(deadline).build(file=file, name="mine", args={}, seed=0)
    assert failed.value.kind == "exception"
    assert "stagetree/" not in failed.value.error and "importlib" not in failed.value.error


def test_a_missing_file_is_reported_in_one_line(tmp_path: Path, start: Start, deadline: Deadline) -> None:
    with pytest.raises(TrainerFailed, match="there is no such file") as failed:
        start().call(deadline).build(file=str(tmp_path / "trainer.py"), name="mine", args={}, seed=0)
    assert len(failed.value.error.splitlines()) == 1
