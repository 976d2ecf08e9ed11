"""Runs a pure function in a process of its own, with limits on CPU time and memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from multiprocessing.connection import Connection
from threading import Timer
from typing import Any, TypeVar, cast

from stagetree.system.memory import mapped_bytes

Result = TypeVar("Result")


class LimitExceeded(Exception):
    """A computation took more time or memory than it may; the message is one sentence."""


@dataclass(frozen=True)
class SandboxLimits:
    seconds: int = 60
    """CPU time. The computation may take twice as long on the clock."""
    bytes: int = 2 * 2**30
    """Memory, beyond what the imported code needs."""

    @property
    def exceeded(self) -> LimitExceeded:
        return LimitExceeded(
            f"this takes more than {self.seconds} s of a processor, or {self.bytes / 2**30:g} GiB of memory"
        )


LIMITS = SandboxLimits()

PRELOADED = ["app.api.bodies", "app.service.html_report", "app.service.previews", "app.simulation.preview"]
PRELOADED += ["app.simulation.what_if", "app.search.replay"]
"""Modules that the fork server imports once, for all sandboxes."""

SENT_AT_ONCE = 1000
"""Items of a stream in one message."""

NICENESS = 5
"""Computations give way to the process that answers requests."""


def run_in_sandbox(
    function: Callable[..., Result], *args: Any, stream: Iterable[Any] | None = None, limits: SandboxLimits = LIMITS
) -> Result:
    """Call a pure function of a module in a process of its own. Raises `LimitExceeded` and the function's errors.

    stream: items that are too many for this process to collect. The function gets an iterator of them as one more
    argument, the last.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, function.__module__])
    theirs_in, ours_out = context.Pipe(duplex=False)
    ours_in, theirs_out = context.Pipe(duplex=False)
    given = args if stream is None else (*args, _Received(theirs_in))
    process = context.Process(target=_compute, args=(theirs_out, limits, function, given), daemon=True)
    process.start()
    theirs_in.close()
    theirs_out.close()
    late = Timer(2 * limits.seconds, process.kill)
    late.daemon = True  # an ending server does not wait for it
    late.start()
    try:
        _send(stream or (), ours_out)
        answer = _receive(ours_in)
    finally:
        late.cancel()
        process.kill()
        process.join()
        ours_in.close()
        ours_out.close()
    succeeded, value = pickle.loads(answer) if answer else (False, limits.exceeded)
    if not succeeded:
        raise value
    return cast(Result, value)


def _receive(answers: Connection) -> bytes:
    """The answer; nothing if the process was killed before it, or within it."""
    try:
        return answers.recv_bytes()
    except (EOFError, OSError):
        return b""


def _send(items: Iterable[Any], to: Connection) -> None:
    with suppress(BrokenPipeError):  # the process needs no more, or is dead
        each = iter(items)
        while several := list(islice(each, SENT_AT_ONCE)):
            to.send_bytes(pickle.dumps(several))
        to.send_bytes(b"")


@dataclass(frozen=True)
class _Received:
    """The items of a stream, as they arrive; once."""

    source: Connection

    def __iter__(self) -> Iterator[Any]:
        while several := self.source.recv_bytes():
            yield from pickle.loads(several)


def _compute(answers: Connection, limits: SandboxLimits, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with suppress(OSError):  # the memory that the code itself needs may be unknown
        mapped = mapped_bytes()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + limits.bytes, mapped + limits.bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
    os.nice(NICENESS)
    try:
        answer = (True, function(*args))
    except MemoryError:
        answer = (False, limits.exceeded)
    except Exception as error:
        answer = (False, error)
    for each in args:
        if isinstance(each, _Received):
            each.source.close()  # or its sender, if it was read in part, and this answer would wait for each other
    answers.send_bytes(pickle.dumps(answer))
