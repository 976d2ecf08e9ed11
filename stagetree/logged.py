"""What a trainer logs between evaluations, until it is asked for: sums where the values are, on a GPU too."""

from __future__ import annotations

import math
from typing import Any


class Logged:
    """Values by name, each name's added up. Nothing waits for a device before `means`."""

    def __init__(self) -> None:
        self._sums: dict[str, Any] = {}
        self._counts: dict[str, int] = {}

    def add(self, name: str, value: Any) -> None:
        """One more value: a number, or a tensor that holds one. Raises TypeError, ValueError."""
        if hasattr(value, "detach"):
            if value.numel() != 1:
                raise ValueError(f"log takes one number at a time, got a tensor of {value.numel()} for {name}")
            value = value.detach().float().reshape(()).clone()
        else:
            value = float(value)
        self._sums[name] = self._sums[name] + value if name in self._sums else value
        self._counts[name] = self._counts.get(name, 0) + 1

    def totals(self) -> dict[str, tuple[Any, int]]:
        """Of each name, the sum of its values and how many they are."""
        return {name: (total, self._counts[name]) for name, total in self._sums.items()}

    def add_total(self, name: str, total: Any, count: int) -> None:
        """So many more values, by their sum."""
        self._sums[name] = self._sums[name] + total if name in self._sums else total
        self._counts[name] = self._counts.get(name, 0) + count

    def means(self) -> dict[str, float | None]:
        """The mean of each name since the last time; None for one that is no finite number."""
        means = {name: float(total) / self._counts[name] for name, total in self._sums.items()}
        self.clear()
        return {name: mean if math.isfinite(mean) else None for name, mean in means.items()}

    def clear(self) -> None:
        """Forget what was not asked for."""
        self._sums.clear()
        self._counts.clear()
