"""Runs on: the thread that trains.

How much memory a process has, and whether one that trains keeps more and more of it.
"""

from __future__ import annotations

import os
from collections.abc import Hashable
from dataclasses import dataclass, field
from pathlib import Path

FIRST_STAGES = 2
"""By the end of these, what a trainer loads when it is first used is there."""

LEAK_FRACTION = 0.25
"""Growth by less than that share is no leak, however large the process is."""


def resident_bytes(pid: int) -> int:
    """What the process has in memory for itself, without what it shares, such as the memory of checkpoints.

    0 where the system does not say, or when it has ended.
    """
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


@dataclass(slots=True)
class MemoryWatch:
    """Told after each stage which model it trained, and what its process has in memory.

    Only stages of one model are compared: another one may be larger. allowed_bytes: growth by so much is no leak.
    growth: bytes since the first stages of the model that was trained last. has_grown: whether that is a leak.
    """

    allowed_bytes: int
    growth: int = 0
    has_grown: bool = False
    _first: dict[Hashable, list[int]] = field(default_factory=dict)

    def begin(self) -> None:
        """The process is another one."""
        self._first.clear()
        self.growth, self.has_grown = 0, False

    def note(self, model: Hashable, resident: int) -> None:
        """A stage is done."""
        first = self._first.setdefault(model, [])
        if len(first) < FIRST_STAGES:
            first.append(resident)
        self.growth = resident - max(first)
        self.has_grown = self.growth > max(self.allowed_bytes, LEAK_FRACTION * max(first))
