"""One door to PostgreSQL or SQLite. Writing takes its lock at the start on SQLite; reading never blocks a reader."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Engine, make_url, text
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.engine import URL, Connection
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from app.away import Away, LostRace, database_is_away, is_lost_race
from app.events import connections
from app.urls import shown, without_secrets

MIGRATION_LOCK = 0x57A6E73EE
MIGRATION_SECONDS = 3600.0
PATIENCE_SECONDS = 20.0


class DatabaseUnavailable(Away):
    """The database cannot be reached or cannot be written; the message says which one and why, in one sentence."""


class NewerSchema(Exception):
    """The database was brought up to date by a stagetree newer than this one; the message says so in one sentence."""


class Database:
    """An engine and its two kinds of transaction. Safe to share between threads; opens nothing until it is used.

    clock: replaces the database's own, which leases go by, in tests and simulations. patience: for how many seconds a
    transaction waits for a server, a lock or a free connection before it raises.
    """

    def __init__(
        self, url: str, *, clock: Callable[[], float] | None = None, patience: float = PATIENCE_SECONDS
    ) -> None:
        self.url = _with_driver(url)
        self.clock = clock
        is_file = self.url.get_backend_name() == "sqlite"
        self.engine = (connections.sqlite if is_file else connections.postgresql)(self.url, patience)
        self._writer = self.engine.execution_options(sqlite_begin="IMMEDIATE")

    def write(self) -> AbstractContextManager[Session]:
        """A transaction that commits at the end of the block and leaves nothing behind when the block raises.

        Raises `LostRace` when another transaction was in the way, and `DatabaseUnavailable`. If that comes from the
        commit itself, the outcome is unknown.
        """
        return self._transaction(self._writer)

    def read(self) -> AbstractContextManager[Session]:
        """A transaction for reading. Raises `LostRace`, on a standby only, and `DatabaseUnavailable`."""
        return self._transaction(self.engine)

    def create(self) -> None:
        """Bring the schema up to date. May run in many processes at once.

        Raises `DatabaseUnavailable` and `NewerSchema`.
        """
        from alembic import command, util  # slow to import, and needed once

        is_file = self.engine.dialect.name == "sqlite"
        engine = self._writer if is_file else connections.postgresql(self.url, MIGRATION_SECONDS)
        try:
            with engine.begin() as connection:
                if not is_file:
                    connection.execute(text(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})"))
                command.upgrade(migration_config(connection), "head")
        except SQLAlchemyError as error:
            self._explain(error)
            raise
        except util.CommandError as error:
            place = shown(self.url.render_as_string(hide_password=False))
            raise NewerSchema(f"The database {place} is of a newer stagetree than this one: {error}.") from error
        finally:
            engine.dispose()

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
        except SQLAlchemyError as error:
            self._explain(error)
            raise

    def _explain(self, error: SQLAlchemyError) -> None:
        """Raise `LostRace` or `DatabaseUnavailable` where it was not the statement that was wrong."""
        if is_lost_race(error):
            raise LostRace("The transaction lost against another one.") from error
        if database_is_away(error):
            url = self.url.render_as_string(hide_password=False)
            why = without_secrets(str(getattr(error, "orig", None) or error), url).strip().splitlines()[0].rstrip(".")
            raise DatabaseUnavailable(f"The database {shown(url)} cannot be used: {why}.") from error


def insert(session: Session, table: Any) -> Any:
    """INSERT in the session's dialect, which knows ON CONFLICT."""
    return (postgresql if session.get_bind().dialect.name == "postgresql" else sqlite).insert(table)


def place_of(session: Session) -> str:
    """Which database this is: another one than any copy of it, wherever it is reached."""
    if session.get_bind().dialect.name == "sqlite":
        return str(Path(session.execute(text("PRAGMA database_list")).one().file).resolve())
    query = "SELECT system_identifier::text || '/' || oid FROM pg_control_system(), pg_database"
    return str(session.execute(text(f"{query} WHERE datname = current_database()")).scalar_one())


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
