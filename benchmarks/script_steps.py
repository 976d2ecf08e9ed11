"""What a step of a script that owns its loop costs beside its own work, against the same step of a class.

    python benchmarks/script_steps.py [--steps N] [--rounds N]

Both do nothing, and are driven by the same runner in turn, in one process. The budget is 50 us a step. Last, the same
script in two processes of torchrun: on the clock, since they wait for the trainer's process and for each other.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stagetree import Trainer
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.model import HpTimeline, Model

BUDGET = 50e-6
WARM_UP = 100
HP = {"lr": {"family": "linear", "init": 0.1, "slope": -1e-6}}
SCRIPT = """
import stagetree

run = stagetree.attach("nothing")
trained = 0

def load(state):
    global trained
    trained = state

run.state(save=lambda: trained, load=load, evaluate=lambda: {"score": trained})
for step, hp in run.steps():
    trained += 1
"""


class Nothing(Trainer):
    """A step that adds one to a number."""

    name = "nothing"

    def setup(self, hp: dict[str, Any]) -> None:
        self.trained = 0

    def train(self) -> None:
        self.trained += 1

    def evaluate(self) -> dict[str, float]:
        return {"score": self.trained}

    def state_dict(self) -> dict[str, Any]:
        return {"trained": self.trained}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.trained = state["trained"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=7)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(SCRIPT)
        kinds = {"class": Nothing, "script": load_trainer(file, "nothing")}
        found: dict[str, list[float]] = {name: [] for name in kinds}
        for _ in range(given.rounds):
            for name, kind in kinds.items():
                found[name].append(seconds_of(kind, given.steps))
    for name, seconds in found.items():
        low, middle, high = (1e6 * f(seconds) for f in (min, statistics.median, max))
        print(f"{name:<8} {middle:7.1f} us a step, {low:.1f} to {high:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "train.py"
        file.write_text(SCRIPT.replace('"nothing"', '"nothing", launch="torchrun --nproc-per-node 2"'))
        seconds = seconds_of(load_trainer(file, "nothing"), given.steps, time.perf_counter)
        print(f"in two processes of torchrun {seconds * 1e6:.1f} us a step, on the clock")
    more = statistics.median(b - a for a, b in zip(found["class"], found["script"], strict=True))
    print(f"a script {more * 1e6:.1f} us more a step; the budget is {BUDGET * 1e6:.0f} us")


def seconds_of(kind: type[Trainer], steps: int, clock: Callable[[], float] = time.process_time) -> float:
    """Seconds a step; by default of the CPU."""
    model, timeline = Model.build(kind, {}, 0, "cpu"), HpTimeline(HP)
    advance(model, timeline, WARM_UP)
    began = clock()
    advance(model, timeline, WARM_UP + steps)
    seconds = (clock() - began) / steps
    model.trainer.close()
    return seconds


def advance(model: Model, timeline: HpTimeline, until: int) -> None:
    """As the process of a trainer does it."""
    while model.step < until:
        model.advance_some(timeline, until, lambda step: True)


if __name__ == "__main__":
    main()
