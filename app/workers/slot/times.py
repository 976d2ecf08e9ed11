"""Runs on: any thread.

Moments and durations, which are different things; and a slot's time, divided among what it trains at once.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import NewType

Instant = NewType("Instant", float)
"""A moment: seconds by a clock that does not go back. Only two moments of one clock can be compared."""

Seconds = NewType("Seconds", float)
"""How long something took."""

Clock = Callable[[], Instant]


def monotonic() -> Instant:
    return Instant(time.monotonic())


class SharedTime:
    """What each lane of a group took of the slot's time: all of them together took what passed.

    What nobody is charged for is divided among all who were ever there.
    """

    def __init__(self, clock: Clock, members: Collection[int]) -> None:
        self._clock, self._at = clock, clock()
        self._seconds = dict.fromkeys(members, 0.0)
        self._payers: Collection[int] = members

    def of(self, member: int) -> Seconds:
        """The seconds that one has taken so far; they pass the slower the more lanes there are."""
        self._settle()
        return Seconds(self._seconds[member])

    @contextmanager
    def charged_to(self, payers: Collection[int]) -> Iterator[None]:
        """What passes meanwhile is for these."""
        self._settle()
        before, self._payers = self._payers, payers
        try:
            yield
        finally:
            self._settle()
            self._payers = before

    def leave(self, member: int) -> None:
        """What passes from here on is for the others."""
        self._settle()
        self._payers = [payer for payer in self._payers if payer != member]

    def _settle(self) -> None:
        before, self._at = self._at, self._clock()
        for payer in self._payers:
            self._seconds[payer] += (self._at - before) / len(self._payers)
