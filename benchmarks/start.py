"""How long commands take before they do anything, beside the import of torch in the same rounds.

    python benchmarks/start.py [--rounds N]

`--help`, `studies` and `trials` of a store with one study, and `run` of a study of four steps on two slots: until its
first step, which the check of its trainer takes, and until the prompt is back. The budgets are for two quiet cores. A
first round, which compiles and fills the file cache, is not counted.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from stagetree import Trainer

BUDGETS = {"run": 5.0, "studies": 0.6, "trials": 0.6, "--help": 0.2}


class Noting(Trainer):
    """A step that adds one to a number; the first of a process is noted in a file."""

    name = "noting"

    def __init__(self, *, seed: int, device: str, file: str) -> None:
        self.trained, self._file = 0, Path(file)

    def setup(self, hp: dict[str, Any]) -> None:
        """Nothing follows from values here."""

    def train(self) -> None:
        if not self._file.exists():
            self._file.write_text(str(time.time()))
        self.trained += 1

    def evaluate(self) -> dict[str, float]:
        return {"score": float(self.trained)}

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = state["trained"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    seconds = defaultdict[str, list[float]](list)
    for number in range(parser.parse_args().rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            for name, taken in round_in(Path(folder)).items():
                seconds[name] += [taken] if number else []
    torch = statistics.median(seconds["import torch"])
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        budget = f"   budget {BUDGETS[name]:g} s" if name in BUDGETS else ""
        print(f"{name:<22} {middle:5.2f} s   {middle / torch:4.2f} times the import of torch{budget}")


def round_in(folder: Path) -> dict[str, float]:
    """Seconds of each command, by its name."""
    store, file = ["--dir", str(folder / "kept")], folder / "first"
    study = {
        "name": "four-steps",
        "trainer": "noting",
        "trainer_args": {"file": str(file)},
        "metric": "score",
        "mode": "max",
        "tuner": {"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 4}]},
    }
    (folder / "study.json").write_text(json.dumps(study))
    run = ["run", str(folder / "study.json"), "--slots", "2", "--trainers", __file__]
    seconds = {"import torch": timed("-c", "import torch"), "run": 0.0, "run: its first step": 0.0}
    begun = time.time()
    seconds["run"] = timed("-m", "stagetree", *run, *store)
    seconds["run: its first step"] = float(file.read_text()) - begun
    commands = {"studies": ["studies", *store], "trials": ["trials", "last", *store], "--help": ["--help"]}
    return seconds | {name: timed("-m", "stagetree", *command) for name, command in commands.items()}


def timed(*command: str) -> float:
    """Seconds that Python takes for a command."""
    begun = time.monotonic()
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
