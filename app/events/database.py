"""Connections and transactions for PostgreSQL and SQLite. Every wait has a limit.

SQLite uses a write-ahead log only from version 3.51.3 on: before, several writing connections can corrupt it. With a
write-ahead log a commit waits for the disk once, without it four or five times. Python seldom comes with a version as
new as that, so the wheel `pysqlite3` is preferred.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from importlib import import_module
from pathlib import Path
from time import monotonic, sleep
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Engine,
    Float,
    TextClause,
    bindparam,
    create_engine,
    event,
    inspect,
    literal_column,
    make_url,
    text,
)
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import PoolProxiedConnection

from app.events.codec import read_json
from app.events.schema_numbers import check_schema_is_known, migrations_folder
from app.events.sqlite import SAFE_WAL, SQLITE, SQLITE_NOW
from app.outages import raise_outage

LOOK_SECONDS = 0.02


def sqlite_engine(url: URL, patience: float) -> Engine:
    """An engine whose transactions raise if they wait for the lock for more than `patience` seconds."""
    options: dict[str, Any] = {"pool_timeout": patience} if url.database else {}
    engine = create_engine(url, module=SQLITE, json_deserializer=read_json, **options)
    journal = "WAL" if SQLITE.sqlite_version_info >= SAFE_WAL else "DELETE"
    settings = {"synchronous": "FULL", "foreign_keys": "ON"}

    @event.listens_for(engine, "connect")
    def configure(connection: sqlite3.Connection, _: object) -> None:
        connection.isolation_level = None  # the driver must not begin transactions by itself
        connection.execute(f"PRAGMA busy_timeout={round(1000 * patience)}")  # first: the next one takes a lock
        _set_journal(connection, journal, until=monotonic() + patience)
        for name, value in settings.items():
            connection.execute(f"PRAGMA {name}={value}")

    # not an event listener: with one, SQLAlchemy would look for listeners at each statement
    engine.dialect.do_begin = _begin  # type: ignore[method-assign, assignment]
    return engine


KIND, PLACE = "sqlite_begin", "sqlite_place"
"""Keys of `connection.info`."""

IMMEDIATE = "IMMEDIATE"
"""The kind of a writing transaction: it waits for the lock at its beginning, and never later."""


def _begin(connection: PoolProxiedConnection) -> None:
    connection.cursor().execute(f"BEGIN {connection.info.pop(KIND, 'DEFERRED')}")


def _set_journal(connection: sqlite3.Connection, journal: str, until: float) -> None:
    """SQLite does not wait for a writer when the journal mode changes, so the change is retried until the deadline."""
    while True:
        try:
            connection.execute(f"PRAGMA journal_mode={journal}")
            return
        except SQLITE.OperationalError as error:
            if error.sqlite_errorcode != SQLITE.SQLITE_BUSY or monotonic() > until:
                raise
        sleep(LOOK_SECONDS)


MIGRATION_LOCK = 0x57A6E73EE
MIGRATION_SECONDS = 3600.0
PATIENCE_SECONDS = 20.0


SQL_NOW = {
    "postgresql": "extract(epoch FROM clock_timestamp())::float8",
    "sqlite": SQLITE_NOW,
}
NOW = {dialect: literal_column(clock, Float) for dialect, clock in SQL_NOW.items()}


class SqlSession:
    """A transaction. now: an expression for the current time in Unix seconds, the same object for all transactions."""

    __slots__ = ("connection", "dialect", "execute", "now", "scalar", "scalars")

    def __init__(self, connection: Connection, now: ColumnElement[float]) -> None:
        self.connection, self.now = connection, now
        self.dialect: str = connection.dialect.name
        self.execute, self.scalar, self.scalars = connection.execute, connection.scalar, connection.scalars


class Database:
    """An engine and its two kinds of transaction. Thread-safe; it connects at the first transaction.

    clock: replaces the database's clock, which leases use, in tests and simulations. patience: how many seconds a
    transaction waits for the server, a lock or a free connection before it raises.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, patience: float = PATIENCE_SECONDS
    ) -> None:
        self.url = _parse_url(url)
        self.engine = self._make_engine(patience)
        self.clock = clock
        self._is_readable = False

    @property
    def clock(self) -> Callable[[], float] | None:
        return self._clock

    @clock.setter
    def clock(self, clock: Callable[[], float] | None) -> None:
        self._clock = clock
        self._now = NOW[self.engine.dialect.name] if clock is None else bindparam("now", callable_=clock, type_=Float)

    @property
    def is_file(self) -> bool:
        """Whether it is SQLite, which serves one machine."""
        return self.url.get_backend_name() == "sqlite"

    @property
    def _address(self) -> str:
        return self.url.render_as_string(hide_password=False)

    def write(self) -> AbstractContextManager[SqlSession]:
        """A transaction that commits at the end of the block, and rolls back if the block raises.

        Raises `LostRace` if it lost against another transaction, and `DatabaseUnavailable`. If the commit itself raises
        that, the outcome is unknown.
        """
        return self._transaction({KIND: IMMEDIATE})

    def read(self) -> AbstractContextManager[SqlSession]:
        """A read-only transaction. Raises `DatabaseUnavailable`, and on a standby `LostRace`."""
        return self._transaction({})

    def schema(self) -> str | None:
        """The number of the migration that the schema is at; None before the first. Raises as `read`."""
        with self.read() as session:
            return schema_of(session.connection)

    def create(self) -> None:
        """Run the migrations. Safe to call from many processes at once. Raises `DatabaseUnavailable`."""
        from alembic import command  # slow to import, and needed once

        engine = self.engine if self.is_file else self._make_engine(MIGRATION_SECONDS)
        try:
            with _begin_transaction(engine, {KIND: IMMEDIATE}) as connection:
                if not self.is_file:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
                check_schema_is_known(schema_of(connection), self._address)
                command.upgrade(migration_config(connection), "head")
        except SQLAlchemyError as error:
            raise_outage(error, self._address)
            raise
        finally:
            engine.dispose()

    def dispose(self) -> None:
        """Close all idle connections."""
        self.engine.dispose()

    def _make_engine(self, patience: float) -> Engine:
        if self.is_file:
            return sqlite_engine(self.url, patience)
        from app.events.postgresql import postgresql_engine  # only here: a laptop never needs its client

        return postgresql_engine(self.url, patience)

    @contextmanager
    def _transaction(self, info: Mapping[str, str]) -> Iterator[SqlSession]:
        try:
            with _begin_transaction(self.engine, info) as connection:
                self._check_schema(connection)
                yield SqlSession(connection, self._now)
        except SQLAlchemyError as error:
            raise_outage(error, self._address)
            raise

    def _check_schema(self, connection: Connection) -> None:
        """Checks once, at the first transaction that finds a schema. Raises `UnreadableSchema`."""
        if not self._is_readable:
            number = schema_of(connection)
            check_schema_is_known(number, self._address)
            self._is_readable = number is not None


