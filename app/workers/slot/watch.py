"""Ends what does not end by itself once it should."""

from __future__ import annotations

from collections.abc import Callable

STOP_SECONDS = 5.0
"""A worker that is to end waits so long for a call of the trainer; no longer than a third of its grace."""

UNWANTED_SECONDS = 30.0
"""And so long where only nobody wants the result any more."""


class StopWatch:
    """kill: ends the trainer's process. give_up: makes everybody stop waiting, `grace` seconds after all should end."""

    def __init__(self, kill: Callable[[], None], give_up: Callable[[], None], grace: float) -> None:
        self._kill, self._give_up, self._grace = kill, give_up, grace
        self._stop_seconds = min(STOP_SECONDS, grace / 3)
        self._retiring_since: float | None = None
        self._unwanted_since: float | None = None

    def look(self, now: float, *, is_retiring: bool, is_unwanted: bool, busy_since: float | None) -> None:
        """Called several times a second. busy_since: when the call of the trainer that is under way began."""
        self._retiring_since = _since(self._retiring_since, now, is_retiring)
        self._unwanted_since = _since(self._unwanted_since, now, is_unwanted)
        if busy_since is not None:
            limits = ((self._retiring_since, self._stop_seconds), (self._unwanted_since, UNWANTED_SECONDS))
            if any(since is not None and now - max(since, busy_since) > seconds for since, seconds in limits):
                self._kill()
        if self._retiring_since is not None and now - self._retiring_since > self._grace:
            self._give_up()


def _since(before: float | None, now: float, holds: bool) -> float | None:
    """Since when something holds; None if it does not."""
    if not holds:
        return None
    return now if before is None else before
