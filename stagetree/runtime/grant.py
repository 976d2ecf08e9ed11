"""How far the processes of a script may go by themselves: numbers in memory that they share with the trainer's process.

To be told of each step costs more than many a step: the processes wait for each other, and for the word. So they are
granted many at once, and run to the end of the grant. One that was too long is cut: all stop at the same step, which
none of them has passed, and which each can reach, also where one waits inside of a step for what another one sends.
"""

from __future__ import annotations

import mmap
import time

from stagetree.runtime.wire import anonymous_file

HELD = -1
"""Instead of a limit: it is about to be lowered, and no process begins a step before it knows to what."""

SETTLE_SECONDS = 0.001
"""After so long, a process that did not see that steps are held has said which one it began."""

LOOK_SECONDS = 0.0005

LOST_SECONDS = 10.0
"""The trainer's process lowers the limit after `SETTLE_SECONDS`. If not, it is gone."""

WORD = 8


class GrantLost(Exception):
    """The process that grants is gone, and does not say where to stop."""


class Grant:
    """The limit, and how many steps each of the processes has begun: 64-bit numbers, each with one writer."""

    def __init__(self, fd: int, world: int) -> None:
        self._words = memoryview(mmap.mmap(fd, (1 + world) * WORD)).cast("q")

    @classmethod
    def of(cls, world: int) -> tuple[Grant, int]:
        """A new one, and the descriptor of its memory. Raises OSError."""
        fd = anonymous_file((1 + world) * WORD)
        return cls(fd, world), fd

    # ------------------------------------------------------------------------------------------------ who grants

    def give(self, steps: int) -> None:
        """So many steps, to processes that do nothing yet."""
        self._words[:] = memoryview(bytes(len(self._words) * WORD)).cast("q")
        self._words[0] = steps

    def taken(self) -> int:
        """How many steps all of them have ended, at least."""
        return max(0, min(self._words[1:]) - 1)

    def cut(self) -> None:
        """End it as soon as can be: with the last step that one of them has begun."""
        steps, self._words[0] = self._words[0], HELD
        time.sleep(SETTLE_SECONDS)
        self._words[0] = min(steps, max(self._words[1:]))

    # ------------------------------------------------------------------------------------------------ who trains

    def begins(self, rank: int, step: int) -> bool:
        """Say that this one is about to begin; whether it may. step: their number since the grant.

        The step is there before the limit is read: so the limit is never lowered below a step that was begun.
        """
        self._words[1 + rank] = step + 1
        held_at = 0.0
        while (limit := self._words[0]) == HELD:
            held_at = held_at or time.monotonic()
            if time.monotonic() - held_at > LOST_SECONDS:
                raise GrantLost
            time.sleep(LOOK_SECONDS)
        return step < limit
