"""Exponential backoff with jitter.

This is not tenacity, which must call a function again: our attempts are parts of a function, such as a transaction that
is entered again.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from random import SystemRandom

_chance = SystemRandom()  # the global generator belongs to the training code in this process


@dataclass(frozen=True, slots=True)
class Backoff:
    first: float
    """The pause after the first failure, in seconds."""
    longest: float
    """The longest pause, in seconds."""
    spread: float = 0.5
    """The share of a pause that is random, so that clients which failed together do not return together."""

    def seconds(self, failures: int) -> float:
        """The pause after `failures` failures in a row, 1 or more."""
        pause = min(self.first * 2.0 ** min(failures - 1, 64), self.longest)
        return pause * (1.0 - self.spread * _chance.random())

    def attempts(self, most: int | None = None, wait: Callable[[float], object] = time.sleep) -> Iterator[int]:
        """1, 2, 3, ... up to `most`, with a pause before each but the first.

        wait: sleeps for a number of seconds. An exception from it ends the attempts, for example when a slot closes.
        """
        for number in count(1) if most is None else range(1, most + 1):
            if number > 1:
                wait(self.seconds(number - 1))
            yield number
