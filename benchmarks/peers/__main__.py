"""Run the programs of stagetree and its peers in turn, keep the measurements, and make `docs/peers.md` of them.

    python -m benchmarks.peers [--rounds N] [--tasks ladder,grid] [--programs stagetree,optuna] [--more]

Each peer gets an environment of its own in `.peers/`, the first time. A program is timed from outside, from its start
to its end; what its slots do is written by the model that all of them train. In each round all programs of a task run
one after the other, and the first one changes from round to round.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from datetime import date
from importlib.metadata import version
from pathlib import Path
from typing import Any

from benchmarks.peers import page
from benchmarks.peers.environments import HERE, OURS, PROGRAMS, REQUIRED, ROOT, STOPPING, python_of
from benchmarks.peers.tasks import SLOTS, TARGET, TASKS

RESULTS = HERE / "results.json"
ROUNDS = {"ladder": 2, "grid": 1, "asha": 3}
"""ASHA's configurations are others in each round, and who meets the good ones first is luck."""

LONGEST = 600
"""Seconds after which a program is ended, and counts as failed."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.peers", description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, help="of every task; by default " + str(ROUNDS))
    parser.add_argument("--tasks", default=",".join(TASKS), help="separated by commas")
    parser.add_argument("--programs", default=",".join(PROGRAMS), help="separated by commas")
    parser.add_argument("--results", type=Path, default=RESULTS, help="where to keep them; the page is of the default")
    parser.add_argument("--more", action="store_true", help="add rounds to the kept ones")
    arguments = parser.parse_args()
    tasks, programs = arguments.tasks.split(","), arguments.programs.split(",")
    pythons = {program: python_of(program) for program in programs}
    kept: dict[str, Any] = {**machine(), "runs": []}
    if arguments.more:
        kept["runs"] = json.loads(arguments.results.read_text())["runs"]
    for number, task in turns(tasks, arguments.rounds, kept["runs"]):
        first = number % len(programs)
        for program in programs[first:] + programs[:first]:
            if program == STOPPING and task != "asha":
                continue
            done = run(program, pythons[program], task, number)
            kept["runs"].append({"round": number, "task": task, "program": program, **done})
            print(json.dumps(kept["runs"][-1]), flush=True)
            arguments.results.write_text(json.dumps(kept, indent=1) + "\n")
    if arguments.results == RESULTS:
        page.main()


def turns(tasks: list[str], rounds: int | None, before: list[dict[str, Any]]) -> Iterator[tuple[int, str]]:
    """Which task is run in which round, one round after the other; rounds of earlier runs count."""
    begun = {task: max((run["round"] + 1 for run in before if run["task"] == task), default=0) for task in tasks}
    for number in range(max(rounds or ROUNDS[task] for task in tasks)):
        yield from ((begun[task] + number, task) for task in tasks if number < (rounds or ROUNDS[task]))


def machine() -> dict[str, Any]:
    cpu = [
        line.split(":")[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line
    ]
    return {
        "date": date.today().isoformat(),
        "cpu": cpu[0] if cpu else platform.machine(),
        "cores": os.cpu_count(),
        "target": TARGET,
        "python": platform.python_version(),
        "versions": {OURS: version(OURS), "torch": version("torch"), **REQUIRED},
    }


def run(program: str, python: str, task: str, seed: int) -> dict[str, Any]:
    """One program from its start to its end, and what the model wrote about it."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder, "log.jsonl")
        log.touch()
        environment = {**os.environ, "PYTHONPATH": str(ROOT), "PEERS_LOG": str(log), "OMP_NUM_THREADS": "1"}
        load, at, begun = os.getloadavg()[0], time.time(), time.monotonic()
        with Path(folder, "printed").open("w") as printed:
            process = subprocess.Popen(
                command(program, python, task, folder, seed),
                cwd=folder,
                env=environment,
                stdout=printed,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            try:
                code = process.wait(LONGEST)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = process.wait()
        wall = time.monotonic() - begun
        if code:
            print(f"{program} failed at {task}: {Path(folder, 'printed').read_text()[-2000:]}", flush=True)
        return {"failed": bool(code), "load": load, "wall": round(wall, 1), **summary(log, at)}


def command(program: str, python: str, task: str, folder: str, seed: int) -> list[str]:
    if program in REQUIRED:
        return [python, str(HERE / "programs" / f"with_{program}.py"), task, folder, str(seed)]
    study, trainer = HERE / "studies" / f"{task}.yaml", HERE / "trainer.py"
    kept = ["--dir", f"{folder}/kept", "--trainers", str(trainer), "-o", "json", "-q"]
    words = [python, "-m", "stagetree", "run", str(study), "--slots", str(SLOTS), *kept]
    if task == "asha":
        first = [{**config, "bs": 64} for config in TASKS[task].configurations(seed)]
        words += ["--set", f"tuner.first={json.dumps(first)}", "--set", f"target={TARGET}"]
    if program == STOPPING:
        words += ["--set", "tuner.type=stopping"]
    return words


def summary(log: Path, begun: float) -> dict[str, Any]:
    """Of the lines that the model wrote: seconds in training and evaluating, steps, the best loss, and when."""
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    losses = [line for line in lines if line["kind"] == "evaluate"]
    reached = [line["at"] - begun for line in losses if line["loss"] <= TARGET]
    return {
        "first_step": round(min((line["at"] - line["seconds"] for line in lines), default=begun) - begun, 1),
        "slot_seconds": round(sum(line["seconds"] for line in lines), 1),
        "processor_seconds": round(sum(line["processor"] for line in lines), 1),
        "steps": sum(line["kind"] == "train" for line in lines),
        "evaluations": len(losses),
        "best": min((line["loss"] for line in losses), default=None),
        "to_target": round(min(reached), 1) if reached else None,
    }


if __name__ == "__main__":
    main()
