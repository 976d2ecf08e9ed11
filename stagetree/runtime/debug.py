"""Trains one trial in the caller's terminal, for `stagetree debug`, or has its trainer export a checkpoint.

`breakpoint()` opens a prompt there, and exceptions are raised as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from mmap import ACCESS_READ, mmap
from pathlib import Path
from typing import Any

from stagetree.errors import StagetreeError
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.weight_files import weight_parts
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.machine import Machine
from stagetree.runtime.model import HpTimeline, Model
from stagetree.trainer import Trainer
from stagetree.trainer.ranks import group


@dataclass(frozen=True, kw_only=True)
class DebugTrial:
    """A trial, and the settings of the slot that would train it.

    file, name: the trainer. hp: JSON of its sequences. begin: a file with the trial's initial weights, or empty. whole:
    that file holds a whole state. For the other fields see `stagetree.runtime.machine.Machine`.
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
    """Train a trial from step 0 exactly as a slot does, and evaluate it.

    Returns: the metrics by name; None for one that is not finite.

    Raises the errors of the trainer's code, `TrainerFileError`, `SequenceError`.
    """
    timeline = HpTimeline(trial.hp)
    with _raising_original():
        model = _build_model(trial)
        if trial.begin:
            with Path(trial.begin).open("rb") as file:
                model.begin(file.fileno(), timeline, is_whole=trial.whole)
        while model.step < steps:
            model.advance(timeline)
        return model.evaluate()


def export_state(trial: DebugTrial, image: Path, step: int, folder: Path, mark: str = "") -> bool:
    """Export a trial's model from the checkpoint after `step` steps into an empty folder.

    image: the checkpoint's file. mark: why it may be inexact, for the metadata of a file that is written here. Returns
    whether the trainer has an `export` of its own. Raises as `run_in_terminal`, `StagetreeError` if there are no
    tensors, OSError.
    """
    with _raising_original():
        model = _build_model(trial)
        with image.open("rb") as file:
            model.load(state_format.read(file.fileno()), HpTimeline(trial.hp), step)
        export = type(model.trainer).export
        if export is not Trainer.export:
            with user_code():
                model.trainer.export(folder)
            return not export.__module__.startswith("stagetree.")
    with image.open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ) as area:
        try:
            weights = b"".join(weight_parts(area, mark))
        except ValueError as error:
            raise StagetreeError(f"{error}: give the trainer a method `export(self, folder)`") from None
    (folder / "model.safetensors").write_bytes(weights)
    return False


def _build_model(trial: DebugTrial) -> Model:
    Machine(trial.device, None, trial.threads, trial.determinism).prepare()
    group.here().shards, group.here().parallel = trial.shards, trial.parallel
    with user_code():
        kind = load_trainer(trial.file, trial.name)
    return Model.build(kind, trial.args, trial.seed, trial.device)


@contextmanager
def _raising_original() -> Iterator[None]:
    try:
        yield
    except TrainerFailed as failed:
        raise (failed.__cause__ or failed) from None
