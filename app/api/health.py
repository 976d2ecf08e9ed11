"""Whether what the service needs is there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor, wait

from app.events.database import Database, migration_config

PATIENCE_SECONDS = 1.0


class WrongSchema(Exception):
    """The database's schema is not the one this version works with."""


def failures(checks: Mapping[str, Callable[[], None]]) -> dict[str, str]:
    """Why each check that fails does. None gets more than a second."""
    pool = ThreadPoolExecutor(max(1, len(checks)))
    futures = {name: pool.submit(check) for name, check in checks.items()}
    pool.shutdown(wait=False)
    wait(futures.values(), PATIENCE_SECONDS)
    return {name: why for name, future in futures.items() if (why := _failure(future))}


def _failure(future: Future[None]) -> str:
    if not future.done():
        return f"did not answer within {PATIENCE_SECONDS:g} s"
    error = future.exception()
    return "" if error is None else str(error) or type(error).__name__


def check_schema(database: Database) -> None:
    """Raises `WrongSchema` when migrations have not been run, or others have."""
    from alembic.migration import MigrationContext  # slow to import
    from alembic.script import ScriptDirectory

    with database.engine.connect() as connection:
        wanted = ScriptDirectory.from_config(migration_config(connection)).get_current_head()
        found = MigrationContext.configure(connection).get_current_revision()
    if found != wanted:
        raise WrongSchema(f"the database's schema is at {found or 'nothing'}, and must be at {wanted}")
