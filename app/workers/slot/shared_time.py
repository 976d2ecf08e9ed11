"""A slot's time, divided among those that it trains together: what each of them took adds up to what passed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager


class SharedTime:
    """clock: any that does not go back. What nobody is charged for is divided among all who were ever there."""

    def __init__(self, clock: Callable[[], float], members: Collection[int]) -> None:
        self._clock, self._at = clock, clock()
        self._seconds = dict.fromkeys(members, 0.0)
        self._payers: Collection[int] = members

    def of(self, member: int) -> float:
        """The seconds that one has taken by now: a clock of its own, that goes the slower the more there are."""
        self._settle()
        return self._seconds[member]

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
