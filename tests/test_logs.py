"""Log lines as JSON: from a formatter, and from all processes of a run."""

from __future__ import annotations

import io
import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from stacks import PATIENCE

from app.process.logs import write_json

TRAINER = """
from stagetree import Trainer

class Failing(Trainer):
    name = "failing"

    def setup(self, hp): ...
    def train(self): raise ValueError("no more")
    def evaluate(self): return {"loss": 0.0}
    def state_dict(self): return {}
    def load_state_dict(self, state): ...
"""
STUDY = {
    "name": "fails",
    "trainer": "failing",
    "seed": 0,
    "metric": "loss",
    "mode": "min",
    "space": {"lr": [0.1]},
    "tuner": {"kind": "grid", "max_steps": 2},
}


def json_line(*args: Any, **fields: Any) -> dict[str, Any]:
    """What a logger with JSON lines writes."""
    stream, logger = io.StringIO(), logging.Logger("app.workers")
    logger.addHandler(logging.StreamHandler(stream))
    write_json([logger])
    logger.warning(*args, **fields)
    (line,) = stream.getvalue().splitlines()
    found: dict[str, Any] = json.loads(line)
    return found


def test_a_line_is_a_json_object_with_its_subject() -> None:
    line = json_line("chain %s is over", "c1", extra={"chain": "c1", "fence": 3, "data": {"celery": "own"}})
    assert line.pop("time").endswith("+00:00")
    assert line == {
        "level": "WARNING",
        "logger": "app.workers",
        "message": "chain c1 is over",
        "chain": "c1",
        "fence": 3,
    }


def test_a_traceback_is_one_field() -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        line = json_line("it failed", exc_info=True)
    assert line["error"].splitlines()[-1] == "ValueError: broken"


@pytest.mark.slow
def test_all_processes_of_a_run_write_json(tmp_path: Path) -> None:
    """Other lines come from Celery's banner, before its loggers exist, and from Redis."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    (tmp_path / "study.yaml").write_text(json.dumps(STUDY))
    command = [sys.executable, "-m", "stagetree", "run", "study.yaml", "--trainers", "trainer.py", "--slots", "1", "-q"]
    environment = {**os.environ, "STAGETREE_LOG_FORMAT": "json"}
    subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, timeout=PATIENCE, check=False)
    logs = {path.stem: path.read_text().splitlines() for path in (tmp_path / ".stagetree" / "logs").glob("*.log")}
    lines = {name: [json.loads(line) for line in text if line.startswith("{")] for name, text in logs.items()}
    assert any(line["logger"].startswith("uvicorn") for line in lines["api"])
    failure = next(line for line in lines["cpu0"] if "failed:" in line["message"])
    assert "ValueError: no more" in failure["message"]
    assert {"chain", "plan", "fence", "study", "trial", "stage", "time", "level", "logger"} < set(failure)
    assert not [line for line in logs["cpu0"] if line.startswith("[20")]
