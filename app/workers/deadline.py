"""How long a trainer may be silent before it counts as hung."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Deadline:
    """Learnt from how long the same kind of call took before: `factor` times the longest, and never less than `floor`.

    floor, longest: seconds.
    """

    floor: float
    factor: float = 10.0
    longest: float = 0.0

    @property
    def seconds(self) -> float:
        return max(self.floor, self.factor * self.longest)

    def observe(self, seconds: float) -> None:
        """Something was heard after so long."""
        self.longest = max(self.longest, seconds)
