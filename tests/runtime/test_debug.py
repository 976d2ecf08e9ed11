"""A trial in one's own terminal is the same trial."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from forks import run_in_fork
from moods import MOODY, TOY, Start, toy

from app.workers.trainer_connection import Deadline
from stagetree.runtime.debug import DebugTrial, run_in_terminal

RUN = """
import sys
from stagetree.runtime.debug import DebugTrial, run_in_terminal

file, mood = sys.argv[1:]
run_in_terminal(DebugTrial(file=file, name="moody", args={}, seed=3, hp={"mood": mood}), 9)
"""


def run(*arguments: str, text: str = "") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-c", RUN, *arguments]
    return subprocess.run(command, input=text, capture_output=True, text=True, timeout=600, check=False)


def test_a_trial_in_the_terminal_gives_the_same_metrics(start: Start, deadline: Deadline) -> None:
    process = toy(start())
    process.train({"lr": 0.1}, 9, deadline=deadline)
    trial = DebugTrial(file=TOY, name="toy", args={}, seed=3, hp={"lr": 0.1})
    assert run_in_fork(run_in_terminal, trial, 9) == process.call(deadline).evaluate().metrics


@pytest.mark.slow
def test_an_error_in_the_terminal_is_raised_unchanged() -> None:
    done = run(MOODY, "run_out_of_memory")
    assert done.returncode == 1 and done.stderr.strip().endswith("ValueError: it did not fit")


@pytest.mark.slow
def test_a_breakpoint_stops_in_the_terminal(tmp_path: Path) -> None:
    file = tmp_path / "trainer.py"
    file.write_text(
        Path(MOODY).read_text().replace("def fine(self) -> None:", "def fine(self) -> None:\n        breakpoint()")
    )
    done = run(str(file), "fine", text="p 'steps', self.steps\nq\n")
    assert "('steps', 0)" in done.stdout
