"""The mean of several states of a trainer, which arrive one after the other.

`Trainer.average` iterates over them in its own loop. The loop runs in a greenlet and waits for each next state, so that
only one state is in memory beside the sums.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from greenlet import getcurrent, greenlet

from stagetree.runtime.failures import user_code
from stagetree.trainer import Trainer

Saved = dict[str, Any]
Weighted = tuple[Saved, float]


class Averaging:
    """Computes means, one after the other. All but the trainer's part is taken from the first state."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._fiber: _Average | None = None
        self._first, self._left = Saved(), 0

    def add(self, saved: Saved, weight: float, left: int) -> Saved:
        """Add a saved state. With the last one, returns the mean in the form of a saved state.

        left: the number of states still to come. Raises `TrainerFailed`.
        """
        if self._fiber is None or self._left != left + 1:  # otherwise an earlier mean was broken off
            self._fiber, self._first = _Average(self._trainer), saved
        self._left = left
        with user_code():
            self._fiber.take((saved["trainer"], weight))
            if left:
                return saved
            fiber, self._fiber, first, self._first = self._fiber, None, self._first, Saved()
            return {**first, "trainer": fiber.take(None)}


class _Average(greenlet):
    """A trainer's `average`, paused between states."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(self._run)
        self._trainer = trainer

    def take(self, last: Weighted | None) -> Any:
        """Continue with one more state, or with None to the end, which returns the mean. Raises the errors of
        `average`."""
        if self.dead:
            raise RuntimeError(f"average of trainer {self._trainer.name!r} must go through all states that it is given")
        self.parent = getcurrent()
        return self.switch(last)

    def _run(self, first: Weighted | None) -> Saved:
        return self._trainer.average(self._states(first))

    def _states(self, state: Weighted | None) -> Iterator[Weighted]:
        while state is not None:
            yield state
            assert self.parent is not None
            state = self.parent.switch()
