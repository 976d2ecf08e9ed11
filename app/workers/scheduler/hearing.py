"""Runs on: the tick's thread.

When each chain was heard of last, by a clock that does not jump.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf

from app.events.rows import ChainRecord
from app.workers.scheduler.overview import Overview

GIVEN_UP = 0.0
"""The lease of a chain whose worker said that it is gone, or whose slot another worker has taken."""


@dataclass(frozen=True, slots=True)
class _Heard:
    """at: by the clock that does not jump. epoch: when that clock was at 0, in Unix seconds as the chain began."""

    lease_until: float
    at: float
    epoch: float


class Hearing:
    """A lease tells it by the database's clock; which look found the lease renewed, by ours. The nearer one counts."""

    def __init__(self, lease_seconds: float) -> None:
        self._lease_seconds = lease_seconds
        self._heard: dict[str, _Heard] = {}
        self._looked_at = -inf

    def look(self, seen: Overview, now: float, wall: float) -> None:
        """now: by the clock that does not jump. wall: the same in Unix seconds."""
        before, self._heard = self._heard, {}
        for row in seen.live:
            known = before.get(row.chain)
            if known is None or known.lease_until != row.lease_until:
                ago = min(max(0.0, self._ago(row, seen.now)), now - self._looked_at)
                known = _Heard(row.lease_until, now - ago, wall - now if known is None else known.epoch)
            self._heard[row.chain] = known
        self._looked_at = now

    def last(self, row: ChainRecord) -> float:
        """In Unix seconds, by the clock of facts as it was when the chain began; it was live at the last look."""
        heard = self._heard[row.chain]
        return heard.epoch + heard.at

    def _ago(self, row: ChainRecord, now: float) -> float:
        """By the database's clock."""
        return 0.0 if row.lease_until == GIVEN_UP else now - (row.lease_until - self._lease_seconds)
