"""A trainer at a place in a plan: it takes the next step, evaluates, and gives or takes back its whole state.

Law 3 lives here: a step depends only on the state, the values of the hyper-parameters and the generators, and nothing
that happens between steps disturbs them.
"""

from __future__ import annotations

import math
import traceback
from bisect import bisect_right
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from app.domain.schedule import Segment, segments
from app.workers import generators
from app.workers.state_format import Snapshot, snapshot, unpack
from stagetree.trainer import Trainer


class TrainerFailed(Exception):
    """The user's code failed; `kind` and `trace` go into the log."""

    def __init__(self, kind: str, trace: str) -> None:
        super().__init__(trace)
        self.kind, self.trace = kind, trace


@contextmanager
def user_code() -> Iterator[None]:
    """Whatever the user's code raises inside is a `TrainerFailed`."""
    try:
        yield
    except (torch.OutOfMemoryError, MemoryError) as error:
        raise TrainerFailed("out_of_memory", traceback.format_exc()) from error
    except (Exception, SystemExit) as error:
        raise TrainerFailed("exception", traceback.format_exc()) from error


class Timeline:
    """The values of a trial's hyper-parameters, step by step."""

    def __init__(self, hp: Mapping[str, Any], end: int) -> None:
        self._segments = list[Segment]()
        for segment in segments(hp):
            if segment.start >= max(end, 1):
                break
            self._segments.append(segment)
        self._starts = [segment.start for segment in self._segments]

    def at(self, step: int) -> dict[str, Any]:
        """All values in force at a step."""
        return self._segments[bisect_right(self._starts, step) - 1].values(step)

    def changes(self, step: int) -> dict[str, Any]:
        """The values that are new at a step: all of them at the first."""
        values = self.at(step)
        if step == 0:
            return values
        before = self.at(step - 1)
        return {name: value for name, value in values.items() if value != before[name]}


class Model:
    """One trainer object on one device. `step` is how many steps it has been trained for."""

    def __init__(self, trainer: Trainer, device: str) -> None:
        self.trainer, self.device, self.step = trainer, device, 0
        self._generators = generators.state(device)

    @classmethod
    def build(cls, kind: type[Trainer], args: Mapping[str, Any], seed: int, device: str) -> Model:
        """The model before its first step. Raises `TrainerFailed`."""
        generators.seed(seed)
        with user_code():
            return cls(kind(seed=seed, device=device, **args), device)

    def load(self, data: bytes, timeline: Timeline, step: int) -> None:
        """Become the model that `save` stored after `step` steps of training on `timeline`. Raises `TrainerFailed`."""
        saved = unpack(data)
        with user_code():
            self.trainer.setup(timeline.at(step - 1))
            self.trainer.load_state_dict(saved["trainer"])
        self.step, self._generators = step, saved["generators"]

    def advance(self, timeline: Timeline) -> None:
        """Train one step. Raises `TrainerFailed`."""
        changes = timeline.changes(self.step)
        generators.restore(self._generators, self.device)
        with user_code():
            if changes:
                self.trainer.setup(changes)
            self.trainer.train()
        self._generators = generators.state(self.device)
        self.step += 1

    def evaluate(self) -> dict[str, float | None]:
        """The metrics as they stand; None for one that is not a finite number. Raises `TrainerFailed`."""
        generators.restore(self._generators, self.device)
        with user_code():
            metrics = self.trainer.evaluate()
            if not isinstance(metrics, Mapping):
                raise TypeError(f"evaluate must return a dict of numbers, got {type(metrics).__name__}")
            return {str(name): _finite(name, value) for name, value in metrics.items()}

    def save(self) -> Snapshot:
        """A copy of the whole state, which further training does not change. Raises `TrainerFailed`."""
        with user_code():
            return snapshot({"trainer": self.trainer.state_dict(), "generators": self._generators})


def _finite(name: str, value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        raise TypeError(f"evaluate must return a dict of numbers, got {value!r} for {name}") from None
    return number if math.isfinite(number) else None
