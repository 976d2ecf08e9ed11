"""The database of a stack's folder, as the stack itself sees it: no other stack writes there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from app.embedded.machine import StackFailed

if TYPE_CHECKING:  # SQLAlchemy is slow to import: other processes are started first
    from app.events import SqlRecords


@dataclass(frozen=True)
class FolderDatabase:
    """At a URL. Each call opens it, and closes it again."""

    url: str

    def create(self, token_file: Path | None) -> str | None:
        """Bring the schema up to date and forget all slots: the folder is ours, so whoever is on record there is dead.

        token_file: where the token of the folder's user is kept, which is returned; None where nobody needs one.
        Raises `StackFailed`.
        """
        from app.events import DatabaseUnavailable
        from app.events.database import NewerSchema
        from app.service.access import kept_in

        try:
            with self._records() as records:
                records.database.create()
                with records.write() as rows:
                    rows.slots.forget_all()
                return None if token_file is None else kept_in(token_file, records, time.time())
        except (DatabaseUnavailable, NewerSchema) as problem:
            raise StackFailed(str(problem)) from None

    def has_work(self, *, if_away: bool) -> bool:
        """Whether a slot still trains or saves something: a chain is live until its last state is recorded.

        if_away: the answer where the database gives none.
        """
        from app.events import DatabaseUnavailable

        try:
            with self._records() as records, records.read() as rows:
                return bool(rows.chains.live())
        except DatabaseUnavailable:
            return if_away

    @contextmanager
    def _records(self) -> Iterator[SqlRecords]:
        from app.events import Database, SqlRecords

        records = SqlRecords(Database(self.url))
        try:
            yield records
        finally:
            records.close()
