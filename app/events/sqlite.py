"""The newest SQLite that is installed."""

from __future__ import annotations

import sqlite3
from contextlib import suppress
from types import ModuleType

SAFE_WAL = (3, 51, 3)
"""The first version whose write-ahead log survives several writers."""


def newest_sqlite() -> ModuleType:
    """The DB-API module with the newest SQLite."""
    with suppress(ImportError):
        from pysqlite3 import dbapi2

        if dbapi2.sqlite_version_info > sqlite3.sqlite_version_info:
            return dbapi2  # type: ignore[no-any-return]
    return sqlite3


SQLITE = newest_sqlite()

SQLITE_NOW = "((julianday('now') - 2440587.5) * 86400.0)"
"""An expression for the time in Unix seconds."""
