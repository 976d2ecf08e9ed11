"""A trainer process as a template: it has built the trainer, and each chain trains in a fork of it.

A fork inherits the template's memory and nothing that another chain has trained. But it shares kernel objects: file
offsets, sockets, shared memory mappings. It has one thread. A process whose build left any of these is no template, and
each chain gets a process of its own.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import os
import random
import signal
import stat
import sys
import threading
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass

import torch

from stagetree.runtime.fork_server import ForkServer
from stagetree.runtime.reads import file_reads
from stagetree.runtime.wire import Wire
from stagetree.system.files import ANONYMOUS, descriptors, is_read_only, lists_descriptors, mappings, target
from stagetree.system.memory import gather_memory
from stagetree.system.processes import thread_count

STANDARD = (0, 1, 2)
"""The standard streams, which each fork redirects."""

HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

OURS = (ANONYMOUS, "anon_inode:inotify")
"""Our own files: checkpoint buffers, and the folder watch."""

TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)

FORKS_BEFORE_GATHERING = 20
"""`gather_memory` takes half a second, and saves the 25 ms that a fork and its exit take longer without it: a template
that serves fewer forks does better without.
"""

Identity = tuple[int, int, int]
"""An open file: its descriptor, device and inode."""


@dataclass(frozen=True, slots=True)
class KernelState:
    """Kernel objects that forks would share: open files and writable shared mappings, and the number of temporary files
    and folders made."""

    files: frozenset[Identity]
    mappings: frozenset[str]
    temporary: int

    @classmethod
    def now(cls) -> KernelState:
        """Raises OSError where the system does not tell."""
        return cls(frozenset(_identities()), frozenset(_shared_mappings()), len(file_reads.temporary_files()))


class TemplateRole:
    """A process's role as a template. is_asked_for: it must serve forks next."""

    def __init__(self) -> None:
        self._before: KernelState | None = None  # taken before the trainer's file is imported
        self._at_fork: frozenset[Identity] | None = None  # the files open when this fork began
        self._ends = 0  # the number of exit handlers when the first fork began
        self._forks = 0
        self.is_asked_for = False

    def begin(self) -> None:
        """Record the kernel state before the trainer's file is imported."""
        if self._before is None and lists_descriptors():
            self._before = KernelState.now()

    def ask(self, device: str, fds: Collection[int]) -> tuple[str, list[str]]:
        """Why this process cannot be a template, in words that follow "it", or an empty text; and the files that it has
        read, which forks will not read again. fds: descriptors that came with the command."""
        if self._before is None:
            return "runs on a system that does not tell what forks would share", []
        unsafe = "trains on a GPU" if device != "cpu" else unsafe_reason(self._before, fds)
        self.is_asked_for = not unsafe
        return unsafe, [] if unsafe else file_reads.read_files()

    def serve(self, owner: Wire) -> Wire:
        """Serve forks. Returns only in a fork, with its connection; the template exits when its owner is gone."""
        self.is_asked_for = False
        ends_by, drawn = signal.getsignal(signal.SIGTERM), random.getstate()
        gc.freeze()  # keeps objects shared with the forks: garbage collection would copy their pages
        self._ends = atexit._ncallbacks()
        connection = ForkServer(owner, on_fork=self.note_fork).serve()
        if connection is None:
            os._exit(0)  # nothing was trained here, so no exit handler should run
        signal.signal(signal.SIGTERM, ends_by)  # undo the handler of `restore_sigterm_in_forks`
        random.setstate(drawn)  # Python reseeds it in each fork
        file_reads.renew_watch()
        self._at_fork = frozenset(_identities())
        return connection

    def note_fork(self) -> None:
        """Called between requests: the next fork was made ahead."""
        self._forks += 1
        if self._forks == FORKS_BEFORE_GATHERING:
            gather_memory()

    def end_at_once(self) -> None:
        """Exit this fork right away, if it has opened, started and registered nothing.

        A regular exit of Python would copy thousands of pages only to free them.
        """
        if self._at_fork is None or self._ends != atexit._ncallbacks():
            return
        if thread_count() > 1 or _has_children():
            return
        new = {number for number, *_ in set(_identities()) - self._at_fork}
        if not all(target(number).startswith(OURS) for number in new):
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(0)


def unsafe_reason(before: KernelState, fds: Collection[int]) -> str:
    """Why forks would not train like a process of their own, in words that follow "it"; empty if they would.

    before: the state before the trainer's file was imported. fds: descriptors that are not the trainer's.
    """
    _settle()
    if (threads := thread_count()) > 1:
        known = ", ".join(each.name for each in threading.enumerate() if each is not threading.main_thread())
        return f"has started {threads - 1} thread{'s' if threads > 2 else ''}" + (f" ({known})" if known else "")
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return "has started CUDA"
    if _has_children():
        return "has started a process"
    if any(signal.getitimer(each)[0] for each in TIMERS) or signal.getsignal(signal.SIGCHLD) != signal.SIG_DFL:
        return "has set a timer, or a handler for SIGCHLD"
    if made := file_reads.temporary_files()[before.temporary :]:
        return f"has made {made[0]}, a temporary file or folder"
    if names := [each.rpartition(" ")[2] or "memory" for each in _shared_mappings() if each not in before.mappings]:
        return f"has mapped {names[0]} to be shared and written"
    for number, status in _open_files():
        is_new = number not in fds and (number, status.st_dev, status.st_ino) not in before.files
        if is_new and not _is_harmless(number, status):
            return f"has opened {target(number)}"
    return ""


def _settle() -> None:
    """Collect garbage, and stop threads that a library ends before each fork and restarts on demand."""
    gc.collect()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    ctypes.CDLL(None).fflush(None)
    pid = os.fork()
    if pid == 0:
        os._exit(0)
    os.waitpid(pid, 0)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _open_files() -> Iterator[tuple[int, os.stat_result]]:
    return (each for each in descriptors() if each[0] not in STANDARD)


def _identities() -> Iterator[Identity]:
    return ((number, status.st_dev, status.st_ino) for number, status in _open_files())


def _shared_mappings() -> Iterator[str]:
    """Writable shared mappings: address and file."""
    for line in mappings():
        place, rights, _, device, inode, *name = line.split(maxsplit=5)
        if rights[1] == "w" and rights[3] == "s":
            yield f"{place} {device} {inode} {''.join(name)}"


def _is_harmless(number: int, status: os.stat_result) -> bool:
    """Whether forks cannot disturb each other through it: a device without an offset, or the file of a mapping such as
    `np.memmap` keeps open."""
    if stat.S_ISCHR(status.st_mode):
        return target(number) in HARMLESS_DEVICES
    if not stat.S_ISREG(status.st_mode) or not is_read_only(number):
        return False
    return number not in _python_files() and str(status.st_ino) in {line.split(maxsplit=5)[4] for line in mappings()}


def _python_files() -> set[int]:
    """The descriptors of Python's file objects."""
    found = set[int]()
    for each in gc.get_objects():
        if issubclass(type(each), io.FileIO):
            with suppress(ValueError):  # it is closed
                found.add(each.fileno())
    return found
