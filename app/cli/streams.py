"""Where the command line writes: it may be closed, full, or unable to hold some characters."""

from __future__ import annotations

import contextlib
import io
import os
import sys


def prepare() -> None:
    """Have what a stream cannot hold spelled out, and nothing written where there is no stream."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # it was closed when the command began
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def let_go_of_stdout() -> None:
    """Once it could not be written, what waits in its buffer cannot be either: the interpreter must not try again."""
    with contextlib.suppress(io.UnsupportedOperation):
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)


def is_unicode() -> bool:
    """Whether stdout can hold any character."""
    return (sys.stdout.encoding or "").lower().startswith("utf")
