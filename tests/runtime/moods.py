"""A process with the moody trainer in it, in one call; and whether it, and what it started, is gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil

from app.workers.deadline import Deadline
from app.workers.trainer_process import TrainedTo, TrainerProcess

Start = Callable[..., TrainerProcess]

MOODY = str(Path(__file__).parent / "moody.py")
TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
PATIENT = Deadline(60.0)


def moody(process: TrainerProcess, **args: Any) -> TrainerProcess:
    process.build(MOODY, "moody", args, 0, deadline=PATIENT)
    return process


def train(process: TrainerProcess, until: int, mood: str = "fine", **more: Any) -> TrainedTo:
    """Train on in another mood than up to now."""
    sequence = {"family": "values", "values": ["fine", mood], "milestones": [process.step]}
    hp = {"mood": sequence if process.step else mood}
    return process.train(hp, until, **{"deadline": PATIENT, **more})


SECONDS = 30.0
"""How long to wait for what happens in milliseconds on an idle machine."""


def are_gone(*pids: int) -> bool:
    """Whether all of them have ended, or do soon."""
    processes = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    ends = time.monotonic() + SECONDS
    while any(_runs(process) for process in processes) and time.monotonic() < ends:
        psutil.wait_procs(processes, timeout=0.1)
    return not any(_runs(process) for process in processes)


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def workers(journal: Path) -> list[int]:
    """The workers of a trainer, once it has written them all down."""
    ends = time.monotonic() + SECONDS
    while not journal.exists() or not journal.read_text().endswith("done\n"):
        assert time.monotonic() < ends, "the trainer did not begin"
        time.sleep(0.01)
    return [int(line) for line in journal.read_text().split()[:-1]]


def interpreter_of(process: TrainerProcess) -> psutil.Process:
    return psutil.Process(psutil.Process(process.pid).ppid())
