"""An interpreter that forks for others: it serves forks on request and looks after them until they end.

Each ends with all that it started, and none by accident. The warm interpreter is one, and so is a template: see
`stagetree.runtime.template`.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import io
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator
from typing import NoReturn

from stagetree.runtime.wire import Message, Wire, pair

PR_SET_PDEATHSIG = 1

MOST_EARLY_BYTES = 2**20
"""No more bytes from before the log was known go there."""


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
    """The exit code of a child that has ended, when its group is killed; None while it runs."""
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


class ForkServer:
    """The forks of a process, by process id, with their lifelines: of the warm interpreter, or of a template."""

    def __init__(self, owner: Wire, listener: socket.socket | None = None) -> None:
        self._pid, self._libc = os.getpid(), ctypes.CDLL(None)
        self._lifelines: dict[int, Wire] = {}
        self._selector = selectors.DefaultSelector()
        self._is_over = False
        self._refusal = ""
        self._child: Wire | None = None
        self._signals, self._wakeup = pair()
        for side in (self._signals, self._wakeup):
            side.setblocking(False)
        self._owner = owner
        self._listen_to(self._owner, is_owner=True)
        if listener is not None:
            self._watch(listener, lambda: self._listen_to(Wire(listener.accept()[0])))

    def told(self) -> Iterator[str]:
        """The files of trainers, when the owner knows them. Its log comes along, and has all that was printed so far.

        Raises EOFError when the owner is gone.
        """
        while (arrived := self._owner.receive(timeout=None)) is None:
            continue
        message, (log,) = arrived
        with contextlib.suppress(OSError):  # it printed to a terminal
            os.write(log, os.pread(sys.stdout.fileno(), MOST_EARLY_BYTES, 0))
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
            os.dup2(log, stream.fileno())
        os.close(log)
        yield from message["files"]

    def serve(self) -> Wire | None:
        """In a fork, its connection. Here, None when nobody can ask any more and all forks have ended."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakeup.fileno(), warn_on_full_buffer=False)
        self._watch(self._signals, self._reap)
        while self._child is None and not (self._is_over and not self._lifelines):
            for key, _ in self._selector.select():
                key.data()
                if self._child is not None:
                    break
        return self._child

    def refuse(self, reason: str) -> int:
        """Answer a request with the reason why there is no trainer's process. The next request may have more luck."""
        self._refusal = reason
        self.serve()
        return 1

    # ------------------------------------------------------------------------------------------------ asking

    def _watch(self, source: socket.socket | Wire, when_readable: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, when_readable)

    def _forget(self, source: socket.socket | Wire) -> None:
        self._selector.unregister(source)
        source.close()

    def _listen_to(self, wire: Wire, *, is_owner: bool = False) -> None:
        def read() -> None:
            try:
                while self._child is None and (arrived := wire.receive()):
                    if arrived[1]:
                        self._answer(*(Wire(socket.socket(fileno=fd)) for fd in arrived[1]))
                    else:  # a template is told to end as any trainer's process is
                        self._is_over = self._is_over or is_owner
            except EOFError:
                self._forget(wire)
                self._is_over = self._is_over or is_owner

        self._watch(wire, read)

    def _answer(self, connection: Wire, lifeline: Wire) -> None:
        if self._refusal:
            _refuse(self._refusal, connection, lifeline)
            self._is_over = True
            return
        try:
            pid = os.fork()
        except OSError as problem:  # no memory, or too many processes: the others go on
            _refuse(f"no process can be forked: {problem.strerror}", connection, lifeline)
            return
        if pid == 0:
            self._become(connection, lifeline)
        else:
            self._look_after(pid, connection, lifeline)

    def _look_after(self, pid: int, connection: Wire, lifeline: Wire) -> None:
        connection.close()
        self._lifelines[pid] = lifeline
        self._watch(lifeline, lambda: self._kill(pid))  # nothing is ever said on it but that it is over
        _say(lifeline, {"pid": pid})

    def _become(self, connection: Wire, lifeline: Wire) -> None:
        """In a fork: end with the parent, and hold nothing of what it holds."""
        os.setsid()
        if sys.platform == "linux":
            self._libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != self._pid:  # it died before that was said
            os._exit(1)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # to unregister it would do so in the parent as well
        self._selector.close()
        self._wakeup.close()
        lifeline.close()
        self._child = connection

    # ------------------------------------------------------------------------------------------------ ending

    def _kill(self, pid: int) -> None:
        """A fork and all that it started. While it is not reaped, its id is its own."""
        if pid in self._lifelines:  # else it has ended at the same moment
            self._selector.unregister(self._lifelines[pid])
            kill_group(pid)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(4096)
        for pid in list(self._lifelines):
            if (status := reaped(pid)) is not None:
                self._let_go(pid, status)

    def _let_go(self, pid: int, status: int) -> None:
        lifeline = self._lifelines.pop(pid)
        _say(lifeline, {"ended": status})
        with contextlib.suppress(KeyError):  # it was killed because its lifeline was closed
            self._selector.unregister(lifeline)
        lifeline.close()


def _refuse(reason: str, connection: Wire, lifeline: Wire) -> None:
    _say(lifeline, {"refused": reason})
    connection.close()
    lifeline.close()


def _say(lifeline: Wire, message: Message) -> None:
    with contextlib.suppress(ConnectionError):  # nobody is there to be told
        lifeline.send(message)
