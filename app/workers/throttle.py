"""Something that is done not more often than every so many seconds."""

from __future__ import annotations

import time
from collections.abc import Callable


class Throttle:
    """do: may raise; then it is due again at once. clock: any that does not go back."""

    def __init__(self, seconds: float, do: Callable[[], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._seconds, self._do, self._clock = seconds, do, clock
        self._done_at: float | None = None

    def do_if_due(self) -> None:
        """Do it, the first time too."""
        if self._done_at is None or self._clock() - self._done_at >= self._seconds:
            self._do()
            self._done_at = self._clock()
