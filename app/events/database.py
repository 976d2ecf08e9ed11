"""One door to PostgreSQL or SQLite. A write transaction takes its lock at the start, a read one never blocks a reader.

SQLite uses a write-ahead log only from 3.51.3 on: older versions can corrupt it when several connections write.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, create_engine, event, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import DatabaseError, DBAPIError, OperationalError
from sqlalchemy.orm import Session

SAFE_WAL = (3, 51, 3)
RETRYABLE = {"40001", "40P01"}
"""SQLSTATE of a serialization failure and of a deadlock: nothing was done, try again."""

MIGRATION_LOCK = 0x57A6E73EE


class DatabaseUnavailable(Exception):
    """The database cannot be reached or cannot be written; the message says which one and why, in one sentence."""


class Database:
    """An engine and its two kinds of transaction. Safe to share between threads; opens nothing until it is used.

    `clock` replaces the database's own clock, which leases go by, in tests and simulations.
    """

    def __init__(self, url: str, *, clock: Callable[[], float] | None = None) -> None:
        self.url = _with_driver(url)
        self.clock = clock
        self.engine = _sqlite(self.url) if self.url.get_backend_name() == "sqlite" else _postgresql(self.url)
        self._writer = self.engine.execution_options(sqlite_begin="IMMEDIATE")

    def write(self) -> AbstractContextManager[Session]:
        """A transaction that commits at the end of the block and leaves nothing behind when the block raises.

        Raises `DatabaseUnavailable`. If it comes from the commit itself, the outcome is unknown.
        """
        return self._transaction(self._writer)

    def read(self) -> AbstractContextManager[Session]:
        """A transaction for reading. Raises `DatabaseUnavailable`."""
        return self._transaction(self.engine)

    def create(self) -> None:
        """Bring the schema up to date. May run in many processes at once. Raises `DatabaseUnavailable`."""
        from alembic import command  # slow to import, and needed once

        try:
            with self._writer.begin() as connection:
                if self.engine.dialect.name == "postgresql":
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
                command.upgrade(migration_config(connection), "head")
        except DBAPIError as error:
            self._explain(error)
            raise

    def dispose(self) -> None:
        """Close all connections that are not in use."""
        self.engine.dispose()

    @contextmanager
    def _transaction(self, engine: Engine) -> Iterator[Session]:
        try:
            with Session(engine, autoflush=False, expire_on_commit=False, info={"clock": self.clock}) as session:
                session.connection()
                yield session
                session.commit()
        except DBAPIError as error:
            self._explain(error)
            raise

    def _explain(self, error: DBAPIError) -> None:
        """Raise `DatabaseUnavailable` if it is the database that failed, and not the statement or a race."""
        broken = isinstance(error, OperationalError) or type(error) is DatabaseError  # the latter: a damaged file
        if broken and not is_retryable(error):
            where = self.url.set(query={}).render_as_string(hide_password=True)  # a query may hold a password too
            why = str(error.orig).strip().splitlines()[0].rstrip(".")
            raise DatabaseUnavailable(f"The database {where} cannot be used: {why}.") from error


def is_retryable(error: DBAPIError) -> bool:
    """Whether the transaction only lost against another one, and may be tried again."""
    return getattr(error.orig, "sqlstate", None) in RETRYABLE


def insert(session: Session, table: Any) -> Any:
    """INSERT in the session's dialect, which knows ON CONFLICT."""
    return (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(table)


def migration_config(connection: Connection) -> Any:
    """Alembic's settings for the migrations that lie beside the package, or inside it once it is installed."""
    from alembic.config import Config

    package = Path(__file__).parent.parent
    inside = package / "migrations"
    config = Config()
    config.set_main_option("script_location", str(inside if inside.is_dir() else package.parent / "migrations"))
    config.attributes["connection"] = connection
    return config


def _with_driver(url: str) -> URL:
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername in ("postgres", "postgresql") else parsed


def _postgresql(url: URL) -> Engine:
    return create_engine(
        url,
        isolation_level="READ COMMITTED",
        pool_pre_ping=True,
        connect_args={"connect_timeout": 10},
    )


def _sqlite(url: URL) -> Engine:
    engine = create_engine(url)
    journal = "WAL" if sqlite3.sqlite_version_info >= SAFE_WAL else "DELETE"
    settings = {"busy_timeout": 30_000, "journal_mode": journal, "synchronous": "FULL", "foreign_keys": "ON"}

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name}={value}")

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        connection.exec_driver_sql("BEGIN " + connection.get_execution_options().get("sqlite_begin", "DEFERRED"))

    return engine
