"""Train one trial in the calling process and terminal, for `stagetree debug`, or have its trainer export a state.

There `breakpoint()` stops at the prompt of the user, and an exception comes through as it was raised.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from stagetree.errors import StagetreeError
from stagetree.runtime import state_format
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.machine import Machine
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.weight_files import export_weights
from stagetree.trainer import Trainer
from stagetree.trainer.ranks import group


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
    timeline = HpTimeline(trial.hp)
    with _as_it_was_raised():
        model = _built(trial)
        if trial.begin:
            with Path(trial.begin).open("rb") as file:
                model.begin(file.fileno(), timeline, is_whole=trial.whole)
        while model.step < steps:
            model.advance(timeline)
        return model.evaluate()


def export_state(trial: DebugTrial, image: Path, step: int, folder: Path) -> bool:
    """Have a trial's trainer write its model, from the checkpoint after `step` steps, into an empty folder.

    image: the file with the checkpoint. Returns whether the trainer has an `export` of its own. Raises as
    `run_in_terminal` does, `StagetreeError` if it holds no tensors, OSError.
    """
    with _as_it_was_raised():
        model = _built(trial)
        with image.open("rb") as file:
            model.load(state_format.read(file.fileno()), HpTimeline(trial.hp), step)
        export = type(model.trainer).export
        if export is not Trainer.export:
            with user_code():
                model.trainer.export(folder)
            return not export.__module__.startswith("stagetree.")
    with image.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as area:
        try:
            weights = export_weights(area)
        except ValueError as error:
            raise StagetreeError(f"{error}: give the trainer a method `export(self, folder)`") from None
    (folder / "model.safetensors").write_bytes(weights)
    return False


def _built(trial: DebugTrial) -> Model:
    Machine(trial.device, None, trial.threads, trial.determinism).prepare()
    group.here().shards, group.here().parallel = trial.shards, trial.parallel
    with user_code():
        kind = load_trainer(trial.file, trial.name)
    return Model.build(kind, trial.args, trial.seed, trial.device)


@contextmanager
def _as_it_was_raised() -> Iterator[None]:
    try:
        yield
    except TrainerFailed as failed:
        raise (failed.__cause__ or failed) from None
