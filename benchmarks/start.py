"""How long commands take before they do anything, beside the import of torch in the same rounds.

    python benchmarks/start.py [--rounds N] [--imports]

`--help`, `studies` and `trials` of a store with one study, and `run` of a study of four steps on two slots: until its
first step, which the check of its trainer takes, and until the prompt is back. Beside its first step stands a script
that makes a model and an optimizer: torch imports as much again for the first optimizer, and a slot has imported it by
then. `import stagetree` is as Python itself measures it (`-X importtime`), without its own start; `--imports` measures
that alone. The budgets are for two quiet cores. A first round, which compiles and fills the file cache, is not counted.
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

TRAINER = Path(__file__).with_name("handover.py")
"""Its `noting` writes down when each step begins."""
SCRIPT = "import torch; torch.optim.SGD(torch.nn.Linear(2, 2).parameters(), lr=0.1)"
BUDGETS = {"import stagetree": 0.06, "run": 3.3, "studies": 0.5, "trials": 0.5, "--help": 0.18}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--imports", action="store_true", help="measure only the import of stagetree")
    given = parser.parse_args()
    seconds = defaultdict[str, list[float]](list)
    for number in range(given.rounds + 1):
        with tempfile.TemporaryDirectory() as folder:
            measured = imports() if given.imports else imports() | round_in(Path(folder))
            for name, taken in measured.items():
                seconds[name] += [taken] if number else []
    torch = statistics.median(seconds["import torch"])
    for name, taken in seconds.items():
        middle = statistics.median(taken)
        budget = f"   budget {BUDGETS[name]:g} s" if name in BUDGETS else ""
        print(f"{name:<26} {middle:6.3f} s   {middle / torch:4.2f} times the import of torch{budget}")


def imports() -> dict[str, float]:
    """Seconds of a new interpreter to import torch and to make an optimizer; of stagetree, as Python measures it."""
    command = [sys.executable, "-X", "importtime", "-c", "import stagetree"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stderr.splitlines()
    [microseconds] = [line.split("|")[1] for line in lines if line.split("|")[-1].strip() == "stagetree"]
    seconds = {"import torch": timed("-c", "import torch"), "a script's first optimizer": timed("-c", SCRIPT)}
    return seconds | {"import stagetree": int(microseconds) / 1e6}


def round_in(folder: Path) -> dict[str, float]:
    """Seconds of each command, by its name."""
    store, journal = ["--dir", str(folder / "kept")], folder / "journal"
    study = {
        "name": "four-steps",
        "trainer": "noting",
        "trainer_args": {"journal": str(journal)},
        "metric": "score",
        "mode": "max",
        "tuner": {"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 4}]},
    }
    (folder / "study.json").write_text(json.dumps(study))
    run = ["run", str(folder / "study.json"), "--slots", "2", "--trainers", str(TRAINER)]
    seconds = dict[str, float]()
    begun = time.monotonic()
    seconds["run"] = timed("-m", "stagetree", *run, *store)
    seconds["run: its first step"] = json.loads(journal.read_text().splitlines()[0])["begun"] - begun
    commands = {"studies": ["studies", *store], "trials": ["trials", "last", *store], "--help": ["--help"]}
    return seconds | {name: timed("-m", "stagetree", *command) for name, command in commands.items()}


def timed(*command: str) -> float:
    """Seconds that Python takes for a command."""
    begun = time.monotonic()
    subprocess.run([sys.executable, *command], capture_output=True, check=True)
    return time.monotonic() - begun


if __name__ == "__main__":
    main()
