"""A process with the moody trainer in it, in one call."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

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
