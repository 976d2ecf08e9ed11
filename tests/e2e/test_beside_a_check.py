"""While a slot still compares what a trainer's first steps ended with, the others train: in a real stack."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path

import pytest
from stacks import ROOT, TOYS
from toys import trials


@pytest.mark.slow
def test_others_train_while_a_check_compares(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("STAGETREE_PROOFS", "1")
    (tmp_path / "study.json").write_text(json.dumps(trials("wide", ({}, 3), ({"lr": 0.2}, 3), seconds=0.5)))
    run = [sys.executable, "-m", "stagetree", "run", "study.json", "--slots", "2", "--trainers", TOYS[0], "-q"]
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
