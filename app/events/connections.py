"""How connections to PostgreSQL and SQLite are opened. Each has limits: nobody waits forever for one that is dead.

SQLite uses a write-ahead log only from 3.51.3 on: older versions can corrupt it when several connections write. With
that log a commit waits for the disk once, without it four or five times; so the SQLite of the wheel `pysqlite3` is
preferred to that of Python, which is seldom so new.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator
from contextlib import suppress
from time import monotonic, sleep
from types import ModuleType
from typing import Any

import psycopg
from sqlalchemy import Engine, create_engine, event
from sqlalchemy.engine import URL, Connection

SAFE_WAL = (3, 51, 3)
LOOK_SECONDS = 0.02


def newest_sqlite() -> ModuleType:
    """The library that is used: a DB-API module."""
    with suppress(ImportError):
        from pysqlite3 import dbapi2

        if dbapi2.sqlite_version_info > sqlite3.sqlite_version_info:
            return dbapi2  # type: ignore[no-any-return]
    return sqlite3


SQLITE = newest_sqlite()


class LimitedConnection(psycopg.Connection[Any]):
    """Gives up a server that says nothing for `silence` seconds, also where the network still acknowledges all."""

    silence = 60.0

    def wait(self, gen: Generator[Any, Any, Any], *args: Any, **named: Any) -> Any:
        return super().wait(self._limited(gen), *args, **named)

    def _limited(self, gen: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """`gen`, which is sent 0 each time that nothing came for a while."""
        heard_at = monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = monotonic()
                elif monotonic() - heard_at > self.silence:
                    raise self._given_up()
                wanted = gen.send(ready)
        except StopIteration as done:
            return done.value

    def _given_up(self) -> psycopg.OperationalError:
        self.close()
        return psycopg.OperationalError(f"the server did not answer within {self.silence:g} s")


def postgresql(url: URL, patience: float) -> Engine:
    """An engine whose transactions raise when the server, or a lock, makes them wait `patience` seconds."""
    engine = create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        pool_timeout=patience,
        connect_args=_network(patience),
    )

    class Limited(LimitedConnection):
        silence = 1.5 * patience

    @event.listens_for(engine, "do_connect")
    def connect(_dialect: Any, _record: Any, args: Any, options: Any) -> Any:
        return Limited.connect(*args, **options)

    @event.listens_for(engine, "connect")
    def configure(connection: psycopg.Connection[Any], _: object) -> None:
        connection.autocommit = True
        connection.execute("; ".join(f"SET {name} = {round(1000 * value)}" for name, value in _limits(patience)))
        connection.autocommit = False

    return engine


def _network(patience: float) -> dict[str, int]:
    """What libpq is told: a peer that a firewall forgot is noticed within `patience` seconds."""
    third = max(1, round(patience / 3))
    alive = {
        "keepalives": 1,
        "keepalives_idle": third,
        "keepalives_interval": max(1, third // 2),
        "keepalives_count": 3,
    }
    return {
        **alive,
        "tcp_user_timeout": round(1000 * patience),
        "connect_timeout": max(2, min(10, round(patience / 2))),
    }


def _limits(patience: float) -> list[tuple[str, float]]:
    """Of the server, in seconds. The last throws out a writer that is frozen in a transaction, with its locks."""
    return [
        ("statement_timeout", 3 * patience),
        ("lock_timeout", patience),
        ("idle_in_transaction_session_timeout", patience),
    ]


def sqlite(url: URL, patience: float) -> Engine:
    """An engine whose transactions raise when another one holds the lock for `patience` seconds."""
    options: dict[str, Any] = {"pool_timeout": patience} if url.database else {}
    engine = create_engine(url, module=SQLITE, **options)
    journal = "WAL" if SQLITE.sqlite_version_info >= SAFE_WAL else "DELETE"
    settings = {"synchronous": "FULL", "foreign_keys": "ON"}

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        connection.execute(f"PRAGMA busy_timeout={round(1000 * patience)}")  # first: the next one takes a lock
        _set_journal(connection, journal, until=monotonic() + patience)
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name}={value}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN " + connection.get_execution_options().get("sqlite_begin", "DEFERRED"))

    return engine


def _set_journal(connection: sqlite3.Connection, journal: str, until: float) -> None:
    """Try again until then, since SQLite itself does not wait for one who writes to a file that is to change."""
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={journal}")
            return
        except SQLITE.OperationalError as error:
            if error.sqlite_errorcode != SQLITE.SQLITE_BUSY or monotonic() > until:
                raise
        sleep(LOOK_SECONDS)
