"""A `pop` study on real workers, and the same study played from its recording: how far apart are the times?

    python benchmarks/pop_live.py [--trials 24] [--steps 20] [--slots 4]

(HyperDrive, §7.1 and Figure 12a: at most 13 % there.) First all configurations of `digits` are trained to the end, for
what they come to. Then POP looks for a target that three in a hundred of them reach (one at least), on real workers,
from the first stage that a slot was given until that stage ended that reached it. Then the simulator plays the
recording with the seconds that each step took in that very run, and with what lay in the mean between two stages of a
slot. Slots are cores: on a machine where they are busy, a step takes another time in each run, but the comparison is
of one run with itself.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: a slot is a core

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from app.domain import events as e
from app.domain.evolve import fold
from app.domain.ids import StudyId, canonical_json
from app.domain.search_plan import SearchPlan, Study
from app.events.export import parse
from app.simulation.trace_player import Player
from app.simulation.traces import Trace, Workload, read

ROOT = Path(__file__).parent.parent
TRAINER = ROOT / "examples" / "digits" / "trainer.py"
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
    with tempfile.TemporaryDirectory() as folder:
        whole = read(run(Path(folder) / "whole", {"kind": "random", **drawn}, arguments.slots, "--curves"))
        target = target_of(whole)
        tuner = {"kind": "pop", **drawn, "boundary": BOUNDARY, "target": target, "bounds": [0, 1]}
        log = run(Path(folder) / "pop", tuner, arguments.slots)
    compare(whole, tuner, target, log, arguments.slots)


def run(folder: Path, tuner: Mapping[str, Any], slots: int, *what: str) -> list[str]:
    """Run a study on real workers, and export it."""
    folder.mkdir()
    every = BOUNDARY if tuner["kind"] == "random" else None  # POP evaluates at its boundaries, and so are both
    study = {"name": tuner["kind"], **STUDY, "eval_every": every, "tuner": tuner}
    (folder / "study.json").write_text(json.dumps(study))
    stagetree(folder, "run", "study.json", "--slots", str(slots), "--trainers", str(TRAINER), "--quiet")
    return stagetree(folder, "export", "last", *what).splitlines()


def stagetree(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "app.cli", *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"stagetree {arguments[0]} failed: {done.stderr}")
    return done.stdout


def target_of(workload: Workload) -> float:
    best = sorted((workload.best(trace) for trace in workload.traces), reverse=True)
    return best[max(1, round(0.03 * len(best))) - 1]


def compare(whole: Workload, tuner: Mapping[str, Any], target: float, log: Iterable[str], slots: int) -> None:
    events = [event for _, event in parse(log)]
    plan = fold(events)
    study = next(iter(plan.studies.values()))
    timed = replace(whole, traces=tuple(traces_of(whole, plan, study)))
    between = hand_over(events)
    player = Player(timed, tuner, slots=slots, target=target, hand_over=between)
    real, simulated = live(events, study), player.time_to_target()
    print(f"{len(whole.traces)} trials of {whole.max_steps} steps, target {target:.4f}, {slots} slots")
    print(f"real workers {real:.2f} s, {study.executed} steps run; {1e3 * between:.0f} ms between two stages of a slot")
    print(f"simulator    {simulated:.2f} s, {player.simulator.plan.studies[StudyId('played')].executed} steps")
    print(f"difference   {100 * (simulated / real - 1):+.1f} %")


def traces_of(whole: Workload, plan: SearchPlan, study: Study) -> Iterable[Trace]:
    """What each of the study's trials comes to, with the seconds of a step as they were in the study itself."""
    recorded = {canonical_json(trace.hp): trace for trace in whole.traces}
    met = [trial.hp for trial in study.trials]
    rest = [trace for trace in whole.traces if canonical_json(trace.hp) not in set(map(canonical_json, met))]
    for trial in study.trials:
        trace, seconds = recorded[canonical_json(trial.hp)], 0.0
        for node in (plan.nodes[name] for name in trial.path):
            seconds = node.seconds / node.steps_run if node.steps_run else seconds
        yield replace(trace, seconds=(seconds,) * len(trace.steps)) if seconds else trace
    yield from rest


def hand_over(events: Iterable[e.Event]) -> float:
    """The mean of what lies between the seconds that a slot spent on a stage and its next chain."""
    given: dict[str, tuple[str, float]] = {}
    slot_of, spent, gaps = dict[str, str](), dict[str, float](), list[float]()
    for event in events:
        if isinstance(event, e.ChainAssigned):
            if before := given.get(event.slot):
                gaps.append(event.at - before[1] - spent.get(before[0], 0.0))
            given[event.slot], slot_of[event.chain] = (event.chain, event.at), event.slot
        elif isinstance(event, e.StageCompleted):
            spent[event.chain] = spent.get(event.chain, 0.0) + event.seconds
    return max(0.0, statistics.fmean(gaps)) if gaps else 0.0


def live(events: Iterable[e.Event], study: Study) -> float:
    """Seconds from the first stage that was given to a slot until the end of the study, which ends with its target."""
    begun = next(event.at for event in events if isinstance(event, e.ChainAssigned))
    if study.finished_at is None:
        raise SystemExit("the study on real workers did not end")
    return study.finished_at - begun


if __name__ == "__main__":
    main()
