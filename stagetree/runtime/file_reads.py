"""Which files a trainer has read, as far as it can be told: its study may have left some out of `inputs`.

Python tells whenever it opens a file, here and in the processes of a data loader, which are forks. A library that opens
one by itself, such as HDF5 or safetensors, mostly holds or maps it: Linux tells which files that are. Where a library
closes it, the folder was mostly listed before: see `FolderWatch`. Of a data set of single pictures a check reads a few,
so many files of one kind are told as a pattern, such as `/data/train/*/*.png`.
"""

from __future__ import annotations

import os
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

from stagetree.runtime.file_uses import SPAWNING, FileUses, note_torch_files
from stagetree.runtime.folder_watch import FolderWatch
from stagetree.source.importing import Imports, installed_folders, is_installed
from stagetree.undeclared_input import Unnamed

MOST = 64
"""So many files and patterns are told, the first ones."""

MANY = 16
"""A pattern stands for more files than these: others beside them are read, too, in other steps."""

MOST_NOTED = 4096

EVENTS = {"open", "os.listdir", "os.scandir"}
TEMPORARY = {"tempfile.mkstemp", "tempfile.mkdtemp"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
ABOUT = (".dist-info/", ".egg-info/")
CODE = {".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link"}

MOST_BYTES = 4096
"""Of a message of a fork: a longer one might be mixed with another's."""


class _Forks:
    """What the forks of this process read: each tells it through one pipe, and tells nothing once that is full."""

    def __init__(self) -> None:
        self._begin, self._end = os.pipe()
        os.set_blocking(self._begin, False)
        os.set_blocking(self._end, False)
        self._identity = self._now()

    def tell(self, kind: str, name: str) -> None:
        """In a fork. It may have closed all its files, and have others under their numbers."""
        message = os.fsencode(f"{kind}{name}\0")
        with suppress(OSError):
            if len(message) <= MOST_BYTES and self._now() == self._identity:
                os.write(self._end, message)

    def told(self) -> Iterator[tuple[str, str]]:
        parts = list[bytes]()
        with suppress(BlockingIOError):
            while part := os.read(self._begin, 2**16):
                parts.append(part)
        yield from ((message[:1], message[1:]) for message in os.fsdecode(b"".join(parts)).split("\0") if message)

    def renewed(self) -> _Forks:
        """One of another process, in the place of this one."""
        for end in (self._begin, self._end):
            os.close(end)
        return _Forks()

    def _now(self) -> tuple[int, int]:
        status = os.fstat(self._end)
        return status.st_dev, status.st_ino


class _Watch:
    """Of one process and its forks."""

    def __init__(self) -> None:
        self.owner, self.installed = os.getpid(), installed_folders()
        self.forks, self.folders = _Forks(), FolderWatch()

    @property
    def is_in_a_fork(self) -> bool:
        return self.owner != os.getpid()

    def renew(self) -> None:
        """Be that of another process, as this one was before it was forked."""
        self.owner, self.forks = os.getpid(), self.forks.renewed()
        self.folders.renew()


READ, WRITTEN = "r", "w"

uses = FileUses()
"""Of this process, for the slot that asks at the end of each stage."""

_read: dict[str, None] = {}
_written: set[str] = set()
_temporary: list[str] = []
_watch: list[_Watch] = []  # one, of this process or of the one that it is a fork of


def watch() -> None:
    """From here on, note what this process and its forks open. A hook stays."""
    is_first = not _watch
    if is_first or _watch[0].is_in_a_fork:
        _watch[:] = [_Watch()]
    if is_first:
        sys.addaudithook(_note)
    note_torch_files(uses)


def opened() -> int:
    """How many files there are in `uses`, with those of forks."""
    for watch in _watch:
        for kind, name in watch.forks.told():
            _enter(kind, name)
            if not _is_foreign(name, watch.installed):
                uses.opened(name, is_written=kind == WRITTEN)
    return uses.count


def watch_on() -> None:
    """In a fork that goes on as a process of its own: watch the same folders, apart from the template."""
    for watch in _watch:
        watch.renew()


def temporary_files() -> list[str]:
    """The temporary files and folders that this process has made, in the order in which it has."""
    return _temporary


def data_files() -> list[str]:
    """The files that were read and not written, without code, hidden files, and files of the system and of packages;
    and patterns of many."""
    return _told(read_files())


def read_files() -> list[str]:
    """As `data_files`, without patterns."""
    opened()
    for watch in _watch:
        for is_written, name in watch.folders.closed():
            _enter(WRITTEN if is_written else READ, name)
    installed = installed_folders()
    return [name for name in dict.fromkeys((*_read, *_held())) if name not in _written and _may_be(name, installed)]


def code_files(code: Imports) -> list[str]:
    """The files of the user's modules that this process has imported and no version covers, such as modules of a
    package that is installed in place; and patterns of many."""
    return _told([name for name in code.beyond() if "/." not in name])


def _told(names: Iterable[str]) -> list[str]:
    return list(islice((each for each in _by_pattern(names) if Unnamed(each).is_pattern or os.path.isfile(each)), MOST))


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: an error here would be raised by the trainer's own `open`."""
    if event not in EVENTS:
        if event in TEMPORARY:
            _temporary.append(os.fsdecode(arguments[0]))
        elif event in SPAWNING:
            uses.spawned()
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
        uses.opened(name, is_written=kind == WRITTEN)
    if _enter(kind, name) and watch.is_in_a_fork:
        watch.forks.tell(kind, name)


def _enter(kind: str, name: str) -> bool:
    """Whether it is a new one, and there is room for it."""
    if name in (entered := _written if kind == WRITTEN else _read) or len(entered) > MOST_NOTED:
        return False
    if kind == WRITTEN:
        _written.add(name)
    else:
        _read[name] = None
    return True


def _held() -> Iterator[str]:
    """Files that this process and its children have open for reading alone, or have mapped without sharing changes."""
    with suppress(OSError):  # no Linux
        children = [pid for task in Path("/proc/self/task").iterdir() for pid in _words(task / "children")]
        for process in (Path("/proc") / pid for pid in ("self", *children)):
            yield from _open_in(process)
            yield from _mapped_in(process)


def _open_in(process: Path) -> Iterator[str]:
    with suppress(OSError):  # it has ended
        for number in sorted(os.listdir(process / "fd"), key=int):
            with suppress(OSError):
                name = os.readlink(f"{process}/fd/{number}")
                if not name.startswith("/"):
                    continue  # a pipe or a socket
                flags = _words(process / "fdinfo" / number)
                if "flags:" in flags and not int(flags[flags.index("flags:") + 1], 8) & WRITES:
                    yield name


def _mapped_in(process: Path) -> Iterator[str]:
    with suppress(OSError):
        for line in (process / "maps").read_text(errors="surrogateescape").splitlines():
            _, rights, _, _, _, *name = line.split(maxsplit=5)
            if name and rights != "rw-s":
                yield name[0]


def _words(path: Path) -> list[str]:
    with suppress(OSError):
        return path.read_text().split()
    return []


def _may_be(name: str, installed: tuple[str, ...]) -> bool:
    """Whether it may be data, by its name. Python itself reads the metadata of packages."""
    return _ending(name) not in CODE and not _is_foreign(name, installed) and not any(each in name for each in ABOUT)


def _is_foreign(name: str, installed: tuple[str, ...]) -> bool:
    """Whether it is hidden, none of the disk's, or installed."""
    return not name.startswith("/") or "/." in name or is_installed(name, installed)


def _by_pattern(names: Iterable[str]) -> Iterable[str]:
    """The same, with patterns for files of one ending: those in a folder, and those in the folders of one folder."""
    names = _merged(names, _of_folders, os.path.dirname)  # of very many classes, each has a few that were read
    return _merged(_merged(names, _of_folder, str), _of_folders, str)


def _merged(names: Iterable[str], pattern_of: Callable[[str], str], part_of: Callable[[str], str]) -> dict[str, None]:
    """The same, with a pattern for many parts of it, unless a file of the pattern was written."""
    parts = defaultdict[str, set[str]](set)
    for name in names:
        parts[pattern_of(name)].add(part_of(name))
    written = set(map(pattern_of, tuple(_written)))  # other threads may open files
    patterns = {pattern for pattern, its in parts.items() if len(its) > MANY and pattern not in written}
    return dict.fromkeys(pattern if (pattern := pattern_of(name)) in patterns else name for name in names)


def _of_folder(name: str) -> str:
    """Names without an ending are their own, as patterns are: they say too little of what lies beside them."""
    return _pattern(name, os.path.dirname(name), "")


def _of_folders(name: str) -> str:
    return _pattern(name, os.path.dirname(os.path.dirname(name)), "/*")


def _pattern(name: str, folder: str, between: str) -> str:
    ending = _ending(name)
    return Unnamed.files(folder, between + ending).path if ending and not Unnamed(name).is_pattern else name


def _ending(name: str) -> str:
    return os.path.splitext(name)[1]
