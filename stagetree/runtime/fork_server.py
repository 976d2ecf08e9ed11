"""How a trainer process starts: it is forked from an interpreter that has imported torch.

1. A worker launches the warm interpreter (`stagetree.runtime.warm`), which imports torch and runs this `ForkServer`.
2. A slot sends a request with two descriptors, a connection and a lifeline. The server forks, and the fork serves the
   slot's commands over the connection (`stagetree.runtime.child`).
3. On a CPU, a fork that has built the trainer may become a template (`stagetree.runtime.template`): it runs a
   `ForkServer` too, and each chain trains in a fork of it.

The server reports on the lifeline how a fork ended, and kills the fork with all its processes when the lifeline closes.
"""

from __future__ import annotations

import atexit
import contextlib
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
from stagetree.system.processes import end_with_parent, redirect_output


def exit_process(code: int, ours: frozenset[str]) -> NoReturn:
    """End as Python would, but let the kernel free the rest: deleting all of torch takes 0.25 s.

    Joins threads, runs exit handlers, flushes open files, and drops the contents of modules that are not in `ours`.
    """
    threading._shutdown()  # type: ignore[attr-defined]  # as in the processes of multiprocessing
    atexit._run_exitfuncs()
    for each in gc.get_objects():
        if issubclass(type(each), io.IOBase):
            with contextlib.suppress(Exception):  # it is closed, or its reader is gone
                each.flush()
    for name in sys.modules.keys() - ours:
        vars(sys.modules[name]).clear()
    gc.collect()
    os._exit(code)


def ignore_sigterm() -> None:
    """Ignore SIGTERM, which Slurm and systemd send to all processes: the main process stops at a step and saves."""
    signal.signal(signal.SIGTERM, lambda *_: None)  # unlike SIG_IGN, this is not inherited by started programs


def restore_sigterm_in_forks() -> None:
    """Let SIGTERM end processes that the user's code forks, as pools expect.

    It is blocked while forking, since Python drops signals in a fork that it had not handled before.
    """
    held = {signal.SIGTERM}

    def reset_in_fork() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, held)

    os.register_at_fork(
        before=lambda: signal.pthread_sigmask(signal.SIG_BLOCK, held),
        after_in_parent=lambda: signal.pthread_sigmask(signal.SIG_UNBLOCK, held),
        after_in_child=reset_in_fork,
    )


def reap(pid: int) -> int | None:
    """Reap a child that has ended and kill its process group. Returns its exit code; None while it runs."""
    if hasattr(os, "waitid"):  # macOS has it since Python 3.13
        if os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return None
        kill_group(pid)  # before reaping, while the id cannot be reused
    ended, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        os.kill(pid, signal.SIGKILL)  # a fork that has no group of its own yet
    except PermissionError:
        return  # macOS, for a group with only a zombie left


class ForkServer:
    """Serves forks of this process and tracks them by process id with their lifelines. on_fork: called after each."""

    def __init__(
        self, owner: Wire, listener: socket.socket | None = None, *, on_fork: Callable[[], None] = lambda: None
    ) -> None:
        self._pid, self._on_fork = os.getpid(), on_fork
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

    def receive_files(self) -> Iterator[str]:
        """Wait for the owner to name the trainers' files. Redirects output to the log that comes along, early output
        included.

        Raises EOFError when the owner is gone.
        """
        while (arrived := self._owner.receive(timeout=None)) is None:
            continue
        message, (log,) = arrived
        redirect_output(log)
        os.close(log)
        yield from message["files"]

    def serve(self) -> Wire | None:
        """Serve until there are no clients and no forks: returns None. In a fork, returns its connection."""
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
        """Answer one request with the reason why no process can start, and exit. A new interpreter may succeed."""
        self._refusal = reason
        self.serve()
        return 1

    # ------------------------------------------------------------------------------------------------ asking

    def _watch(self, source: socket.socket | Wire, when_readable: Callable[[], None]) -> None:
        self._selector.register(source, selectors.EVENT_READ, when_readable)

    def _listen_to(self, wire: Wire, *, is_owner: bool = False) -> None:
        def read() -> None:
            try:
                while self._child is None and (arrived := wire.receive()):
                    if arrived[1]:
                        self._answer(*(Wire(socket.socket(fileno=fd)) for fd in arrived[1]))
                    else:  # a template gets `exit` like any trainer process
                        self._is_over = self._is_over or is_owner
            except EOFError:
                self._selector.unregister(wire)
                wire.close()
                self._is_over = self._is_over or is_owner

        self._watch(wire, read)

    def _answer(self, connection: Wire, lifeline: Wire) -> None:
        if self._refusal:
            _refuse(self._refusal, connection, lifeline)
            self._is_over = True
            return
        try:
            pid = os.fork()
        except OSError as problem:  # out of memory or processes; existing forks continue
            _refuse(f"no process can be forked: {problem.strerror}", connection, lifeline)
            return
        if pid == 0:
            self._start_child(connection, lifeline)
        else:
            connection.close()
            self._lifelines[pid] = lifeline
            self._watch(lifeline, lambda: self._kill(pid))  # readable means closed: nothing is ever sent on it
            _send(lifeline, {"pid": pid})
            self._on_fork()

    def _start_child(self, connection: Wire, lifeline: Wire) -> None:
        """In a fork: die with the parent, and close everything inherited."""
        os.setsid()
        end_with_parent(self._pid)
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for key in list(self._selector.get_map().values()):
            key.fileobj.close()  # type: ignore[union-attr]  # unregistering would also affect the parent
        self._selector.close()
        self._wakeup.close()
        lifeline.close()
        self._child = connection

    # ------------------------------------------------------------------------------------------------ ending

    def _kill(self, pid: int) -> None:
        """Kill a fork with its process group. Its id is valid until it is reaped."""
        if pid in self._lifelines:  # it may just have ended
            self._selector.unregister(self._lifelines[pid])
            kill_group(pid)

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            self._signals.recv(4096)
        for pid in list(self._lifelines):
            if (status := reap(pid)) is not None:
                lifeline = self._lifelines.pop(pid)
                _send(lifeline, {"ended": status})
                with contextlib.suppress(KeyError):  # `_kill` has unregistered it
                    self._selector.unregister(lifeline)
                lifeline.close()


def _refuse(reason: str, connection: Wire, lifeline: Wire) -> None:
    _send(lifeline, {"refused": reason})
    connection.close()
    lifeline.close()


def _send(lifeline: Wire, message: Message) -> None:
    with contextlib.suppress(ConnectionError):  # the client is gone
        lifeline.send(message)
