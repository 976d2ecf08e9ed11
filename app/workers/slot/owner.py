"""Which slot a process is."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Protocol

from app.events.rows import SlotLost
from app.events.rows.ports import RowsPort


class Owner(Protocol):
    """A process's hold on a slot, as `app.workers.ownership.Ownership` is. `owner` proves it."""

    slot: str
    owner: str

    def take(self, rows: RowsPort, device: str) -> bool:
        """Become the slot's worker; False: another may have it, look again in a moment. Raises `SlotTaken`."""


def describe(rows: RowsPort, me: Owner, versions: Mapping[str, str], note: str | None) -> None:
    """Say which version of each trainer the worker has, and what it waits for; if the slot is still its own."""
    with contextlib.suppress(SlotLost):
        rows.slots.describe(me.slot, me.owner, trainers=versions, note=note)


def quarantine(rows: RowsPort, me: Owner, seconds: float | None, reason: str | None) -> None:
    """Have the slot given nothing for so long; None: it is well again. Nothing if it is not its own any more."""
    with contextlib.suppress(SlotLost):
        rows.slots.quarantine(me.slot, me.owner, seconds=seconds, reason=reason)
