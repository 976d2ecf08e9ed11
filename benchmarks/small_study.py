"""What a study costs beside its training: 400 trials of nothing on two slots, from the command to its result.

    python benchmarks/small_study.py [--trials N] [--rounds N] [--dir FOLDER]

`stagetree run` as a user calls it, with a trainer whose steps do nothing and a study whose trials share nothing, so
that every trial is a chain of its own. The budget is 15 s for 400 of them. Beside the time on the clock stands the CPU
time of all processes, which is the cost where other work is on the machine, and how long the disk takes for what
such a study must write at least: a state for each trial, and a few commits.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil

from stagetree import Trainer

ROOT = Path(__file__).parent.parent
SLOTS, STEPS, BUDGET = 2, 10, 15.0
COMMITS = 4
"""Given out, claimed, trained, and saved: the waits for the disk a trial, besides that for its state."""


class Nothing(Trainer):
    """A step that adds one to a number."""

    name = "nothing"

    def __init__(self, *, seed: int, device: str) -> None:
        self.trained, self.rate = 0, 0.0

    def setup(self, hp: dict[str, Any]) -> None:
        self.rate = hp["lr"]

    def train(self) -> None:
        self.trained += 1

    def evaluate(self) -> dict[str, float]:
        return {"score": self.rate + self.trained}

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = state["trained"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--dir", type=Path, help="where log and checkpoints are: the disk that is measured")
    arguments = parser.parse_args()
    for number in range(arguments.rounds):
        with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
            disk = waits_for_the_disk(Path(folder), arguments.trials)
            wall, cpu = run(Path(folder), arguments.trials)
        budget = BUDGET * arguments.trials / 400
        print(
            f"round {number + 1}: {wall:6.1f} s on the clock, {cpu:6.1f} s of CPU in all processes; "
            f"{disk:5.1f} s of waiting for the disk; budget {budget:.0f} s: {'kept' if wall <= budget else 'MISSED'}",
            flush=True,
        )


def run(folder: Path, trials: int) -> tuple[float, float]:
    """Seconds of `stagetree run`, on the clock and of CPU."""
    study = folder / "study.json"
    spec = {
        "name": "nothing",
        "trainer": "nothing",
        "metric": "score",
        "mode": "max",
        "space": {"lr": {"uniform": [0.001, 1.0]}},
        "tuner": {"kind": "random", "num_trials": trials, "max_steps": STEPS},
    }
    study.write_text(json.dumps(spec))
    command = ["run", str(study), "--slots", str(SLOTS), "-o", "json"]
    command += ["--dir", str(folder / "kept"), "--trainers", __file__]
    done, wall, cpu = watched(command, folder)
    assert done["steps"]["executed"] == trials * STEPS, done["steps"]
    return wall, cpu


def watched(command: list[str], folder: Path) -> tuple[dict[str, Any], float, float]:
    """The answer of a command of stagetree, its seconds on the clock, and the CPU seconds of all of its processes."""
    begun, spent = time.monotonic(), dict[int, float]()
    with (folder / "result").open("w") as result, (folder / "errors").open("w") as errors:
        process = psutil.Popen([sys.executable, "-m", "stagetree", *command], cwd=ROOT, stdout=result, stderr=errors)
        while process.poll() is None:
            spent |= dict(cpu_seconds(process))
            time.sleep(0.1)
    if process.returncode:
        raise SystemExit(f"stagetree {command[0]} failed: {(folder / 'errors').read_text()}")
    seconds = time.monotonic() - begun
    return json.loads((folder / "result").read_text()), seconds, sum(spent.values())


def cpu_seconds(process: psutil.Process) -> Iterator[tuple[int, float]]:
    """Of a process and all its descendants, by its id; processes that have just ended are left out."""
    try:
        family = [process, *process.children(recursive=True)]
    except psutil.Error:
        return
    for each in family:
        try:
            times = each.cpu_times()
        except psutil.Error:
            continue
        yield each.pid, times.user + times.system


def waits_for_the_disk(folder: Path, trials: int) -> float:
    """Seconds for as many waits for the disk, one after the other, as the trials take at least."""
    file = os.open(folder / "disk", os.O_CREAT | os.O_WRONLY)
    begun = time.monotonic()
    for _ in range(trials * (COMMITS + 1)):
        os.write(file, b"x" * 4096)
        os.fsync(file)
    os.close(file)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
