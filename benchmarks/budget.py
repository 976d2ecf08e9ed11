"""Checkpoints under a budget: the bytes on the disk while ASHA runs, and whether any requested state is missing.

    python benchmarks/budget.py [--trials N] [--megabytes N] [--budget 1GiB] [--slots N] [--dir FOLDER]

A study of ASHA on the embedded stack, with a state of that size. The folder of checkpoints is looked at all the time,
and must never hold more than the budget. Then a study asks every trial for one step more than it was trained for,
with or without its state; and the weights of the best trial must load, and have its value.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from threading import Event, Thread
from typing import Any

import torch
from pydantic import ByteSize, TypeAdapter

from stagetree import Trainer, load_state

ROOT = Path(__file__).parent.parent
LOOK_SECONDS = 0.05
Json = dict[str, Any]


class Heavy(Trainer):
    """Few numbers that are trained, beside many that are kept with them."""

    name = "heavy"

    def __init__(self, *, seed: int, device: str, size: int) -> None:
        self.value, self.ballast = torch.zeros(1, dtype=torch.float64), torch.zeros(size, dtype=torch.uint8)
        self.lr = 0.0

    def setup(self, hp: Json) -> None:
        self.lr = hp["lr"]

    def train(self) -> None:
        self.value += self.lr + torch.rand(1, dtype=torch.float64) / 10

    def evaluate(self) -> dict[str, float]:
        return {"score": self.value.item()}

    def state_dict(self) -> Json:
        return {"value": self.value, "ballast": self.ballast}

    def load_state_dict(self, state: Json) -> None:
        self.value.copy_(state["value"])


class Watch:
    """Looks at a folder until it is closed: the most bytes that were in it."""

    def __init__(self, folder: Path) -> None:
        self.most, self._folder, self._is_over = 0, folder, Event()
        self._thread = Thread(target=self._look)
        self._thread.start()

    def _look(self) -> None:
        while not self._is_over.wait(LOOK_SECONDS):
            self.most = max(self.most, sum(size_of(path) for path in self._folder.rglob("*") if path.is_file()))

    def close(self) -> int:
        self._is_over.set()
        self._thread.join()
        return self.most


def size_of(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def stagetree(*arguments: str, budget: str = "") -> str:
    environment = {**os.environ, "STAGETREE_CHECKPOINT_BUDGET": budget} if budget else None
    command = [sys.executable, "-m", "stagetree", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stagetree {arguments[0]} failed: {done.stderr}")
    return done.stdout


def run(spec: Json, folder: Path, given: argparse.Namespace) -> Json:
    file = folder / "study.json"
    file.write_text(json.dumps(spec))
    arguments = ["run", str(file), "--dir", str(folder / "kept"), "--slots", str(given.slots), "--trainers", __file__]
    found: Json = json.loads(stagetree(*arguments, "-o", "json", "--quiet", budget=given.budget))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--megabytes", type=int, default=50)
    parser.add_argument("--budget", default="1GiB")
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="where to write; by default the folder for temporary files")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=given.dir) as folder:
        sys.exit(not measure(Path(folder), given))


def measure(folder: Path, given: argparse.Namespace) -> bool:
    """Whether all requirements hold."""
    common = {"trainer": "heavy", "trainer_args": {"size": given.megabytes * 2**20}, "metric": "score", "mode": "max"}
    tuner = {"kind": "asha", "num_trials": given.trials, "min_steps": 1, "max_steps": 27, "reduction_factor": 3}
    asha = {**common, "name": "asha", "space": {"lr": {"uniform": [0.0, 1.0]}}, "tuner": tuner}
    watch = Watch(folder / "kept" / "checkpoints")
    first = run(asha, folder, given)
    longer = [{"hp": trial["hp"], "steps": trial["steps"] + 1} for trial in first["trials"]]
    second = run({**common, "name": "longer", "tuner": {"kind": "trials", "trials": longer}}, folder, given)
    most, budget = watch.close(), int(TypeAdapter(ByteSize).validate_python(given.budget))
    stagetree("weights", first["study"], "--state", "--dir", str(folder / "kept"), "--to", str(folder / "best"))
    [file] = (folder / "best").iterdir()
    is_best = float(load_state(file)["value"]) == first["best"]["value"]
    states = {trial["state"] for study in (first, second) for trial in study["trials"]} - {"stopped"}
    written = sum(trial["steps"] > 0 for trial in (*first["trials"], *second["trials"])) * given.megabytes
    print(f"{len(longer)} trials of {given.megabytes} MiB: {first['steps']['executed']} steps, then one more of each")
    print(f"most on the disk: {most / 2**20:,.0f} of {budget / 2**20:,.0f} MiB; at least {written:,} MiB were written")
    print(f"steps that were trained again for one more of each: {second['steps']['executed'] - len(longer)}")
    print(f"states of trials: {', '.join(sorted(states))}; the best weights are those on record: {is_best}")
    return most <= budget and is_best and states <= {"completed"}


if __name__ == "__main__":
    main()
