"""A learning curve as a trial has it so far: evaluations at steps, and where its sequences bend."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from operator import ge

Bend = tuple[int, str]
"""A step at which a sequence changes its course, and what it does there. The text is compared, never read."""


Piece = tuple[int, int, int]
"""A part of a curve: the step at which it begins, the number of its first evaluation, and of the first one after it."""


@dataclass(frozen=True, slots=True)
class Curve:
    """Values of the metric at the steps of a trial that were evaluated, however uneven. There may be none yet.

    steps: 0 or more, ascending. bends: ascending, also those still to come. Two curves are expected to bend alike where
    they have the same bends: `(100, "lr x 0.1")`.

    Raises ValueError, with a sentence, for what is no curve. A trial with a value that is not a number has failed: it
    has no curve.
    """

    steps: tuple[int, ...]
    values: tuple[float, ...]
    bends: tuple[Bend, ...] = ()

    def __post_init__(self) -> None:
        if len(self.steps) != len(self.values):
            raise ValueError(f"a curve has a value for each step: {len(self.steps)} steps, {len(self.values)} values")
        if min(self.steps, default=0) < 0 or any(map(ge, self.steps, self.steps[1:])):
            raise ValueError("the steps of a curve are 0 or more, and each is greater than the one before")
        if not all(map(isfinite, self.values)):
            step, value = next(one for one in zip(self.steps, self.values, strict=True) if not isfinite(one[1]))
            raise ValueError(f"the values of a curve are finite numbers: at step {step} it is {value}")
        if any(a[0] > b[0] for a, b in pairwise(self.bends)):
            raise ValueError("the bends of a curve are in the order of their steps")

    @property
    def last_step(self) -> int:
        """The last step that was evaluated; -1 if none was."""
        return self.steps[-1] if self.steps else -1

    def bends_within(self, begin: float, end: float) -> tuple[Bend, ...]:
        """The bends that training from one step to another goes through."""
        return tuple(bend for bend in self.bends if begin <= bend[0] < end)

    def pieces(self) -> list[Piece]:
        """Its parts between the bends that it has gone through: at least one, the last one is where it is now.

        A part begins with the last value before its bend.
        """
        bends = sorted({step for step, _ in self.bends if 0 < step < self.last_step})
        ends = [bisect_right(self.steps, bend) for bend in bends]
        firsts = [max(end - 1, 0) for end in ends]
        return list(zip([0, *bends], [0, *firsts], [*ends, len(self.steps)], strict=True))


def values_of(curves: Iterable[Curve]) -> list[float]:
    """All values of some curves."""
    return [value for curve in curves for value in curve.values]
