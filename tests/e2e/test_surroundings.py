"""What lies in a user's working folder is the user's: none of our processes imports it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import ROOT

OURS = ("app", "stagetree", "migrations")
TAKEN = ("yaml", "celery", "redis", "uvicorn", "fastapi", "sqlalchemy", "kombu", "alembic")

TRAINER = """
import random
from stagetree import Trainer
from steps import noise

class Walk(Trainer):
    name = "walk"
    def setup(self, hp): self.drift = hp["drift"]
    def __init__(self, *, seed, device):
        super().__init__(seed=seed, device=device)
        self.place = 0.0
    def train(self): self.place += self.drift + noise()
    def evaluate(self): return {"place": self.place}
    def state_dict(self): return {"place": self.place}
    def load_state_dict(self, state): self.place = state["place"]
"""

STUDY = """
{"name": "walk", "trainer": "walk", "metric": "place", "mode": "max",
 "space": {"drift": [0.1, 0.2]}, "tuner": {"kind": "grid", "max_steps": 4}}
"""


@pytest.fixture(params=["app.py", "app"])
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """A project with modules called as ours, and as libraries that we need; each fails who imports it."""
    folder = tmp_path / "project"
    folder.mkdir()
    mine = "raise RuntimeError(f'{__name__} is mine')\n"
    if request.param == "app":
        (folder / "app").mkdir()
    (folder / ("app/__init__.py" if request.param == "app" else "app.py")).write_text(mine)
    for name in TAKEN:
        (folder / f"{name}.py").write_text(mine)
    (folder / "trainer.py").write_text(TRAINER)
    (folder / "steps.py").write_text("from random import gauss\n\ndef noise():\n    return gauss(0, 0.1)\n")
    (folder / "study.json").write_text(STUDY)
    return folder


@pytest.fixture(params=["checkout", "installed"])
def home(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Where we are imported from: this checkout, or a folder as the wheel fills it."""
    if request.param == "checkout":
        return ROOT
    home = tmp_path / "installed"
    for name in OURS:
        target = home / "app" / name if name == "migrations" else home / name
        shutil.copytree(ROOT / name, target, ignore=shutil.ignore_patterns("__pycache__"))
    return home


def test_a_study_runs_beside_modules_called_as_ours(folder: Path, home: Path) -> None:
    command = [sys.executable, "-P", "-m", "app.cli", "run", "study.json", "--slots", "1"]
    environment = {**os.environ, "PYTHONPATH": str(home)}
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=100, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "completed · 2/2 trials · 8/8 steps" in done.stderr
