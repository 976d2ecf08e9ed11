"""The mean of several states of a trainer, which come one after the other.

`Trainer.average` goes through them in a loop of its own. It runs in turn with the runner, as a script does that owns
its loop, and waits where it asks for the next one: so only one state is in memory, beside the sums.
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
    """One mean after the other. All but the trainer's part, such as the generators, comes from the first state."""

    def __init__(self, trainer: Trainer) -> None:
        self._trainer = trainer
        self._fiber: _Average | None = None
        self._first, self._left = Saved(), 0

    def add(self, saved: Saved, weight: float, left: int) -> Saved:
        """One more state, as it was saved; behind the last one, what would have been saved of the mean.

        left: how many are still to come. Raises `TrainerFailed`.
        """
        if self._fiber is None or self._left != left + 1:  # else another mean has come to no end
            self._fiber, self._first = _Average(self._trainer), saved
        self._left = left
        with user_code():
            self._fiber.take((saved["trainer"], weight))
            if left:
                return saved
            fiber, self._fiber, first, self._first = self._fiber, None, self._first, Saved()
            return {**first, "trainer": fiber.take(None)}


class _Average(greenlet):
    """A trainer's `average`, on its way from one state to the next."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__(self._run)
        self._trainer = trainer

    def take(self, last: Weighted | None) -> Any:
        """Go on with one more state; with None, to the end: then it answers. Raises what `average` raises."""
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
