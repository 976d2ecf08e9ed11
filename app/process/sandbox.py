"""Runs a pure function in a process of its own, with limits on CPU time and memory."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import resource
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, TypeVar, cast

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


NICENESS = 5
"""Computations give way to the process that answers requests."""


def run_in_sandbox(function: Callable[..., Result], *args: Any, limits: SandboxLimits = LIMITS) -> Result:
    """Call a pure function of a module in a process of its own. Raises `LimitExceeded` and the function's errors."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*PRELOADED, function.__module__])
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=_compute, args=(sender, limits, function, args), daemon=True)
    process.start()
    sender.close()
    try:
        answer = receiver.recv_bytes() if receiver.poll(2 * limits.seconds) else b""
    except EOFError:  # the process was killed
        answer = b""
    finally:
        process.kill()
        process.join()
        receiver.close()
    succeeded, value = pickle.loads(answer) if answer else (False, limits.exceeded)
    if not succeeded:
        raise value
    return cast(Result, value)


def _compute(answers: Connection, limits: SandboxLimits, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    with suppress(OSError):  # without /proc, the memory that the code itself needs is unknown
        mapped = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (mapped + limits.bytes, mapped + limits.bytes))
    resource.setrlimit(resource.RLIMIT_CPU, (limits.seconds, limits.seconds))
    os.nice(NICENESS)
    try:
        answer = (True, function(*args))
    except MemoryError:
        answer = (False, limits.exceeded)
    except Exception as error:
        answer = (False, error)
    answers.send_bytes(pickle.dumps(answer))
