"""A `pop` study on real workers, and the same study played from its recording: how far apart are the times?

    python benchmarks/pop_live.py [--trials 24] [--steps 20] [--slots 4]

(HyperDrive, §7.1 and Figure 12a: at most 13 % there.) First all configurations of `digits` are trained to the end, for
their final values. Then POP looks for a target that three in a hundred of them reach (one at least), on real workers.
Then the simulator plays the recording with the seconds that each stage took in that very run, from the moment it was
given to a slot, and with what the scheduler took from a result to the next chain, in the mean. A stage that was not
run takes as long as that trial, or all, in the mean of a step. Both times count from the first chain to the
end of the study. Slots are cores: on a machine where they are busy, a step takes another time in each run, but the
comparison is of one run with itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: a slot is a core

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

from app.domain import events as e
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import NodeId, canonical_json
from app.events.log import StoredEvent
from app.simulation.traces import STUDY as PLAYED
from app.simulation.traces import Part, Player, Trace, Workload, read, record

sys.path.insert(0, str(Path(__file__).parent / "data"))
from pop import target_of
from real_runs import Real, completed, overheads, spans

TRAINER = Path(__file__).parent.parent / "examples" / "digits" / "trainer.py"
STUDY: dict[str, Any] = {
    "trainer": "digits",
    "trainer_args": {"width": 8},
    "seed": 0,
    "metric": "val_accuracy",
    "mode": "max",
    "merge": False,
    "space": {
        "lr": {"loguniform": [0.0001, 1.0]},
        "bs": [32, 64, 128],
        "momentum": {"uniform": [0.0, 0.99]},
        "weight_decay": {"loguniform": [0.00001, 0.1]},
    },
}
BOUNDARY = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=24)
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--slots", type=int, default=4)
    arguments = parser.parse_args()
    drawn = {"num_trials": arguments.trials, "max_steps": arguments.steps, "sampling_seed": 0}
    plan, study = folded(run({"kind": "random", **drawn}, arguments.slots))
    whole = read(json.dumps(line) for line in record(plan, study))
    target = target_of(whole)
    tuner = {"kind": "pop", **drawn, "boundary": BOUNDARY, "target": target, "bounds": [0, 1]}
    compare(whole, tuner, target, run(tuner, arguments.slots), arguments.slots)


def run(tuner: Mapping[str, Any], slots: int) -> list[StoredEvent]:
    """The log of a study on real workers that have nothing else to do."""
    every = BOUNDARY if tuner["kind"] == "random" else None  # POP evaluates at its boundaries, and so are both
    with tempfile.TemporaryDirectory() as folder:
        real = Real(Path(folder), slots, TRAINER)
        try:
            return real.run({"name": tuner["kind"], **STUDY, "eval_every": every, "tuner": tuner})
        finally:
            real.close()


def folded(log: Sequence[StoredEvent]) -> tuple[SearchPlan, Study]:
    """The plan and its only study."""
    plan = fold([each.event for each in log])
    return plan, next(iter(plan.studies.values()))


def compare(whole: Workload, tuner: Mapping[str, Any], target: float, log: Sequence[StoredEvent], slots: int) -> None:
    study = folded(log)[1]
    took = dict(zip(parts(log), (each.seconds for each in completed(log)), strict=True))
    timed = replace(whole, traces=tuple(traces_of(whole, study, took)))
    costs = overheads(log)
    player = Player(timed, tuner, slots=slots, target=target, took=took, overheads=costs)
    player.simulator.run()
    simulated, played = player.simulator.log(), player.simulator.plan.studies[PLAYED]
    real, virtual = study_seconds(log), study_seconds(simulated)
    timed_steps = sum(end - start for trial, start, end in parts(simulated) if (trial, start, end) in took)
    print(f"{len(whole.traces)} trials of {whole.max_steps} steps, target {target:.4f}, {slots} slots")
    print(f"real workers {real:.2f} s, {study.executed} steps run; {1e3 * costs.look:.0f} ms from a result to a chain")
    print(f"simulator    {virtual:.2f} s, {played.executed} steps, {timed_steps} of them in stages of the run")
    print(f"difference   {100 * (virtual / real - 1):+.1f} %")


def parts(log: Sequence[StoredEvent]) -> list[Part]:
    """The stages that were completed, in their order."""
    trial_of = {node: trial.number for trial in folded(log)[1].trials for node in trial.path}
    return [(trial_of[NodeId(node)], start, end) for node, start, end in spans(log)]


def traces_of(whole: Workload, study: Study, took: Mapping[Part, float]) -> Iterator[Trace]:
    """What each of the study's trials comes to, with the seconds of a step as they were in the study itself."""
    recorded = {canonical_json(trace.hp): trace for trace in whole.traces}
    usual = sum(took.values()) / sum(end - start for _, start, end in took)
    for trial in study.trials:
        trace = recorded.pop(canonical_json(trial.hp))
        own = [seconds / (end - start) for (number, start, end), seconds in took.items() if number == trial.number]
        yield replace(trace, seconds=(fmean(own or [usual]),) * len(trace.steps))
    yield from (replace(trace, seconds=(usual,) * len(trace.steps)) for trace in recorded.values())


def study_seconds(log: Sequence[StoredEvent]) -> float:
    """Seconds from the first chain that was given to a slot until the end of the study."""
    begun = next(each.at for each in log if isinstance(each.event, e.ChainAssigned))
    return next(each.at for each in log if isinstance(each.event, e.StudyCompleted)) - begun


if __name__ == "__main__":
    main()
