"""The checkpoint where a chain begins, fetched with patience."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

from app.object_store import StoreUnavailable
from app.scheduling.assignment import ResumePoint
from app.workers.slot.checkpoint_store import CheckpointStore, CheckpointUnreadable
from app.workers.slot.notes import Notes
from app.workers.slot.patience import Patience
from app.workers.state import State

logger = logging.getLogger(__name__)

NOTED_AFTER = 4
"""After so many tries in vain, the slot's row says that it waits."""


class Reader(Protocol):
    """See `CheckpointReader`."""

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State: ...


class CheckpointReader:
    """strike_after_seconds: a checkpoint that is missing or damaged is looked at again for so long."""

    def __init__(
        self,
        store: CheckpointStore,
        patience: Patience,
        notes: Notes,
        clock: Callable[[], float],
        strike_after_seconds: float,
    ) -> None:
        self._store, self._patience, self._notes, self._clock = store, patience, notes, clock
        self._strike_after_seconds = strike_after_seconds

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State:
        """The state, which is the caller's to close. check: raises when it is not wanted any more.

        Raises `CheckpointUnreadable` after repeated looks, `Closing`, and what `check` does.
        """
        unreadable_since: float | None = None
        try:
            for number in self._patience.tries():
                check()
                try:
                    return self._store.read(resume.key, resume.sha256)
                except CheckpointUnreadable as problem:
                    now = self._clock()
                    unreadable_since = now if unreadable_since is None else unreadable_since
                    if now - unreadable_since >= self._strike_after_seconds:
                        raise
                    self._say(number, problem)
                except (StoreUnavailable, OSError) as problem:
                    unreadable_since = None  # whoever says now that it is not there has just been ill
                    self._say(number, problem)
            raise AssertionError("tries never end")
        finally:
            self._notes.remove("reader")

    def _say(self, number: int, problem: Exception) -> None:
        if number == 1:
            logger.warning("waiting for a checkpoint: %s", problem)
        if number == NOTED_AFTER:
            self._notes.put("reader", f"waits for the store: {problem}")


class ReadOnce:
    """For chains that begin together: where several of them begin is read once, and held until `close`."""

    def __init__(self, reader: Reader) -> None:
        self._reader = reader
        self._held: dict[str, State] = {}

    def read(self, resume: ResumePoint, check: Callable[[], None]) -> State:
        if resume.key not in self._held:
            self._held[resume.key] = self._reader.read(resume, check)
        return self._held[resume.key].copy()

    def close(self) -> None:
        while self._held:
            self._held.popitem()[1].close()
