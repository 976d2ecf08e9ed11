"""This process and others: their parents, children, threads and states, and the cores they may use."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PROC = Path("/proc")

PR_SET_PDEATHSIG = 1

MAX_EARLY_BYTES = 2**20
"""The most bytes of early output to copy to a log."""

_prctl: Any = None
"""Looked up here, since a process that was just forked must not load a library."""
with contextlib.suppress(AttributeError, OSError, TypeError):
    _prctl = ctypes.CDLL(None).prctl


def end_with_parent(parent: int | None = None) -> None:
    """In a new process: have the system kill it when its parent dies, even by SIGKILL.

    Not by SIGTERM, on which a worker would first end its stage. Without prctl nothing is done. A slot's processes also
    end when their connection is closed, so what may stay there is a program that a trainer started.

    parent: its id. If the parent has changed, it died before, and the process ends at once.
    """
    if _prctl is not None:
        _prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent is not None and os.getppid() != parent:
        os._exit(1)


def redirect_output(log: int) -> None:
    """Redirect this process's output to a log, given by its descriptor, and copy its earlier output there."""
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    with contextlib.suppress(OSError):  # early output went to a terminal
        os.write(log, os.pread(sys.stdout.fileno(), MAX_EARLY_BYTES, 0))
    for stream in (sys.stdout, sys.stderr):
        os.dup2(log, stream.fileno())


def prefer_for_killing() -> None:
    """Let the kernel kill this process before its supervisor when memory runs out; nothing without /proc."""
    with contextlib.suppress(OSError), open(PROC / "self" / "oom_score_adj", "w") as file:
        file.write("500")


def is_stopped(pid: int) -> bool:
    """Whether a process is stopped by a signal; False where that is unknown."""
    try:
        return Path(PROC, str(pid), "stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


def thread_count() -> int:
    """The threads of this process, also of C libraries. Raises OSError where that is unknown."""
    return len(os.listdir(PROC / "self" / "task"))


def children() -> list[str]:
    """The ids of the children of this process, as texts. Raises OSError where they are unknown."""
    tasks = [Path(PROC, "self", "task", task) for task in os.listdir(PROC / "self" / "task")]
    return [pid for task in tasks for pid in words(task / "children")]


def kill_marked(mark: str) -> None:
    """Kill each process of this user with `mark`, as NAME=value, in the environment that it began with.

    Nothing without /proc or pidfds: an id alone might be another process's by now.
    """
    for process in _ids() if hasattr(os, "pidfd_open") else ():
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            number = os.pidfd_open(int(process))
            try:
                if mark.encode() in Path(PROC, process, "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(number, signal.SIGKILL)
            finally:
                os.close(number)


def _ids() -> Iterator[str]:
    with contextlib.suppress(OSError):
        yield from filter(str.isdigit, os.listdir(PROC))


def usable_cores() -> int:
    """The CPU cores that this process may use, or else all of the machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def fields_of_processor() -> Iterator[tuple[str, str]]:
    """Name and value of each line about the processors of this machine; none where they are unknown."""
    with contextlib.suppress(OSError):
        for line in (PROC / "cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            yield name.strip(), value.strip()


def words(path: Path) -> list[str]:
    """The words of a file of /proc; none where it is missing."""
    with contextlib.suppress(OSError):
        return path.read_text().split()
    return []
