"""A trial in the process and terminal of who asks: `breakpoint()` stops there, and an error comes as it was raised."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import load_trainer
from stagetree.runtime.machine import Machine
from stagetree.runtime.model import Model
from stagetree.runtime.state_format import unpack
from stagetree.runtime.timeline import Timeline


def run_in_terminal(
    file: str,
    name: str,
    args: Mapping[str, Any],
    seed: int,
    hp: Mapping[str, Any],
    image: bytes | None,
    start: int,
    until: int,
    device: str = "cpu",
    *,
    threads: int = 1,
    determinism: str = "strict",
) -> dict[str, float | None]:
    """Train a trial exactly as a slot does, from step `start` to `until`, and evaluate it; the metrics.

    image: the checkpoint of step `start`; None trains from the beginning, whatever `start` is. threads, determinism: as
    the slot's, for the same bits. Raises whatever the trainer's code raises, `TrainerFileError`, `SequenceError`.
    """
    Machine(device, None, threads, determinism).prepare()
    timeline = Timeline(hp)
    try:
        with user_code():
            kind = load_trainer(file, name)
        model = Model.build(kind, args, seed, device)
        if image is not None:
            model.load(unpack(image), timeline, start)
        while model.step < until:
            model.advance(timeline)
        return model.evaluate()
    except TrainerFailed as failed:
        raise (failed.__cause__ or failed) from None
