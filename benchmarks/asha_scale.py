"""How long ASHA takes to decide as a study grows: simulated, on 500 slots, with stragglers.

    python benchmarks/asha_scale.py [--trials 1000 3000 10000] [--slots 500]

For each size: what the tuner takes for one result (reading what is new in the history, and wishing until nothing more
is wanted), at the beginning of the study and at its end, and what the whole of the scheduler takes (search plan, stage
tree, chains and tuner). Flat means that none of them grows with the number of trials.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from random import Random
from typing import Any

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from app.tuning.tuners import driver
from stagetree.spec import StudySpec

SPACE = {"lr": {"loguniform": [1e-4, 1.0]}, "momentum": {"uniform": [0.8, 0.99]}}
TUNER = {"kind": "asha", "min_steps": 1, "max_steps": 256, "reduction_factor": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--slots", type=int, default=500)
    arguments = parser.parse_args()
    print(f"ASHA on {arguments.slots} slots, microseconds for one result")
    columns = ("trials", "results", "tuner", "first fifth", "last fifth", "p99", "everything")
    print(" ".join(f"{column:>11}" for column in columns))
    for trials in arguments.trials:
        print(line(trials, arguments.slots), flush=True)


def line(trials: int, slots: int) -> str:
    """One study from beginning to end."""
    simulator = submitted(trials, slots)
    tuner, begun = [], time.perf_counter()
    while (spent := timed(simulator)) is not None:
        tuner.append(spent)
    whole = (time.perf_counter() - begun) / len(tuner)
    fifth = len(tuner) // 5
    means = [statistics.fmean(part) for part in (tuner, tuner[:fifth], tuner[-fifth:])]
    p99 = sorted(tuner)[len(tuner) * 99 // 100]
    mean, first, last, worst, everything = (1e6 * seconds for seconds in (*means, p99, whole))
    return " ".join(f"{number:11.0f}" for number in (trials, len(tuner), mean, first, last, worst, everything))


SPENT = [0.0]


def timed(simulator: Simulator) -> float | None:
    """Seconds of the tuner's in one step of the simulator; None when the study is over."""
    SPENT[0] = 0.0
    return SPENT[0] if simulator.advance() else None


def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its time added up."""

    def timing(*arguments: Any, **named: Any) -> Any:
        begun = time.perf_counter()
        found = function(*arguments, **named)
        SPENT[0] += time.perf_counter() - begun
        return found

    return timing


def submitted(trials: int, slots: int) -> Simulator:
    """A simulator with a study of so many trials."""
    study = {"name": "scale", "trainer": "none", "metric": "loss", "mode": "min", "space": SPACE}
    spec = StudySpec.from_dict(study | {"tuner": TUNER | {"num_trials": trials}})
    simulator = Simulator(slots=slots, measure=loss, seconds=straggling)
    simulator.submit(StudyId("scale"), spec.to_json())
    return simulator


def loss(node: Node, step: int) -> e.Metrics:
    return {"loss": Random(f"{node.id}/{step}").random() + 1 / step}


def straggling(stage: e.Stage, number: int) -> float:
    return (stage.end - stage.start) * (1 + abs(Random(number).gauss(0, 1)))


if __name__ == "__main__":
    for name in ("observe", "suggest", "is_done"):
        setattr(driver.TunerDriver, name, clocked(getattr(driver.TunerDriver, name)))
    main()
