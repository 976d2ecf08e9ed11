"""What this service stands on: URLs as they may be shown, and what it looks like when one of them is away.

Whatever is away is waited for, and fails no trial and no study. Libraries are known by their names, so that none is
imported for the sake of its errors.
"""

from __future__ import annotations

import http.client
import re
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

LOST_RACE = frozenset({"40001", "40P01"})
"""SQLSTATE of a serialization failure and of a deadlock: nothing was done, and it may be done again at once."""

OUTAGE_CLASSES = ("08", "53", "57P", "58")
"""SQLSTATE classes: connection lost, resources used up (disk full, too many connections), shutting down, I/O error."""

OUTAGE_STATES = frozenset({"25006", "25P03", "25P04", "55P03", "57014", "XX001", "XX002"})
"""SQLSTATE: read-only (a demoted primary), transactions, statements and locks that took too long, damaged pages."""

MISSING_STATES = frozenset({"42P01", "42703"})
"""SQLSTATE: a table or a column that is not there, as before the migrations of this version were run."""

MISSING_IN_SQLITE = ("no such table", "no such column", "has no column named")

DATABASE_LIBRARIES = frozenset({"psycopg", "pysqlite3", "sqlite3"})
BROKER_LIBRARIES = frozenset({"amqp", "kombu", "redis"})
STORE_LIBRARIES = frozenset(
    {"adlfs", "aiobotocore", "aiohttp", "azure", "boto3", "botocore", "fsspec", "gcsfs", "google", "s3fs", "urllib3"}
)
MISSING_OBJECT = frozenset({"404", "NoSuchKey"})


class Unavailable(Exception):
    """Something that this service stands on cannot be used now. The message is one sentence."""


class LostRace(Exception):
    """The transaction lost against another one, and did nothing: try again."""


def database_is_unavailable(error: BaseException) -> bool:
    """Whether a database's client says so, or SQLAlchemy on its behalf. A lost race is none of that."""
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
    """Whether a table or a column is missing: our statements are tested on the schema that they are for."""
    inner: Any = getattr(error, "orig", error)
    if (state := getattr(inner, "sqlstate", None)) is not None:
        return state in MISSING_STATES
    return _is_a(inner, "OperationalError") and any(words in str(inner) for words in MISSING_IN_SQLITE)


def is_lost_race(error: BaseException) -> bool:
    """Whether a transaction only lost against another one."""
    return getattr(getattr(error, "orig", error), "sqlstate", None) in LOST_RACE


def broker_is_unavailable(error: BaseException) -> bool:
    is_network = isinstance(error, OSError) and not isinstance(error, FileNotFoundError)
    return is_network or _is_from(error, BROKER_LIBRARIES)


def store_is_unavailable(error: BaseException) -> bool:
    """Whether it is the store that failed: not so when it answered, and said that the object is not there."""
    if isinstance(error, FileNotFoundError):
        return _code(error.__cause__ or error.__context__) == "NoSuchBucket"
    if _code(error) in MISSING_OBJECT:
        return False
    trouble = (OSError, EOFError, TimeoutError, http.client.HTTPException)
    return isinstance(error, trouble) or _is_from(error, STORE_LIBRARIES)


def _code(error: BaseException | None) -> str | None:
    """What S3 answered, in an error of botocore."""
    response: Any = getattr(error, "response", None)
    return response.get("Error", {}).get("Code") if isinstance(response, dict) else None


def _library(error: BaseException) -> str:
    return type(error).__module__.partition(".")[0]


def _is_from(error: BaseException, libraries: frozenset[str]) -> bool:
    """Whether the error, or a class that it is derived from, is one of a library's."""
    return any(each.__module__.partition(".")[0] in libraries for each in type(error).__mro__)


def _is_a(error: BaseException, name: str) -> bool:
    return any(each.__name__ == name for each in type(error).__mro__)


SOUNDS_SECRET = "(?:pass|secret|token|key|credential)"
"""As a part of an option's name, in any case."""

SECRET = re.compile(SOUNDS_SECRET, re.IGNORECASE)
HIDDEN = "***"


def redact_url(url: str) -> str:
    """The URL without user, password and options."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def redact(text: str, *urls: str) -> str:
    """The text, with whatever is secret in these URLs covered up."""
    for url in urls:
        for secret in sorted(_secrets(urlsplit(url)), key=len, reverse=True):
            text = text.replace(secret, HIDDEN)
    return text


def _secrets(parts: SplitResult) -> set[str]:
    login, _, _ = parts.netloc.rpartition("@")
    options = [value for name, value in parse_qsl(parts.query) if SECRET.search(name)]
    raw = [login.partition(":")[2], *options]
    return {secret for each in raw for secret in (each, unquote(each)) if secret}
