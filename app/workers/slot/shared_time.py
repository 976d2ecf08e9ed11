"""The time of a slot, divided among the lanes of a group.

Runs on: the thread that trains.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from contextlib import contextmanager

from app.workers.slot.retry import Clock, Seconds


class SharedTime:
    """Divides a slot's time among the lanes of a group, so that their seconds add up to the elapsed time.

    Time charged to no lane is divided among all members.
    """

    def __init__(self, clock: Clock, members: Collection[int]) -> None:
        self._clock, self._at = clock, clock()
        self._seconds = dict.fromkeys(members, 0.0)
        self._payers: Collection[int] = members

    def seconds_of(self, member: int) -> Seconds:
        """The seconds charged to a lane."""
        self._settle()
        return Seconds(self._seconds[member])

    @contextmanager
    def charge(self, payers: Collection[int]) -> Iterator[None]:
        """Charge the time in the block to these lanes."""
        self._settle()
        before, self._payers = self._payers, payers
        try:
            yield
        finally:
            self._settle()
            self._payers = before

    def leave(self, member: int) -> None:
        """Charge later time to the other lanes only."""
        self._settle()
        self._payers = [payer for payer in self._payers if payer != member]

    def _settle(self) -> None:
        before, self._at = self._at, self._clock()
        for payer in self._payers:
            self._seconds[payer] += (self._at - before) / len(self._payers)
