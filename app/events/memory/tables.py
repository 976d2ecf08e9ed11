"""Rows in memory. They are values: a change puts another one in the place of the old, which is kept for taking back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, MutableMapping
from contextlib import contextmanager
from threading import RLock
from typing import Generic, TypeVar

from app.events.rows.values import ChainRecord, Installation, SlotRecord, StudyRecord, TokenRecord

Row = TypeVar("Row")
Undo = list[Callable[[], object]]


class Table(Generic[Row]):
    """Rows by key. Every change says how it is taken back."""

    def __init__(self, undo: Undo) -> None:
        self._rows: MutableMapping[str, Row] = {}
        self._undo = undo

    def get(self, key: str) -> Row | None:
        return self._rows.get(key)

    def values(self) -> Iterator[Row]:
        return iter(self._rows.values())

    def put(self, key: str, row: Row) -> None:
        before = self._rows.get(key)
        self._undo.append((lambda: self._rows.pop(key)) if before is None else (lambda: self._set(key, before)))
        self._rows[key] = row

    def remove(self, key: str) -> None:
        row = self._rows.pop(key)
        self._undo.append(lambda: self._set(key, row))

    def _set(self, key: str, row: Row) -> None:
        self._rows[key] = row


class Tables:
    """The tables, and the one transaction at a time that sees them. `clock`: Unix seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.lock = RLock()
        self._undo: Undo = []
        self.studies: Table[StudyRecord] = Table(self._undo)
        self.installation = Installation("memory", None)
        self.tokens: Table[TokenRecord] = Table(self._undo)
        self.slots: Table[SlotRecord] = Table(self._undo)
        self.live: Table[ChainRecord] = Table(self._undo)  # the chains that nobody has ended
        self.over: Table[ChainRecord] = Table(self._undo)
        self.schedulers: Table[float] = Table(self._undo)  # when each ticked last
        self.versions: dict[str, int] = {}  # of each stream; only the log moves them

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Nobody else sees or changes anything within the block; what it changed is taken back when it raises."""
        with self.lock:
            begun = len(self._undo)
            try:
                yield
            except BaseException:
                while len(self._undo) > begun:
                    self._undo.pop()()
                raise
            if begun == 0:
                self._undo.clear()
