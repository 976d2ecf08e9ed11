"""Records which files a trainer reads, since its study may have left some out of `inputs`.

Python's audit hook reports each file that Python opens, here and in forked data-loader workers. Libraries that open
files themselves, such as HDF5 or safetensors, mostly keep or map them, which /proc shows. For files that a library
closes again, the folder was mostly listed before: see `FolderWatch`. A check reads only some files of a data set of
single images. Therefore many files with one ending are reported as a pattern, such as `/data/train/*/*.png`.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from importlib.util import source_from_cache
from itertools import islice
from types import FrameType
from typing import Any

from stagetree.runtime.failures import OURS
from stagetree.source.importing import Imports, installed_folders, is_installed
from stagetree.source.undeclared_input import UndeclaredInput
from stagetree.system.files import files_held
from stagetree.system.folder_events import FolderEvents
from stagetree.system.processes import children

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
        temporary = _temporary_prefix()
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
def _temporary_prefix() -> str:
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


DATA = re.compile(
    r"\.(arrow|avi|bin|bmp|csv|feather|flac|gif|gz|h5|hdf5|jpe?g|jsonl|mat|mp3|mp4|npy|npz|ogg|orc|parquet|png|ppm)"
    r"|\.(tar|tfrecord|tiff?|tsv|txt|wav|webp|zip|zst)",
    re.IGNORECASE,
)
"""Endings of data files. Other programs may read other files in a listed folder."""

MAX_FOLDERS = 512


class FolderWatch:
    """Records data files that are read in the folders that a process lists, also by C libraries.

    A C library such as OpenCV or Arrow opens and closes files without Python. inotify reports when a file in a listed
    folder is closed. Nothing is reported where the system does not report it: see `FolderEvents`.
    """

    def __init__(self) -> None:
        self._folders: dict[int, str] = {}
        self._events = FolderEvents()

    def add(self, folder: str) -> None:
        if len(self._folders) < MAX_FOLDERS:
            number = self._events.watch(folder)
            if number >= 0:
                self._folders[number] = folder

    def closed_files(self) -> Iterator[tuple[bool, str]]:
        """Yield the data files that were closed, and whether each was open for writing; then stop watching."""
        for number, is_written, name in self._events.closed():
            if number in self._folders and DATA.fullmatch(_ending(name)):
                yield is_written, f"{self._folders[number].rstrip('/')}/{name}"
        self._events.close()

    def renew(self) -> None:
        """Watch the same folders anew, in a fork that continues as a process of its own."""
        self._events.close()
        folders, self._folders = list(self._folders.values()), {}
        self._events = FolderEvents()
        for folder in folders:
            self.add(folder)


MAX_REPORTED = 64
"""The most files and patterns to report."""

MIN_PATTERN_FILES = 16
"""More files than this are reported as a pattern; other steps probably read other files beside them."""

MAX_RECORDED = 4096

EVENTS = {"open", "os.listdir", "os.scandir"}
TEMPORARY = {"tempfile.mkstemp", "tempfile.mkdtemp"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ABOUT = (".dist-info/", ".egg-info/")
CODE = {".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link"}

MAX_MESSAGE_BYTES = 4096
"""The longest message of a fork: pipes may interleave longer ones."""


class _Forks:
    """Collects what forks of this process read, through one pipe. When the pipe is full, reports are dropped."""

    def __init__(self) -> None:
        self._begin, self._end = os.pipe()
        os.set_blocking(self._begin, False)
        os.set_blocking(self._end, False)
        self._identity = self._now()

    def report(self, kind: str, name: str) -> None:
        """Report a file from a fork, which may have closed all of its descriptors and reused their numbers."""
        message = os.fsencode(f"{kind}{name}\0")
        with suppress(OSError):
            if len(message) <= MAX_MESSAGE_BYTES and self._now() == self._identity:
                os.write(self._end, message)

    def receive(self) -> Iterator[tuple[str, str]]:
        parts = list[bytes]()
        with suppress(BlockingIOError):
            while part := os.read(self._begin, 2**16):
                parts.append(part)
        yield from ((message[:1], message[1:]) for message in os.fsdecode(b"".join(parts)).split("\0") if message)

    def replace(self) -> _Forks:
        """A new pipe for a process of its own, instead of this one."""
        for end in (self._begin, self._end):
            os.close(end)
        return _Forks()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._end)
        return status.st_dev, status.st_ino


class _Watch:
    """The record of one process and its forks."""

    def __init__(self) -> None:
        self.owner, self.installed = os.getpid(), installed_folders()
        self.forks, self.folders = _Forks(), FolderWatch()

    @property
    def is_in_a_fork(self) -> bool:
        return self.owner != os.getpid()

    def renew(self) -> None:
        """Become the record of a fork that continues as a process of its own."""
        self.owner, self.forks = os.getpid(), self.forks.replace()
        self.folders.renew()


READ, WRITTEN = "r", "w"

uses = FileUses()
"""Uses since the slot has last asked, at the end of each stage."""

_read: dict[str, None] = {}
_written: set[str] = set()
_temporary: list[str] = []
_watch: list[_Watch] = []  # one, of this process or of the one that it is a fork of


def watch() -> None:
    """Start recording the files that this process and its forks open. The audit hook stays."""
    is_first = not _watch
    if is_first or _watch[0].is_in_a_fork:
        _watch[:] = [_Watch()]
    if is_first:
        sys.addaudithook(_note)
    note_torch_files(uses)


def count_uses() -> int:
    """The number of files in `uses`, including the files of forks."""
    for watch in _watch:
        for kind, name in watch.forks.receive():
            _enter(kind, name)
            if not _is_foreign(name, watch.installed):
                uses.record_opening(name, is_written=kind == WRITTEN)
    return uses.count


def renew_watch() -> None:
    """Keep recording in a fork that continues as a process of its own."""
    for watch in _watch:
        watch.renew()


def temporary_files() -> list[str]:
    """The temporary files and folders that this process has made, in order."""
    return _temporary


def data_files() -> list[str]:
    """The data files that were read and not written, with patterns for many. Code, hidden, system and package files are
    left out."""
    return _report(read_files())


def read_files() -> list[str]:
    """As `data_files`, without patterns."""
    count_uses()
    for watch in _watch:
        for is_written, name in watch.folders.closed_files():
            _enter(WRITTEN if is_written else READ, name)
    names, installed = dict.fromkeys((*_read, *_open_files())), installed_folders()
    return [name for name in names if name not in _written and _may_be(name, installed)]


def code_files(code: Imports) -> list[str]:
    """The user's imported module files that no version covers, such as files of an editable install, with patterns for
    many."""
    return _report([name for name in code.uncovered_files() if "/." not in name])


def _report(names: Iterable[str]) -> list[str]:
    merged = _replace_by_patterns(names)
    found = (each for each in merged if UndeclaredInput(each).is_pattern or os.path.isfile(each))
    return list(islice(found, MAX_REPORTED))


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """The audit hook. It must not raise: the error would come out of the trainer's own `open`."""
    if event not in EVENTS:
        if event in TEMPORARY:
            _temporary.append(os.fsdecode(arguments[0]))
        elif event in SPAWNING:
            uses.record_spawn()
        return
    try:
        name = os.path.abspath(os.fsdecode(arguments[0] or "."))
    except (OSError, TypeError, ValueError):  # the working folder is gone, or this is no path
        return
    watch = _watch[0]
    if event != "open":
        if not watch.is_in_a_fork and not _is_foreign(name, watch.installed):
            watch.folders.add(name)
        return
    kind = WRITTEN if arguments[2] & WRITES else READ
    if not _is_foreign(name, watch.installed):
        uses.record_opening(name, is_written=kind == WRITTEN)
    if _enter(kind, name) and watch.is_in_a_fork:
        watch.forks.report(kind, name)


