"""A process with the moody trainer in it, in one call; and whether it, and its own children, are gone."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from app.workers.trainer_connection import Deadline
from app.workers.trainer_process import TrainerProcess
from stagetree.runtime.commands import Trained

Start = Callable[..., TrainerProcess]

MOODY = str(Path(__file__).parent / "moody.py")
TOY = str(Path(__file__).parents[1] / "e2e" / "trainers.py")
PATIENT = Deadline(60.0)


def moody(process: TrainerProcess, **args: Any) -> TrainerProcess:
    process.call(PATIENT).build(file=MOODY, name="moody", args=args, seed=0)
    return process


def toy(process: TrainerProcess) -> TrainerProcess:
    """With a small model that is trained as usual."""
    process.call(PATIENT).build(file=TOY, name="toy", args={}, seed=3)
    return process


def train(process: TrainerProcess, until: int, mood: str = "fine", **more: Any) -> Trained:
    """Train on in another mood than up to now."""
    sequence = {"family": "values", "values": ["fine", mood], "milestones": [process.step]}
    hp = {"mood": sequence if process.step else mood}
    return process.train(hp, until, **{"deadline": PATIENT, **more})


class Until(Deadline):
    """Long enough for anything, until something has happened: then it is over at once, however fast the machine is."""

    def __init__(self, has_happened: Callable[[], bool]) -> None:
        super().__init__(60.0)
        self._has_happened = has_happened

    @property
    def seconds(self) -> float:
        return 0.0 if self._has_happened() else 60.0


SECONDS = 60.0
"""How long to wait for what happens in milliseconds on an idle machine."""


def are_gone(*pids: int) -> bool:
    """Whether all of them have ended, or do soon."""
    processes = list[psutil.Process]()
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            processes.append(psutil.Process(pid))
    ends = time.monotonic() + SECONDS
    while any(map(_runs, processes)) and time.monotonic() < ends:
        time.sleep(0.01)
    return not any(map(_runs, processes))


def _runs(process: psutil.Process) -> bool:
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def is_done(journal: Path) -> bool:
    """Whether a trainer has written down all that it will."""
    return journal.exists() and journal.read_text().endswith("done\n")


def workers(journal: Path) -> list[int]:
    """The workers of a trainer, once it has written them all down."""
    ends = time.monotonic() + SECONDS
    while not is_done(journal):
        assert time.monotonic() < ends, "the trainer did not begin"
        time.sleep(0.01)
    return [int(line) for line in journal.read_text().split()[:-1]]


def interpreter_of(process: TrainerProcess) -> psutil.Process:
    return psutil.Process(psutil.Process(process.pid).ppid())
