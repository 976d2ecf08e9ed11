"""What a failure looks like at the command line: one sentence on stderr, and an exit code for scripts to tell apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

from app.cli.text import harmless, without_secrets

DONE, FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, TIMEOUT, INTERRUPTED = 0, 1, 2, 3, 4, 69, 124, 130


@contextmanager
def explained() -> Iterator[None]:
    """Turn the errors that a user can cause, or mend, into a sentence and an exit code."""
    try:
        yield
    except KeyboardInterrupt:
        sys.exit(INTERRUPTED)
    except Exception as error:
        code = _code(error)
        if code is None:
            raise
        fail(_sentence(error), code)


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End with a message."""
    for line in text.splitlines():
        print(f"stagetree: {without_secrets(harmless(line))}", file=sys.stderr)
    sys.exit(code)


def _sentence(error: Exception) -> str:
    """What to say: of a server's refusal its sentence, or what is wrong at which field, and never the HTTP title."""
    from stagetree.client import ProblemError

    if not isinstance(error, ProblemError):
        return str(error)
    fields = [": ".join(filter(None, (each.get("field"), each.get("problem")))) for each in error.errors]
    return "\n".join(fields) or error.detail or error.title


def _code(error: Exception) -> int | None:
    """The exit code for an error; None for one that is our own mistake and deserves its traceback."""
    from app.api.errors import Invalid
    from app.api.health import WrongSchema
    from app.domain.errors import Refused, Unknown
    from app.embedded import StackFailed
    from app.events.database import DatabaseUnavailable
    from app.events.export import NotALog
    from app.registry import TrainerFileError
    from stagetree import client
    from stagetree.spec import SpecError

    codes: list[tuple[type[Exception], int]] = [
        (SpecError, USAGE),
        (TrainerFileError, USAGE),
        (NotALog, USAGE),
        (Invalid, USAGE),
        (Unknown, NOT_FOUND),
        (Refused, USAGE),
        (StackFailed, FAILED),
        (WrongSchema, FAILED),
        (DatabaseUnavailable, FAILED),
        (client.NotFound, NOT_FOUND),
        (client.Conflict, CONFLICT),
        (client.Invalid, USAGE),
        (client.Unreachable, UNREACHABLE),
        (client.StagetreeError, FAILED),
    ]
    return next((code for kind, code in codes if isinstance(error, kind)), None)
