"""What a failure looks like at the command line: one sentence on stderr, and an exit code for scripts to tell apart."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NoReturn

DONE, FAILED, USAGE, NOT_FOUND, CONFLICT, UNREACHABLE, INTERRUPTED = 0, 1, 2, 3, 4, 69, 130


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
        fail(str(error), code)


def fail(text: str, code: int = FAILED) -> NoReturn:
    """End with a message."""
    for line in text.splitlines():
        print(f"stagetree: {line}", file=sys.stderr)
    sys.exit(code)


def _code(error: Exception) -> int | None:
    """The exit code for an error; None for one that is our own mistake and deserves its traceback."""
    from app.embedded import StackFailed
    from app.events.export import NotALog
    from app.registry import TrainerFileError
    from stagetree import client
    from stagetree.spec import SpecError

    codes: list[tuple[type[Exception], int]] = [
        (SpecError, USAGE),
        (TrainerFileError, USAGE),
        (NotALog, USAGE),
        (StackFailed, FAILED),
        (client.NotFound, NOT_FOUND),
        (client.Conflict, CONFLICT),
        (client.Invalid, USAGE),
        (client.Unreachable, UNREACHABLE),
        (client.StagetreeError, FAILED),
    ]
    return next((code for kind, code in codes if isinstance(error, kind)), None)
