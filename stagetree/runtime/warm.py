"""An interpreter that has imported torch, and forks a process that trains for whoever asks: in milliseconds.

    python -P -m stagetree.runtime.warm FD [LISTENING_FD] [TRAINER.py ... | told]

FD is a connected Unix socket; when its other side is closed the interpreter ends, after the last of its forks. On a
second one that listens, any number of processes may connect. A request brings two file descriptors: the connection to
the trainer's process, and a lifeline. On the lifeline the interpreter says the process id and, in the end, how the
process ended. When the other end of the lifeline is closed or shut down, however that comes, the process and all that
it started are killed. Some libraries that the trainers' files name are imported beforehand, too: see `loading`. Who
does not know the files yet says `told`, and sends them, with the descriptor of a log, as the first message.

No user's code runs here, there is one thread, and CUDA is never started: so a fork is sound.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import os
import selectors
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import IO, Any

from stagetree.runtime.endings import (
    end,
    end_forks_by_sigterm,
    kill_group,
    leave_sigterm_to_the_worker,
    reaped,
)
from stagetree.runtime.failures import SAME_ORDER, keep_for_trainers
from stagetree.runtime.wire import Message, Wire, pair
from stagetree.source.importing import know_modules

PR_SET_PDEATHSIG = 1

MODULES = ("stagetree.runtime.child", "torch._inductor.config", "torch._dynamo", "torch.utils.data")
"""The second and third are what torch imports when it is told to be deterministic, and for the first optimizer."""

ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
ONE_THREAD |= {"JE_ARROW_MALLOC_CONF": "background_thread:false"}  # of Arrow, which pandas imports where it is
"""The environment in which libraries start no threads when they are imported: a process that forks must have none."""

TOLD = "told"
"""In the place of the trainers' files: the owner sends them when it knows them."""
MOST_EARLY_BYTES = 2**20
"""No more bytes from before the log was known go there."""


def import_before_forking(files: Iterable[str] = ()) -> None:
    """Import what a process that trains needs, so that none of the forks has to. Raises ImportError.

    files: those of trainers, of which some imports are made as well; see `loading`.
    """
    os.environ |= ONE_THREAD
    gc.disable()  # an import makes next to no garbage, and a look for it takes 0.2 s
    for name in MODULES:
        importlib.import_module(name)
    importlib.import_module("stagetree.runtime.loading").import_for(files)  # it has torch: not for who launches us
    know_modules()
    gc.enable()
    gc.freeze()  # what is there now stays shared with the forks


def launch(
    path: str = "", log: IO[bytes] | None = None, files: Iterable[str] = (), **how: Any
) -> tuple[subprocess.Popen[bytes], socket.socket]:
    """Start the interpreter, which can be asked at once; the other end of the socket that keeps it alive.

    path: where it listens for others, if anywhere. log: what it, and a trainer without a log, print; else as we do.
    files: those of trainers, or `TOLD` alone. how: more of `Popen`.
    """
    ours, theirs = pair()
    with theirs, socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
        fds = [theirs.fileno()]
        if path:
            listener.bind(path)
            listener.listen()
            fds.append(listener.fileno())
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stagetree.runtime.warm", *map(str, fds), *files],
            pass_fds=fds,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**SAME_ORDER, **os.environ, **how.pop("env", {})},
            start_new_session=True,  # Ctrl-C is not for it
            **how,
        )
    return process, ours


def main() -> int:
    leave_sigterm_to_the_worker()
    keep_for_trainers(os.environ)
    os.environ |= {"PYTORCH_NVML_BASED_CUDA_CHECK": "1", **ONE_THREAD}  # before torch imports NumPy
    fds = [int(each) for each in sys.argv[1:] if each.isdigit()]
    owner, *listeners = (socket.socket(fileno=fd) for fd in fds)
    warm = ForkServer(Wire(owner), *listeners)
    try:
        files = sys.argv[1 + len(fds) :]
        import_before_forking(warm.told() if files == [TOLD] else files)
    except Exception as error:
        return warm.refuse(f"{type(error).__name__}: {error}")
    ours = frozenset(sys.modules)
    for each in list(getattr(weakref.finalize, "_registry", ())):
        each.atexit = False  # torch would take each of its operators apart
    wire = warm.serve()
    if wire is None:
        return end(0, ours)
    end_forks_by_sigterm()
    from stagetree.runtime.child import run

    return end(run(wire), ours)


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


if __name__ == "__main__":
    sys.exit(main())
