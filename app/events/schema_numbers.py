"""The numbers of the migrations, and whether a database is at one that this version can read."""

from __future__ import annotations

from pathlib import Path

from app.outages import DatabaseUnavailable, redact_url


class UnreadableSchema(DatabaseUnavailable):
    """A newer or an unreleased version of stagetree made the database. The message says which, and what to do."""


def newest_schema() -> str:
    """The number of the last migration."""
    return max(_schemas())


def check_schema_is_known(number: str | None, url: str) -> None:
    """Raise `UnreadableSchema` if the database is at a migration that this version does not have."""
    known = _schemas()
    if number is None or number in known:
        return
    place = f"The database {redact_url(url)}"
    if number < min(known):
        raise UnreadableSchema(
            f"{place} was made by an unreleased version of stagetree (its schema is {number}) and cannot be read: use a"
            " new --dir or database, or delete this one."
        )
    raise UnreadableSchema(
        f"{place} was made by a newer version of stagetree (its schema is {number}) and cannot be read: use that"
        " version, or a new --dir or database."
    )


def _schemas() -> set[str]:
    """The numbers of all migrations, from their file names: Alembic is slow to import."""
    return {file.stem.partition("_")[0] for file in (migrations_folder() / "versions").glob("[0-9]*.py")}


def migrations_folder() -> Path:
    package = Path(__file__).parent.parent
    inside = package / "migrations"
    return inside if inside.is_dir() else package.parent / "migrations"
