"""A trainer's process as a template: it has imported the file and built the trainer, and each chain trains in a fork.

A fork has all that the template has in memory, and nothing that another chain has trained. It shares what the kernel
keeps for the template: the position in an open file, a socket, memory that is mapped to be shared. It has no threads
but one. So a process whose build left any of these is no template, and each chain has a process that builds for itself.
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
from pathlib import Path
from typing import Any

import torch

from stagetree.runtime import file_reads
from stagetree.runtime.fork_server import ForkServer
from stagetree.runtime.huge_pages import gather_memory
from stagetree.runtime.wire import Wire

STANDARD = (0, 1, 2)
"""What a trainer prints goes there: each fork is told where."""

HARMLESS_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")

OURS = ("/memfd:stagetree", "anon_inode:inotify")
"""The files of buffers, and what watches folders."""

TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)


Identity = tuple[int, int, int]
"""Of an open file: its descriptor, its device and its inode."""


@dataclass(frozen=True, slots=True)
class KernelState:
    """What a process has of the kernel that its forks would share: open files, memory mapped to be shared and written,
    and how many temporary files and folders it has made."""

    files: frozenset[Identity]
    mappings: frozenset[str]
    temporary: int

    @classmethod
    def now(cls) -> KernelState:
        """Raises OSError where the system is not Linux."""
        return cls(frozenset(_identities()), frozenset(_shared_mappings()), len(file_reads.temporary_files()))


class TemplateRole:
    """Of one process. is_asked_for: whether it must serve forks from here on."""

    def __init__(self) -> None:
        self._before: KernelState | None = None  # before the trainer's file was imported
        self._at_fork: frozenset[Identity] | None = None  # which files were open when this fork began
        self._ends = 0  # how many functions were registered for the end when the forks began
        self.is_asked_for = False

    def begin(self) -> None:
        """The trainer's file is about to be imported."""
        if self._before is None and sys.platform == "linux":
            self._before = KernelState.now()

    def ask(self, device: str, fds: Collection[int]) -> dict[str, Any]:
        """Why this process cannot be a template, in words that follow "it"; or none, and the files that it has read,
        which forks will not read again. fds: descriptors that came with the question."""
        if self._before is None:
            return {"unsafe": "runs on a system that does not tell what forks would share", "files": []}
        unsafe = "trains on a GPU" if device != "cpu" else why_unsafe(self._before, fds)
        self.is_asked_for = not unsafe
        return {"unsafe": unsafe, "files": [] if unsafe else file_reads.read_files()}

    def serve(self, owner: Wire) -> Wire:
        """In each fork, its connection. The template itself ends here, when its owner has gone."""
        self.is_asked_for = False
        ends_by, drawn = signal.getsignal(signal.SIGTERM), random.getstate()
        gather_memory()
        gc.freeze()  # all objects stay shared with the forks: no look for garbage touches them
        self._ends = atexit._ncallbacks()
        connection = ForkServer(owner).serve()
        if connection is None:
            os._exit(0)  # nothing was trained here, so no function that is registered for the end runs
        signal.signal(signal.SIGTERM, ends_by)  # else it would end by it: see `end_forks_by_sigterm`
        random.setstate(drawn)  # Python begins it anew in each fork
        file_reads.watch_on()
        self._at_fork = frozenset(_identities())
        return connection

    def end_at_once(self) -> None:
        """End this fork, where it has opened nothing, started nothing and registered nothing since.

        The way in which Python ends would copy thousands of pages, to let go of what the kernel frees anyway.
        """
        is_quiet = len(os.listdir("/proc/self/task")) == 1 and not _has_children()
        if self._at_fork is None or not is_quiet or self._ends != atexit._ncallbacks():
            return
        new = {number for number, *_ in set(_identities()) - self._at_fork}
        if not all(os.readlink(f"/proc/self/fd/{number}").startswith(OURS) for number in new):
            return
        for stream in (sys.stdout, sys.stderr):
            stream.flush()
        ctypes.CDLL(None).fflush(None)
        os._exit(0)


def why_unsafe(before: KernelState, fds: Collection[int] = ()) -> str:
    """Why forks of this process would not train as a process of their own: words that follow "it"; empty if they would.

    before: what it held before the trainer's file was imported. fds: descriptors that are not the trainer's.
    """
    _settle()
    if (threads := len(os.listdir("/proc/self/task"))) > 1:
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
            return f"has opened {os.readlink(f'/proc/self/fd/{number}')}"
    return ""


def _settle() -> None:
    """Let go of garbage, and of threads that a library ends before each fork and starts again when it needs them."""
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
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one by which this list was read
            if int(name) not in STANDARD:
                yield int(name), os.fstat(int(name))


def _identities() -> Iterator[Identity]:
    return ((number, status.st_dev, status.st_ino) for number, status in _open_files())


def _shared_mappings() -> Iterator[str]:
    """The writable ones: the address of each, and its file."""
    for line in _mappings():
        place, rights, _, device, inode, *name = line.split(maxsplit=5)
        if rights[1] == "w" and rights[3] == "s":
            yield f"{place} {device} {inode} {''.join(name)}"


def _mappings() -> list[str]:
    return Path("/proc/self/maps").read_text(errors="surrogateescape").splitlines()


def _is_harmless(number: int, status: os.stat_result) -> bool:
    """Whether nothing can be read through it that forks would read in turns: a device without a position, or the file
    of a mapping, such as `np.memmap` keeps open."""
    if stat.S_ISCHR(status.st_mode):
        return os.readlink(f"/proc/self/fd/{number}") in HARMLESS_DEVICES
    if not stat.S_ISREG(status.st_mode) or not _is_read_only(number):
        return False
    return number not in _python_files() and str(status.st_ino) in _mapped_inodes()


def _is_read_only(number: int) -> bool:
    lines = Path(f"/proc/self/fdinfo/{number}").read_text().splitlines()
    flags = next((int(line.split()[1], 8) for line in lines if line.startswith("flags:")), os.O_RDWR)
    return flags & os.O_ACCMODE == os.O_RDONLY


def _mapped_inodes() -> Collection[str]:
    return {line.split(maxsplit=5)[4] for line in _mappings()}


def _python_files() -> set[int]:
    """The descriptors that Python's own files have."""
    found = set[int]()
    for each in gc.get_objects():
        if issubclass(type(each), io.FileIO):
            with suppress(ValueError):  # it is closed
                found.add(each.fileno())
    return found
