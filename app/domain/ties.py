"""The order of equal results at a rung: by a seeded draw, or by number.

In a grid, neighbours have adjacent numbers. So where most results are equal, the order by number promotes one corner of
the grid. A draw gives equal results equal chances. It is a hash, so replay repeats it.
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256

_TRIAL_BITS = 32


@dataclass(frozen=True, slots=True)
class TieOrder:
    """The `ties` of a study. Equal results are sorted by the tie break of their trial, the least first."""

    seed: int | None = None
    """Of the draw; None to order by number."""

    @classmethod
    def from_field(cls, ties: str | None, seed: int) -> TieOrder:
        """The order that a tuner's field `ties` names. Studies of 0.1.0 lack the field and order by number."""
        return cls(seed if ties == "seed" else None)

    @property
    def is_drawn(self) -> bool:
        return self.seed is not None

    def tie_break(self, rung: int, trial: int) -> int:
        """A number that holds the draw and then the trial, so that each trial has its own."""
        return self._draw(rung, trial) << _TRIAL_BITS | trial

    def _draw(self, rung: int, trial: int) -> int:
        if self.seed is None:
            return 0
        return int.from_bytes(sha256(f"{self.seed}/ties/{rung}/{trial}".encode()).digest()[:8])


BY_NUMBER = TieOrder()


def trial_of(tie_break: int) -> int:
    """The trial that has this tie break."""
    return tie_break & ((1 << _TRIAL_BITS) - 1)
