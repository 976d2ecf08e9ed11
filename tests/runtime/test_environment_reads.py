"""Variables of the environment that the user's own code asks for are noted, and no others."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

TRAINER = """
import os, tempfile

def read():
    os.environ.get("THERE"), os.getenv("MISSING"), "ASKED" in os.environ, os.environ.setdefault("SET", "1")
    try:
        os.environ["NONE"]
    except KeyError:
        pass
    os.environ.get("HOME"), os.environ.get("API_KEY"), os.environ.get("SLURM_JOB_ID")
    tempfile.gettempdir()

def read_all():
    return dict(os.environ)
"""
READ = """
import importlib, json, os, sys
from stagetree.runtime.reads import undeclared_reads as variables

variables.watch_variables()
sys.path.append(sys.argv[1])
mine = importlib.import_module("mine")
mine.read()
os.environ.get("NOT_BY_A_FILE"), importlib.import_module("torch")
print(json.dumps(variables.variables_read()))
mine.read_all()
print(json.dumps(variables.variables_read()))
"""


def test_variables_that_the_trainer_reads_are_reported_unless_secret(tmp_path: Path) -> None:
    """A read of all variables only passes them on."""
    (tmp_path / "mine.py").write_text(TRAINER)
    many = {**os.environ, "THERE": "1", **{f"A_{number}": "1" for number in range(20)}}
    command = [sys.executable, "-c", READ, str(tmp_path)]
    done = subprocess.run(command, env=many, capture_output=True, text=True, check=True)
    some, everything = map(json.loads, done.stdout.splitlines())
    assert (some, everything) == (["$THERE", "$MISSING", "$ASKED", "$SET", "$NONE"], [])
