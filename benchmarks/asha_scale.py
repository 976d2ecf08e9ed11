"""How long ASHA takes to decide as a study grows: simulated, on 500 slots, with stragglers.

    python benchmarks/asha_scale.py [--trials 1000 3000 10000] [--slots 500] [--policy critical_path|fair_share]

For each size: the seconds of the tuner for one result (reading new history, and wishing until nothing more
is wanted), at the beginning of the study and at its end, and what all of it takes (search plan, stage tree, chains,
tuner, and the virtual slots), also at its beginning and at its end. Flat means that none of them grows with the number
of trials. All times are of the processor; the garbage collector is set as in the scheduler's process. Memory is the
most that this process ever had, of whichever size came before, too.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable
from random import Random
from typing import Any

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.process.garbage_collection import collect_young, freeze_survivors
from app.scheduling.fair_share import POLICIES, Policy
from app.search.tuners import driver
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

SPACE = {"lr": {"loguniform": [1e-4, 1.0]}, "momentum": {"uniform": [0.8, 0.99]}}
TURN_SECONDS = 30.0
TUNER = {"kind": "asha", "min_steps": 1, "max_steps": 256, "reduction_factor": 4}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, nargs="+", default=[1000, 3000, 10000])
    parser.add_argument("--slots", type=int, default=500)
    parser.add_argument("--policy", choices=list(POLICIES), default="critical_path")
    arguments = parser.parse_args()
    print(f"ASHA on {arguments.slots} slots, microseconds of the processor for one result")
    columns = ("trials", "results", "tuner", "first fifth", "last fifth", "p99", "everything", "first fifth", "last")
    print(" ".join(f"{column:>11}" for column in (*columns, "seconds", "MiB")))
    for trials in arguments.trials:
        print(line(submitted(trials, arguments.slots, POLICIES[arguments.policy]), trials), flush=True)


def line(simulator: Simulator, trials: int) -> str:
    """One study from beginning to end."""
    tuner, everything = list[float](), list[float]()
    begun = time.process_time()
    while (spent := timed(simulator)) is not None:
        tuner.append(spent[0])
        everything.append(spent[1])
    seconds = time.process_time() - begun
    numbers = [*parts(tuner), 1e6 * sorted(tuner)[len(tuner) * 99 // 100], *parts(everything)]
    memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    counts = " ".join(f"{number:11.0f}" for number in (trials, len(tuner), *numbers))
    return f"{counts} {seconds:11.2f} {memory:11.0f}"


def parts(seconds: list[float]) -> list[float]:
    """In the mean, in the first fifth and in the last, in microseconds."""
    fifth = len(seconds) // 5
    return [1e6 * statistics.fmean(part) for part in (seconds, seconds[:fifth], seconds[-fifth:])]


SPENT = [0.0]


def timed(simulator: Simulator) -> tuple[float, float] | None:
    """Seconds of the tuner, and of all, in one step of the simulator; None when the study is over."""
    SPENT[0], begun = 0.0, time.process_time()
    goes_on = simulator.advance()
    collect_young()
    return (SPENT[0], time.process_time() - begun) if goes_on else None


def clocked(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function, its time added up."""

    def timing(*arguments: Any, **named: Any) -> Any:
        begun = time.process_time()
        answer = function(*arguments, **named)
        SPENT[0] += time.process_time() - begun
        return answer

    return timing


def submitted(trials: int, slots: int, policy: Policy) -> Simulator:
    """A simulator with a study of this many trials."""
    study = {"name": "scale", "trainer": "none", "metric": "loss", "mode": "min", "space": SPACE}
    spec = StudySpec.from_dict(study | {"tuner": TUNER | {"num_trials": trials}})
    turn_seconds = TURN_SECONDS if policy is POLICIES["fair_share"] else None
    simulator = Simulator(slots=slots, measure=loss, seconds=straggling, policy=policy, turn_seconds=turn_seconds)
    simulator.submit(StudyId("scale"), spec.to_json())
    return simulator


def loss(node: Node, step: int) -> e.Metrics:
    return {"loss": Random(f"{node.id}/{step}").random() + 1 / step}


def straggling(stage: e.Stage, number: int) -> float:
    return (stage.end - stage.start) * (1 + abs(Random(number).gauss(0, 1)))


if __name__ == "__main__":
    for name in ("observe", "suggest", "is_done"):
        setattr(driver.TunerDriver, name, clocked(getattr(driver.TunerDriver, name)))
    freeze_survivors()
    main()
