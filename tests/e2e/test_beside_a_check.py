"""While a slot still compares what a trainer's first steps ended with, the others train: in a real stack."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

Json = dict[str, Any]
ROOT = Path(__file__).parents[2]
TRAINER = """
import time
from stagetree import Trainer

class Slow(Trainer):
    name = "slow"

    def __init__(self, *, seed, device):
        self.value = 0.0

    def setup(self, hp):
        self.lr = hp["lr"]

    def train(self):
        time.sleep(0.5)
        self.value += self.lr

    def evaluate(self):
        return {"score": self.value}

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        self.value = state["value"]
"""
STUDY: Json = {
    "name": "wide",
    "trainer": "slow",
    "metric": "score",
    "mode": "max",
    "space": {"lr": [0.1, 0.2]},
    "tuner": {"kind": "grid", "max_steps": 3},
}


@pytest.mark.slow
def test_others_train_while_a_check_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "study.json").write_text(json.dumps(STUDY))
    run = [sys.executable, "-m", "stagetree", "run", "study.json", "--slots", "2", "-q", "-o", "json"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(run, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=180)
    assert done.returncode == 0, done.stderr
    with sqlite3.connect(tmp_path / ".stagetree" / "stagetree.db") as database:
        log = database.execute("select type, data from events order by position").fetchall()
    told = [(kind, json.loads(data)) for kind, data in log]
    tested = [number for number, (kind, data) in enumerate(told) if kind == "ExactnessTested"]
    assert [told[number][1]["goes_on"] for number in tested[:2]] == [True, False]
    between = [data for kind, data in told[tested[0] : tested[1]] if kind == "ChainAssigned"]
    assert [data["proof"] for data in between] == [None], "the other slot has begun"
