"""The steps that a script's processes may take on their own, in memory shared with the trainer's process.

Asking before each step would cost more than many steps do, since the processes would wait for each other and for the
answer. So they are granted many at once. A grant that is too long is cut: all processes stop at the same step, which
none has passed and each can reach, even if one waits inside a step for data of another.
"""

from __future__ import annotations

import mmap
import time

from stagetree.system.files import anonymous_file

HELD = -1
"""A value of the limit: it is about to be lowered, and no process may begin a step until it is."""

SETTLE_SECONDS = 0.001
"""After this long, a process that did not see `HELD` has published the step that it began."""

LOOK_SECONDS = 0.0005

LOST_SECONDS = 10.0
"""The trainer's process lowers the limit after `SETTLE_SECONDS`. If it has not after this long, it is gone."""

WORD = 8


class GrantLost(Exception):
    """The trainer's process is gone and does not set a limit."""


class Grant:
    """The limit, and the number of steps that each process has begun: 64-bit numbers with one writer each."""

    def __init__(self, fd: int, world: int) -> None:
        self._words = memoryview(mmap.mmap(fd, (1 + world) * WORD)).cast("q")

    @classmethod
    def create(cls, world: int) -> tuple[Grant, int]:
        """A new grant, and the descriptor of its memory. Raises OSError."""
        fd = anonymous_file((1 + world) * WORD)
        return cls(fd, world), fd

    # -------------------------------------------------------------------------------------------- the trainer's process

    def give(self, steps: int) -> None:
        """Grant a number of steps to idle processes."""
        self._words[:] = memoryview(bytes(len(self._words) * WORD)).cast("q")
        self._words[0] = steps

    def finished_steps(self) -> int:
        """The number of steps that all processes have finished, at least."""
        return max(0, min(self._words[1:]) - 1)

    def cut_short(self) -> None:
        """End the grant with the last step that a process has begun."""
        steps, self._words[0] = self._words[0], HELD
        time.sleep(SETTLE_SECONDS)
        self._words[0] = min(steps, max(self._words[1:]))

    # ------------------------------------------------------------------------------------------------ the ranks

    def may_begin(self, rank: int, step: int) -> bool:
        """Announce a step and return whether it may begin. step: counted from the grant.

        The step is published before the limit is read, so that the limit is never lowered below a step that was begun.
        """
        self._words[1 + rank] = step + 1
        held_at = 0.0
        while (limit := self._words[0]) == HELD:
            held_at = held_at or time.monotonic()
            if time.monotonic() - held_at > LOST_SECONDS:
                raise GrantLost
            time.sleep(LOOK_SECONDS)
        return step < limit
