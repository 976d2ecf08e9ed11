"""Records when a trainer's process opens files while it trains: an edit or another trial may change them meanwhile.

Each file is recorded with its times and size when it is opened for reading. A file that this process wrote before is
its own. `stagetree.runtime.reads.file_reads` reports each opening; the slot asks at the end of each stage.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import source_from_cache
from types import FrameType
from typing import Any

from stagetree.runtime.failures import OURS
from stagetree.source.importing import installed_folders, is_installed

MAX_FILES = 2048
"""The most files to record between two questions of the slot."""

TRAINING = frozenset({"train", "train_together", "evaluate"})
"""Commands during which a trainer writes for one trial. Before them, it writes the same for every trial."""

COARSE_SECONDS = 0.05
"""File times come from a clock that lags by some milliseconds."""

SPAWNING = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
SYSTEM = ("/dev/", "/proc/", "/sys/", "/run/")

Mark = tuple[int, int, int]
"""A file's size, modification time and inode."""


@dataclass(slots=True)
class ReadFile:
    """A file when it was first opened. changed_at: Unix seconds; includes changes of a symbolic link.

    is_changed: it was a different file when it was opened again.
    """

    mark: Mark
    changed_at: float
    is_changed: bool = False


@dataclass(slots=True)
class FileUses:
    """read: files opened since the slot has last asked. written: the process's own files, and whether in training.

    marks: the latest marks of all files that the process has read.
    """

    read: dict[str, ReadFile] = field(default_factory=dict)
    written: dict[str, bool] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    is_training: bool = False
    spawned_at: float | None = None

    def begin(self, command: str) -> None:
        self.is_training = command in TRAINING

    def record_spawn(self) -> None:
        """Another program was started, which may write files that are read later."""
        self.spawned_at = self.spawned_at or time.time() - COARSE_SECONDS

    def record_opening(self, name: str, *, is_written: bool) -> None:
        """Record an opening. Raises nothing, since it is called within the trainer's own `open`."""
        if len(self.read) + len(self.written) > MAX_FILES or name.startswith(SYSTEM):
            return
        if "/__pycache__/" in name:
            name, is_written = _source_of(name), False
        if is_written:
            self.written[name] = self.written.get(name, False) or self.is_training
            self.marks.pop(name, None)
        elif name not in self.written:
            with suppress(OSError):
                self._read(name)

    def _read(self, name: str) -> None:
        status = os.stat(name)
        mark = status.st_size, status.st_mtime_ns, status.st_ino
        before = self.marks.get(name)
        if before == mark and name in self.read:
            return
        changed_at = max(status.st_ctime, os.lstat(name).st_ctime)
        if name not in self.read and _is_opened_by_stagetree():
            return
        if self.spawned_at is not None and changed_at >= self.spawned_at:
            self.written[name] = self.is_training
            return
        self.marks[name] = mark
        found = self.read.setdefault(name, ReadFile(mark, changed_at))
        found.is_changed |= before not in (None, mark)
        found.changed_at = max(found.changed_at, changed_at)

    def take(self, near: Iterable[str]) -> dict[str, Any]:
        """The uses since the last call, for the slot, including all imported modules.

        near: folders whose files count even if they are temporary, such as the trainer's.
        """
        read, written = self.read, self.written
        self.read, self.written = {name: each for name, each in read.items() if name.endswith(".py")}, {}
        here = [f"{folder}/" for folder in near]
        temporary = _temporary()
        return {
            "read": [
                [name, each.changed_at, each.is_changed]
                for name, each in read.items()
                if _is_near(name, here) or not name.startswith(temporary)
            ],
            "written": [[name, trained] for name, trained in written.items() if _is_near(name, here)],
        }

    @property
    def count(self) -> int:
        """The number of files to report."""
        return len(self.read) + len(self.written)


@cache
def _temporary() -> str:
    return os.path.realpath(tempfile.gettempdir()) + os.sep


def _is_near(name: str, folders: Iterable[str]) -> bool:
    return any(name.startswith(folder) for folder in folders)


def _source_of(name: str) -> str:
    """The source file of a cached one."""
    with suppress(ValueError, NotImplementedError):
        return source_from_cache(name)
    return name


def _is_opened_by_stagetree() -> bool:
    """Whether stagetree opens the file itself, judged by the nearest frame outside of libraries."""
    frame: FrameType | None = sys._getframe(4)
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return False  # a module that no version covers; covered ones are imported from memory
    while frame is not None and not (file := frame.f_code.co_filename).startswith(OURS):
        if not (file.startswith(("<frozen", STANDARD)) or is_installed(file, installed_folders())):
            return False
        frame = frame.f_back
    return True


STANDARD = os.path.dirname(os.__file__) + os.sep


def note_torch_files(uses: FileUses) -> None:
    """Record the files that torch saves: it opens them outside of Python."""
    serialization = getattr(sys.modules.get("torch"), "serialization", None)
    writer = getattr(serialization, "_open_zipfile_writer_file", None)
    if writer is None or hasattr(writer, "_is_noted"):
        return
    begin = writer.__init__

    def record_and_begin(self: Any, name: Any, *more: Any, **named: Any) -> None:
        with suppress(OSError, TypeError, ValueError):
            uses.record_opening(os.path.abspath(os.fspath(name)), is_written=True)
        begin(self, name, *more, **named)

    writer.__init__, writer._is_noted = record_and_begin, True
