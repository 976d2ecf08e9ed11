"""Which files a trainer's process opens while it trains, with their times: an edit or another trial may change them
meanwhile.

Each file that is opened for reading is noted with its times and size at that moment. A file that this process has
written before is its own. `stagetree.runtime.file_reads` hears of each opening; the slot asks at the end of each stage.
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

MOST_FILES = 2048
"""Up to so many files are noted between two questions."""

TRAINING = frozenset({"train", "train_together", "evaluate"})
"""The commands during which a trainer writes for one trial. Before, it writes the same for every trial."""

COARSE_SECONDS = 0.05
"""The times of files are of a clock that is behind by some milliseconds."""

SPAWNING = frozenset({"subprocess.Popen", "os.system", "os.posix_spawn", "os.exec"})
SYSTEM = ("/dev/", "/proc/", "/sys/", "/run/")

Mark = tuple[int, int, int]
"""The size of a file, when it was changed last, and its number on the disk."""


@dataclass(slots=True)
class ReadFile:
    """A file as it was when it was opened first. changed_at: Unix seconds, also of a link that was set anew.

    is_changed: whether it was another one when it was opened again.
    """

    mark: Mark
    changed_at: float
    is_changed: bool = False


@dataclass(slots=True)
class FileUses:
    """read: the files that were opened since the slot has asked. written: its own files, and if written in training.

    marks: of all files that the process has read, as they were last.
    """

    read: dict[str, ReadFile] = field(default_factory=dict)
    written: dict[str, bool] = field(default_factory=dict)
    marks: dict[str, Mark] = field(default_factory=dict)
    is_training: bool = False
    spawned_at: float | None = None

    def begin(self, command: str) -> None:
        self.is_training = command in TRAINING

    def spawned(self) -> None:
        """Another program was started: it may write files that are read then."""
        self.spawned_at = self.spawned_at or time.time() - COARSE_SECONDS

    def opened(self, name: str, *, is_written: bool) -> None:
        """A file is opened. Raises nothing: this is called within the trainer's own `open`."""
        if len(self.read) + len(self.written) > MOST_FILES or name.startswith(SYSTEM):
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
        if name not in self.read and _is_asked_by_us():
            return
        if self.spawned_at is not None and changed_at >= self.spawned_at:
            self.written[name] = self.is_training
            return
        self.marks[name] = mark
        found = self.read.setdefault(name, ReadFile(mark, changed_at))
        found.is_changed |= before not in (None, mark)
        found.changed_at = max(found.changed_at, changed_at)

    def take(self, near: Iterable[str]) -> dict[str, Any]:
        """The files since the last time, for the slot; and modules, which the process keeps.

        near: the folders whose files count although they are temporary, such as the trainer's.
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
        """How many files there are to ask for."""
        return len(self.read) + len(self.written)


@cache
def _temporary() -> str:
    return os.path.realpath(tempfile.gettempdir()) + os.sep


def _is_near(name: str, folders: Iterable[str]) -> bool:
    return any(name.startswith(folder) for folder in folders)


def _source_of(name: str) -> str:
    """The file that a cached one of Python was made of."""
    with suppress(ValueError, NotImplementedError):
        return source_from_cache(name)
    return name


def _is_asked_by_us() -> bool:
    """Whether the nearest code that is of no library is this package's, and not the user's."""
    frame: FrameType | None = sys._getframe(4)
    if frame is not None and frame.f_code.co_filename.startswith("<frozen importlib"):
        return False  # of a module that no version covers: the others are imported from memory
    while frame is not None and not (file := frame.f_code.co_filename).startswith(OURS):
        if not (file.startswith(("<frozen", STANDARD)) or is_installed(file, installed_folders())):
            return False
        frame = frame.f_back
    return True


STANDARD = os.path.dirname(os.__file__) + os.sep


def note_torch_files(uses: FileUses) -> None:
    """Torch opens the files that it saves by itself, and Python does not hear of that."""
    serialization = getattr(sys.modules.get("torch"), "serialization", None)
    writer = getattr(serialization, "_open_zipfile_writer_file", None)
    if writer is None or hasattr(writer, "_is_noted"):
        return
    begin = writer.__init__

    def noted(self: Any, name: Any, *more: Any, **named: Any) -> None:
        with suppress(OSError, TypeError, ValueError):
            uses.opened(os.path.abspath(os.fspath(name)), is_written=True)
        begin(self, name, *more, **named)

    writer.__init__, writer._is_noted = noted, True
