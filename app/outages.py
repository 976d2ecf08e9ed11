"""Recognizes outages of the database, the broker and the store by their errors, and hides secrets of their URLs.

The service waits for the end of an outage, which fails no trial and no study. Libraries are recognized by name, so that
none is imported for its error classes.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

LOST_RACE = frozenset({"40001", "40P01"})
"""SQLSTATE of a serialization failure and of a deadlock: nothing was done, and it can be retried at once."""

OUTAGE_CLASSES = ("08", "53", "57P", "58")
"""SQLSTATE classes: connection lost, out of resources (disk full, too many connections), shutting down, I/O error."""

OUTAGE_STATES = frozenset({"25006", "25P03", "25P04", "55P03", "57014", "XX001", "XX002"})
"""SQLSTATE: read-only (a demoted primary), timeouts of transactions, statements and locks, damaged pages."""

MISSING_STATES = frozenset({"42P01", "42703"})
"""SQLSTATE: a table or a column is missing, as before the migrations of this version have run."""

MISSING_IN_SQLITE = ("no such table", "no such column", "has no column named")

DATABASE_LIBRARIES = frozenset({"psycopg", "pysqlite3", "sqlite3"})
BROKER_LIBRARIES = frozenset({"amqp", "kombu", "redis"})
STORE_LIBRARIES = frozenset(
    {
        "adlfs",
        "aiobotocore",
        "aiohttp",
        "azure",
        "boto3",
        "botocore",
        "fsspec",
        "gcsfs",
        "google",
        "http",
        "s3fs",
        "urllib3",
    }
)
MISSING_OBJECT = frozenset({"404", "NoSuchKey"})


class Unavailable(Exception):
    """The database, the broker or the store cannot be used now. The message is one sentence."""


class DatabaseUnavailable(Unavailable):
    """The database cannot be reached or written, or its schema is too old. The message names the database and the
    reason.
    """


class LostRace(Exception):
    """The transaction lost against another one and did nothing: try again."""


def database_is_unavailable(error: BaseException) -> bool:
    """Whether a database client, or SQLAlchemy for it, reports an outage. A lost race is none."""
    if _library(error) == "sqlalchemy":
        inner = getattr(error, "orig", None)
        return type(error).__name__ == "TimeoutError" if inner is None else database_is_unavailable(inner)
    if _library(error) not in DATABASE_LIBRARIES or is_lost_race(error):
        return False
    state = getattr(error, "sqlstate", None)
    if state is not None:
        return state.startswith(OUTAGE_CLASSES) or state in OUTAGE_STATES
    return type(error).__name__ in ("DatabaseError", "InterfaceError") or _is_a(error, "OperationalError")


def is_not_migrated(error: BaseException) -> bool:
    """Whether a table or a column is missing. Our statements are tested, so only an older schema can be the reason."""
    inner: Any = getattr(error, "orig", error)
    if (state := getattr(inner, "sqlstate", None)) is not None:
        return state in MISSING_STATES
    return _is_a(inner, "OperationalError") and any(words in str(inner) for words in MISSING_IN_SQLITE)


def is_lost_race(error: BaseException) -> bool:
    return getattr(getattr(error, "orig", error), "sqlstate", None) in LOST_RACE


def raise_outage(error: Exception, url: str) -> None:
    """Raise `LostRace` or `DatabaseUnavailable` if a database's error is one, and return if the statement was wrong.

    url: of the database.
    """
    if is_lost_race(error):
        raise LostRace("The transaction lost against another one.") from error
    if is_not_migrated(error):
        missing = str(getattr(error, "orig", error)).strip().splitlines()[0]
        text = f"The database {redact_url(url)} waits for its migrations, `alembic upgrade head`: {missing}."
        raise DatabaseUnavailable(text) from error
    if database_is_unavailable(error):
        why = redact(str(getattr(error, "orig", None) or error), url).strip().splitlines()[0].rstrip(".")
        raise DatabaseUnavailable(f"The database {redact_url(url)} cannot be used: {why}.") from error


def broker_is_unavailable(error: BaseException) -> bool:
    is_network = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    return is_network or _is_from(error, BROKER_LIBRARIES)


def store_is_unavailable(error: BaseException) -> bool:
    """Whether the store failed. A store that answers that an object is missing has not."""
    if isinstance(error, FileNotFoundError):
        return _code(error.__cause__ or error.__context__) == "NoSuchBucket"
    if _code(error) in MISSING_OBJECT:
        return False
    return isinstance(error, OSError | EOFError) or _is_from(error, STORE_LIBRARIES)


def _code(error: BaseException | None) -> str | None:
    """The error code of S3, in an error of botocore."""
    response: Any = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _is_from(error: BaseException, libraries: frozenset[str]) -> bool:
    """Whether the error's class, or one of its bases, comes from one of these libraries."""
    return any(each.__module__.partition(".")[0] in libraries for each in type(error).__mro__)


def _is_a(error: BaseException, name: str) -> bool:
    return any(each.__name__ == name for each in type(error).__mro__)


SOUNDS_SECRET = "(?:pass|secret|token|key|credential)"
"""A part of an option's name, in any case."""

SECRET = re.compile(SOUNDS_SECRET, re.IGNORECASE)
HIDDEN = "***"


def redact_url(url: str) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def redact(text: str, *urls: str) -> str:
    """The text without the secrets of these URLs."""
    for url in urls:
        for secret in sorted(_secrets(urlsplit(url)), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
    return text


def _secrets(parts: SplitResult) -> set[str]:
    login, _, _ = parts.netloc.rpartition("@")
    options = [value for name, value in parse_qsl(parts.query) if SECRET.search(name)]
    raw = [login.partition(":")[2], *options]
    return {secret for each in raw for secret in (each, unquote(each)) if secret}
