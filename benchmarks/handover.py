"""The hand-over from stage to stage on a slot: from the last step of one to the first step of the next.

    python benchmarks/handover.py [--stages N] [--dir FOLDER]

A chain of stages on the embedded stack with one slot. The trainer notes when each of its steps begins and ends, and
whether it was ever given a checkpoint. In the gap lie an evaluation, a copy of the state, both in the process that
trains, and Celery's work from task to task; recording and storing meanwhile must not be felt. The budget is
1.5 times what a bare Celery chain takes from task to task in the same run, and no checkpoint read. The gap between two
steps of one stage, which has neither, is printed beside it.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from subprocess import DEVNULL
from typing import Any

from app.embedded.machine import redis_server
from stagetree import Trainer

ROOT = Path(__file__).parent.parent
STEPS = 5
BUDGET = 1.5
"""Times what a bare chain takes."""


class Noting(Trainer):
    """A step takes five milliseconds, and is noted in `journal`."""

    name = "noting"

    def __init__(self, *, seed: int, device: str, journal: str) -> None:
        self.journal, self.trained = journal, 0

    def setup(self, hp: dict[str, Any]) -> None:
        pass

    def train(self) -> None:
        begun = time.monotonic()
        time.sleep(0.005)
        self.trained += 1
        self._note({"step": self.trained, "begun": begun, "ended": time.monotonic()})

    def evaluate(self) -> dict[str, float]:
        return {"score": float(self.trained)}

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = state["trained"]
        self._note({"loaded": self.trained})

    def _note(self, fact: dict[str, Any]) -> None:
        with open(self.journal, "a") as journal:
            journal.write(json.dumps(fact) + "\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--stages", type=int, default=100)
    parser.add_argument("--dir", type=Path, help="where the log and the checkpoints are: the disk that is measured")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=arguments.dir) as folder:
        facts = run(Path(folder), arguments.stages)
    steps = [fact for fact in facts if "step" in fact]
    gaps = [(after["step"], after["begun"] - before["ended"]) for before, after in pairwise(steps)]
    between = [gap for step, gap in gaps if step % STEPS == 1]
    say("between two stages", between)
    say("between two steps", [gap for step, gap in gaps if step % STEPS != 1])
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        bare = bare_chain(Path(folder), arguments.stages)
    say("from task to task of a bare Celery chain", bare)
    loads = sum("loaded" in fact for fact in facts)
    times = statistics.median(between) / statistics.median(bare)
    print(f"checkpoints read: {loads}; {times:.2f} times a bare chain", end="; ")
    print(f"budget {BUDGET}: {'kept' if times <= BUDGET else 'MISSED'}")


def run(folder: Path, stages: int) -> list[dict[str, Any]]:
    """Train a chain of this many stages on one slot; the notes of its trainer."""
    journal, study = folder / "journal", folder / "study.json"
    hp = {"lr": 0.1}
    spec = {
        "name": "handover",
        "trainer": "noting",
        "trainer_args": {"journal": str(journal)},
        "metric": "score",
        "mode": "max",
        "tuner": {
            "kind": "trials",
            "trials": [{"hp": hp, "steps": STEPS * number} for number in range(1, stages + 1)],
        },
    }
    study.write_text(json.dumps(spec))
    command = [sys.executable, "-m", "stagetree", "run", str(study), "--slots", "1", "--dir", str(folder / "kept")]
    command += ["--trainers", __file__, "--no-check"]  # the check, too, takes steps and loads a state
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stagetree run failed: {done.stderr}")
    return [json.loads(line) for line in journal.read_text().splitlines()]


def bare_chain(folder: Path, tasks: int) -> list[float]:
    """The seconds between the tasks of a chain that does nothing, on one worker."""
    socket, journal = folder / "redis.sock", folder / "journal"
    environment = {**os.environ, "BROKER": f"redis+socket://{socket}", "JOURNAL": str(journal)}
    redis = [redis_server(), "--port", "0", "--unixsocket", str(socket), "--save", "", "--dir", str(folder)]
    worker = [sys.executable, "-m", "celery", "-A", "bare_chain", "worker", "-c", "1", "-l", "ERROR"]
    send = f"from bare_chain import note, celery; from celery import chain; chain(*[note.si()] * {tasks}).delay()"
    where: dict[str, Any] = {"cwd": ROOT / "benchmarks" / "data", "env": environment, "stdout": DEVNULL}
    with (
        subprocess.Popen(redis, **where) as server,
        subprocess.Popen(worker, stderr=DEVNULL, **where) as work,
    ):
        while not socket.exists():
            time.sleep(0.05)
        subprocess.run([sys.executable, "-c", send], check=True, **where)
        while not journal.exists() or len(journal.read_text().splitlines()) < tasks:
            time.sleep(0.1)
        for process in (work, server):
            process.terminate()
    noted = [[float(word) for word in line.split()] for line in journal.read_text().splitlines()]
    return [after[0] - before[1] for before, after in pairwise(noted)]


def say(what: str, seconds: Sequence[float]) -> None:
    median, p95 = statistics.median(seconds), statistics.quantiles(seconds, n=20)[-1]
    print(f"{what:40} median {median * 1000:6.2f} ms   p95 {p95 * 1000:6.2f} ms   of {len(seconds)}")


if __name__ == "__main__":
    main()
