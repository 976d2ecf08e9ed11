"""A trial in the process and terminal of who asks: `breakpoint()` stops there, and an error comes as it was raised."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.machine import Machine
from stagetree.runtime.model import Model
from stagetree.runtime.timeline import Timeline


@dataclass(frozen=True, kw_only=True)
class Trial:
    """A trial of the trainer `name` of `file`. hp: JSON of its sequences. The other fields: as a slot has them.

    begin: a file with the weights that it begins with, if it does. whole: with all of the state in it.
    """

    file: str
    name: str
    args: Mapping[str, Any]
    seed: int
    hp: Mapping[str, Any]
    device: str = "cpu"
    threads: int = 1
    determinism: str = "strict"
    begin: str = ""
    whole: bool = False


def run_in_terminal(trial: Trial, steps: int) -> dict[str, float | None]:
    """Train a trial exactly as a slot does, from the beginning for so many steps, and evaluate it; the metrics.

    Raises whatever the trainer's code raises, `TrainerFileError`, `SequenceError`.
    """
    Machine(trial.device, None, trial.threads, trial.determinism).prepare()
    timeline = Timeline(trial.hp)
    try:
        with user_code():
            kind = load_trainer(trial.file, trial.name)
        model = Model.build(kind, trial.args, trial.seed, trial.device)
        if trial.begin:
            with Path(trial.begin).open("rb") as file:
                model.begin(file.fileno(), timeline, is_whole=trial.whole)
        while model.step < steps:
            model.advance(timeline)
        return model.evaluate()
    except TrainerFailed as failed:
        raise (failed.__cause__ or failed) from None
