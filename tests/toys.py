"""Study files for the toy trainer, and the parts of results to compare."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stacks import Json, Service

SMALLEST: Json = {
    "name": "x",
    "trainer": "x",
    "metric": "x",
    "mode": "max",
    "space": {"lr": [0.1]},
    "tuner": {"kind": "grid", "max_steps": 1},
}
"""The required fields of a study file."""


def grid(tag: str, *, seconds: float = 0.0, merge: bool = True, **more: Any) -> Json:
    """Eight trials of 12 steps that part at steps 4, 6 and 9: 96 steps, of which 56 are unique."""
    spec = {
        "name": tag,
        "trainer": "toy",
        "trainer_args": {"tag": tag, "seconds": seconds},
        "seed": 3,
        "metric": "score",
        "mode": "max",
        "eval_every": 3,
        "merge": merge,
        "space": {
            "lr": [
                {"family": "multistep", "init": 0.1, "milestones": [4, 9], "gamma": 0.5},
                {"family": "multistep", "init": 0.1, "milestones": [9], "gamma": 0.5},
                {"family": "cosine", "init": 0.2, "min": 0.0, "period": 12},
                0.1,
            ],
            "momentum": [0.5, {"family": "values", "values": [0.5, 0.9], "milestones": [6]}],
        },
        "tuner": {"kind": "grid", "max_steps": 12},
    }
    return spec | more


def curves(service: Service, study: str) -> list[Json]:
    """For each trial, its final state, and all metrics at all evaluated steps."""
    trials = [service.client.trial(study, trial["trial"]) for trial in service.client.trials(study)]
    return [{name: trial[name] for name in ("trial", "state", "steps", "value", "curve")} for trial in trials]


def trials(tag: str, *trials: tuple[Json, int], seconds: float = 0.0, **more: Any) -> Json:
    """A study of these trials: the values of their hyper-parameters, and their steps."""
    listed = [{"hp": {"lr": 0.1, **hp}, "steps": steps} for hp, steps in trials]
    spec = grid(tag, seconds=seconds, tuner={"kind": "trials", "trials": listed}, **more)
    del spec["space"]
    return spec


def switch(before: Any, after: Any, step: int) -> Json:
    """One value until a step, another from there on."""
    return {"family": "values", "values": [before, after], "milestones": [step]}


def trained_steps(service: Service, *studies: str) -> int:
    return sum(service.client.study(study)["steps"]["executed"] for study in studies)


@contextmanager
def hold_steps(journal: Path) -> Iterator[Callable[[], None]]:
    """Block all steps that write to this journal, a pipe, until the yielded function is called.

    The block holds the journal's lines meanwhile, so it ends after the study.
    """
    os.mkfifo(journal)
    reading: list[int] = []

    def let_go() -> None:
        reading.append(os.open(journal, os.O_RDONLY | os.O_NONBLOCK))
        journal.unlink()  # from here on it is a file

    try:
        yield let_go
    finally:
        if not reading:
            let_go()
        os.close(reading[0])