def _enter(kind: str, name: str) -> bool:
    """Record a file. Returns whether it is new and there is room."""
    if name in (entered := _written if kind == WRITTEN else _read) or len(entered) > MAX_RECORDED:
        return False
    if kind == WRITTEN:
        _written.add(name)
    else:
        _read[name] = None
    return True


def _open_files() -> Iterator[str]:
    """Files that this process and its children hold open read-only, or have mapped privately."""
    with suppress(OSError):  # the system does not tell
        for pid in ("self", *children()):
            yield from files_held(pid)


def _may_be(name: str, installed: tuple[str, ...]) -> bool:
    """Whether the name may be that of data. Python itself reads the metadata of packages."""
    return _ending(name) not in CODE and not _is_foreign(name, installed) and not any(each in name for each in ABOUT)


def _is_foreign(name: str, installed: tuple[str, ...]) -> bool:
    """Whether it is hidden, not on a disk, or installed."""
    return not name.startswith("/") or "/." in name or is_installed(name, installed)


def _replace_by_patterns(names: Iterable[str]) -> Iterable[str]:
    """Replace many files with one ending, in a folder or in its subfolders, by patterns."""
    names = _merge(names, _subfolder_pattern, os.path.dirname)  # with many classes, a few files were read of each
    return _merge(_merge(names, _folder_pattern, str), _subfolder_pattern, str)


def _merge(names: Iterable[str], pattern_of: Callable[[str], str], part_of: Callable[[str], str]) -> dict[str, None]:
    """Replace parts by a pattern if there are many, unless a matching file was written."""
    parts = defaultdict[str, set[str]](set)
    for name in names:
        parts[pattern_of(name)].add(part_of(name))
    written = set(map(pattern_of, tuple(_written)))  # other threads may open files
    patterns = {pattern for pattern, its in parts.items() if len(its) > MIN_PATTERN_FILES and pattern not in written}
    return dict.fromkeys(pattern if (pattern := pattern_of(name)) in patterns else name for name in names)


def _folder_pattern(name: str) -> str:
    """A name without an ending is its own pattern: it says too little about the files beside it."""
    return _pattern(name, os.path.dirname(name), "")


def _subfolder_pattern(name: str) -> str:
    return _pattern(name, os.path.dirname(os.path.dirname(name)), "/*")


def _pattern(name: str, folder: str, between: str) -> str:
    if not (ending := _ending(name)) or UndeclaredInput(name).is_pattern:
        return name
    return UndeclaredInput.files(folder, between + ending).path


def _ending(name: str) -> str:
    return os.path.splitext(name)[1]
