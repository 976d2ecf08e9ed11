"""ASHA Figure 7: trials trained to the end, and the time of the first, with stragglers and dropped jobs.

    python -m benchmarks.figures.stragglers [--seeds 2] [--spreads 0 1 1.67] [--drops 0 0.002]

25 virtual slots for 1,000 units of time. A step takes a unit, times 1 + |z| for each stage, where z is normal with the
spread of the column; a job is dropped with a probability for each unit of time. ASHA and synchronous SHA begin as many
trials as the slots take, with eta 4, r 1, R 256 and s 0; SHA in brackets of 256 trials, of which the next begins when
slots are idle. A dropped job is begun again from its last checkpoint, as the product does it, where the paper loses it.
The paper has 18 cells of 25 runs each; the command takes them as options, at about 15 s of CPU a run.
"""

from __future__ import annotations

import argparse
import logging
from random import Random
from statistics import fmean

from app.domain import events as e
from app.domain.terms import StudyId
from app.simulation.pace import Fault
from app.simulation.simulator import Simulator
from benchmarks.figures.simulated import Accuracies, Json, keep

SLOTS, UNTIL, LONGEST = 25, 1000.0, 256
SPACE = {"lr": {"loguniform": [1e-4, 1.0]}, "momentum": {"uniform": [0.8, 0.99]}}
STUDY: Json = {"trainer": "none", "metric": "val_accuracy", "mode": "max", "space": SPACE}
RUNGS = {"min_steps": 1, "max_steps": LONGEST, "reduction_factor": 4}
BRACKETS = 30
"""More than end within the time."""


class World:
    """How long stages take, and which are dropped."""

    def __init__(self, seed: int, spread: float, drop: float) -> None:
        self._seed, self._spread, self._drop = seed, spread, drop

    def seconds(self, stage: e.Stage, number: int) -> float:
        return (stage.end - stage.start) * (1 + abs(Random(f"{self._seed}/{number}").gauss(0, self._spread)))

    def fault(self, stage: e.Stage, number: int, slot: str) -> Fault | None:
        survives = (1 - self._drop) ** self.seconds(stage, number)
        return None if Random(f"{self._seed}/{number}/drop").random() < survives else Fault.LOSE


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--spreads", type=float, nargs="+", default=[0.0, 1.0, 1.67])
    parser.add_argument("--drops", type=float, nargs="+", default=[0.0, 0.002])
    arguments = parser.parse_args()
    logging.getLogger("app").setLevel(logging.ERROR)  # each dropped job is a warning
    print(f"{'spread':>6} {'drop':>6} {'SHA ended':>10} {'ASHA ended':>11} {'SHA first':>10} {'ASHA first':>11}")
    rows = []
    for spread in arguments.spreads:
        for drop in arguments.drops:
            rows.append(row := line(spread, drop, arguments.seeds))
            print(
                f"{spread:6} {drop:6} {row['sha'][0]:10} {row['asha'][0]:11} {row['sha'][1]:10} {row['asha'][1]:11}",
                flush=True,
            )
    keep("stragglers", {"slots": SLOTS, "until": UNTIL, "seeds": arguments.seeds, "rows": rows})


def line(spread: float, drop: float, seeds: int) -> Json:
    """By algorithm, means over seeds: trials trained to R, and when the first one was."""
    row: Json = {"spread": spread, "drop": drop}
    for kind in ("sha", "asha"):
        ends = [ended(kind, World(seed, spread, drop), seed) for seed in range(seeds)]
        firsts = [min(times, default=UNTIL) for times in ends]
        row[kind] = [round(fmean(map(len, ends)), 1), round(fmean(firsts))]
    return row


def ended(kind: str, world: World, seed: int) -> list[float]:
    """When trials came to the end."""
    curves = Accuracies(seed)
    simulator = Simulator(slots=SLOTS, measure=curves, seconds=world.seconds, faults=world.fault)
    curves.plan = simulator.plan
    for number in range(BRACKETS if kind == "sha" else 1):
        trials = {"num_trials": 256} if kind == "sha" else {"num_trials": 100_000}
        study = STUDY | {"name": f"{kind}-{number}", "priority": BRACKETS - number}
        tuner = {"kind": kind, **RUNGS, **trials, "sampling_seed": number}
        simulator.submit(StudyId(f"{kind}-{number}"), study | {"tuner": tuner})
    simulator.run_until(UNTIL)
    log = simulator.log()
    stages = {each.event.chain: each.event.stages for each in log if isinstance(each.event, e.ChainAssigned)}
    done = ((each.at, each.event) for each in log if isinstance(each.event, e.StageCompleted))
    return [at for at, event in done if stages[event.chain][event.index].end == LONGEST]


if __name__ == "__main__":
    main()
