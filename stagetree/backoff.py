"""How long to wait before something is tried again: twice as long each time, up to a limit, spread by chance.

It is not tenacity: that wants the function to call again, and our attempts sit in the middle of one, such as a
transaction that is entered again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import SystemRandom

_chance = SystemRandom()  # the global generator is for whoever trains in this process


@dataclass(frozen=True, slots=True)
class Backoff:
    """first, longest: the pause after the first failure, and the longest one, in seconds.

    spread: the share of a pause that chance may take off, so that those who failed together do not return together.
    """

    first: float
    longest: float
    spread: float = 0.5

    def seconds(self, failures: int) -> float:
        """The pause after so many failures in a row, 1 or more."""
        pause = min(self.first * 2.0 ** min(failures - 1, 64), self.longest)
        return pause * (1.0 - self.spread * _chance.random())

    def attempts(self, most: int | None = None, wait: Callable[[float], object] = time.sleep) -> Iterator[int]:
        """1, 2, 3, ... up to `most`, with a pause before each but the first.

        wait: takes the pause in seconds. What it raises ends the attempts, as a slot does that is to close.
        """
        for number in count(1) if most is None else range(1, most + 1):
            if number > 1:
                wait(self.seconds(number - 1))
            yield number
