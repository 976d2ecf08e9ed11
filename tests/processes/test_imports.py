"""Only processes that train import torch: the others start quickly and need little memory."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import ROOT


@pytest.mark.slow
@pytest.mark.parametrize(
    "modules", ["app.workers.prefork, *MODULES, *CONFIGURED_MODULES", "app.main", "app.embedded.stack"]
)
def test_processes_that_do_not_train_import_no_torch(modules: str) -> None:
    code = f"""
import importlib, sys
from app.workers.prefork import CONFIGURED_MODULES, MODULES
for name in ({", ".join(part if part.startswith("*") else repr(part) for part in modules.split(", "))},):
    importlib.import_module(name)
print(sorted({{"torch", "torchvision"}} & sys.modules.keys()))
"""
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_early_imports_of_workers_read_no_setting() -> None:
    """They are made before the stack sends its settings."""
    code = """
from app.workers.prefork import import_early_modules
from app.settings import settings
import_early_modules()
print(settings.cache_info().currsize)
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "0\n"


def test_no_garbage_collection_runs_at_the_end_of_a_command() -> None:
    """Python's collection before it exits took a tenth of the time of `stagetree studies`."""
    code = """
import atexit, gc, sys
from app.cli import main
atexit.register(lambda: print("left to look through:", len(gc.get_objects()) > 10_000, file=sys.stderr))
sys.argv = ["stagetree", "--version"]
main()
"""
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stderr
    assert said == "left to look through: False\n"


LR = {"family": "wsd", "peak": {"choice": [0.1, 0.2]}, "warmup": 3, "stable_until": 6, "decay": 2}
TUNER = {"kind": "asha", "num_trials": 2, "min_steps": 2, "max_steps": 4, "eta": 2}
STUDY = {"name": "warming", "trainer": "toy", "metric": "score", "mode": "max", "space": {"lr": LR}, "tuner": TUNER}


@pytest.mark.slow
def test_forks_of_a_run_import_nothing_twice(tmp_path: Path) -> None:
    """Once each fork imported the common modules again."""
    (tmp_path / "study.json").write_text(json.dumps(STUDY))
    trainers = ["--trainers", str(ROOT / "tests" / "e2e" / "trainers.py")]
    command = [sys.executable, "-m", "stagetree", "run", "study.json", "--slots", "1", "--no-check", *trainers]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONPROFILEIMPORTTIME": "1"}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, check=True)
    logs = tmp_path / ".stagetree" / "logs"
    assert not imported_modules(logs / "cpu0.log") & imported_modules(logs / "scheduler.log")
    assert not {name for name in imported_modules(logs / "cpu0.log") if name.startswith(("cffi", "pycparser"))}


def imported_modules(log: Path) -> set[str]:
    """The modules that a process imported after the fork."""
    lines = log.read_text(encoding="utf-8").splitlines()
    return {line.rpartition("|")[2].strip() for line in lines if line.startswith("import time:")}
