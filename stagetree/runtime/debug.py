"""Train one trial in the calling process and terminal, for `stagetree debug`.

There `breakpoint()` stops at the prompt of the user, and an exception comes through as it was raised.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.machine import Machine
from stagetree.runtime.model import HpTimeline, Model
from stagetree.trainer import ranks


@dataclass(frozen=True, kw_only=True)
class DebugTrial:
    """A trial, and the settings of the slot that would train it.

    file, name: the trainer. hp: JSON of its sequences. begin: a file with the weights that the trial begins with, or
    empty. whole: whether that file holds the whole state. The other fields are as in a slot.
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
    shards: int = 0
    parallel: str = "tree"


def run_in_terminal(trial: DebugTrial, steps: int) -> dict[str, float | None]:
    """Train a trial exactly as a slot does, from step 0, and evaluate it.

    Returns: the metrics by name; None for one that is no finite number.

    Raises whatever the trainer's code raises, `TrainerFileError`, `SequenceError`.
    """
    Machine(trial.device, None, trial.threads, trial.determinism).prepare()
    timeline = HpTimeline(trial.hp)
    try:
        ranks.here().shards, ranks.here().parallel = trial.shards, trial.parallel
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
