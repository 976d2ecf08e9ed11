"""How an interpreter that forks for others ends, and its forks: each with all that it started, and none by accident."""

from __future__ import annotations

import atexit
import contextlib
import gc
import io
import os
import signal
import sys
import threading
from typing import NoReturn


def end(code: int, ours: frozenset[str]) -> NoReturn:
    """As Python ends, but that the kernel frees what is left: to take all of torch apart, it needs 0.25 s.

    Threads are waited for, what was registered for the end is done, files that are open are written to the last byte,
    and what the modules hold that are not `ours` is let go.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as in the processes of multiprocessing
    atexit._run_exitfuncs()
    for each in gc.get_objects():
        if issubclass(type(each), io.IOBase):
            with contextlib.suppress(Exception):  # it is closed, or nobody reads there any more
                each.flush()
    for name in sys.modules.keys() - ours:
        vars(sys.modules[name]).clear()
    gc.collect()
    os._exit(code)


def leave_sigterm_to_the_worker() -> None:
    """Slurm and systemd send it to every process of a worker: the main one stops at the next step, and saves."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # unlike SIG_IGN, it is not handed on to programs that are started


def end_forks_by_sigterm() -> None:
    """What the user's code forks ends by it as ever: a pool waits for that.

    It is held back meanwhile, since Python forgets in a fork what has come before it could be handled.
    """
    held = {signal.SIGTERM}

    def in_fork() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, held),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, held),
        after_in_child=in_fork,
    )


def reaped(pid: int) -> int | None:
    """The exit code of a child that has ended, when what it left behind is killed; None while it runs."""
    if hasattr(os, "waitid"):  # macOS has it since Python 3.13
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        kill_group(pid)  # before it is reaped: until then, the id is its own
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # a fork that has no group of its own yet
    except PermissionError:
        return  # macOS says so of a group of which only a zombie is left
