"""A worker that is asked to end tells the process that trains, which is its fork, without any server between them."""

from __future__ import annotations

import mmap


class Retiring:
    """One byte that this process shares with the forks it makes from here on."""

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, 1)

    def ask(self) -> None:
        """The worker is to end. Safe in a signal handler."""
        self._shared[0] = 1

    @property
    def is_asked(self) -> bool:
        return self._shared[0] == 1