@contextmanager
def _begin_transaction(engine: Engine, info: Mapping[str, str]) -> Iterator[Connection]:
    """info: set on the connection before the transaction begins."""
    with engine.connect() as connection:
        connection.info.update(info)
        with connection.begin():
            yield connection


def insert(session: SqlSession, table: Any) -> Any:
    """An INSERT of the session's dialect, which supports ON CONFLICT."""
    return import_module(f"sqlalchemy.dialects.{session.dialect}").insert(table)


def place_of(session: SqlSession) -> str:
    """An identifier of this database. A copy of it has another one."""
    if session.dialect == "sqlite":
        known = session.connection.info  # a connection stays with its file
        if PLACE not in known:
            known[PLACE] = str(Path(session.execute(text("PRAGMA database_list")).one().file).resolve())
        return str(known[PLACE])
    query = "SELECT system_identifier::text || '/' || oid FROM pg_control_system(), pg_database"
    return str(session.execute(text(f"{query} WHERE datname = current_database()")).scalar_one())


def migration_config(connection: Connection) -> Any:
    """Alembic's settings. The migrations lie beside the package, or inside it once it is installed."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", str(migrations_folder()))
    config.attributes["connection"] = connection
    return config


def schema_of(connection: Connection) -> str | None:
    """The number of the migration that the database is at; None before the first."""
    if not inspect(connection).has_table("alembic_version"):
        return None
    number: str | None = connection.execute(text("SELECT version_num FROM alembic_version")).scalar_one_or_none()
    return number


def _parse_url(url: str) -> URL:
    parsed = make_url(url)
    return parsed.set(drivername="postgresql+psycopg") if parsed.drivername in ("postgres", "postgresql") else parsed


def was_written_since(table: str) -> TextClause:
    """A condition: `writer`, or a transaction after it, wrote the row. `age` counts back from the newest one."""
    return text(f"age({table}.xmin) <= age(CAST(CAST(:writer AS text) AS xid))")
