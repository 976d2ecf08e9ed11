"""The estimated time left of a study, as it is shown while it is followed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

SMOOTHING_SECONDS = 30.0
"""An estimate loses two thirds of its weight in this time."""


class TimeLeft:
    """Smooths the estimated time left, which halves and doubles as slots come to a study and leave it."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._at = clock, 0.0
        self._end: float | None = None

    def next(self, seconds: float | None) -> float | None:
        """The smoothed estimate after another one; while there is none, the last one counts down."""
        now = self._clock()
        if seconds is not None:
            weight = 1.0 if self._end is None else 1 - math.exp((self._at - now) / SMOOTHING_SECONDS)
            before = now + seconds if self._end is None else self._end
            self._end, self._at = before + weight * (now + seconds - before), now
        return None if self._end is None else round(max(0.0, self._end - now), 1)
