"""Which data files a trainer has read, as far as it can be told: its study may have left some out of `inputs`.

Python tells whenever it opens a file. A library that opens one by itself, such as HDF5 or safetensors, mostly holds or
maps it: so do processes of a data loader that live on. Linux tells which files that are.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any

MOST = 64
"""So many files are told, the first ones: a data set of single pictures has its first ones among them."""

MOST_NOTED = 4096

WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC
SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/opt/conda")
CODE = {".py", ".pyc", ".pyi", ".so", ".pth", ".egg-link"}

_read: dict[str, None] = {}
_written: set[str] = set()
_watched: list[bool] = []


def watch() -> None:
    """From here on, note what this process opens. A hook stays, in forks as well."""
    if not _watched:
        _watched.append(True)
        sys.addaudithook(_note)


def data_files() -> list[str]:
    """The files that were read and not written, without code, hidden files, and files of the system and of packages."""
    packages = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    elsewhere = tuple(f"{folder.rstrip('/')}/" for folder in (*SYSTEM, sys.prefix, sys.base_prefix, *packages))
    names = dict.fromkeys((*_read, *_held()))
    return list(islice((name for name in names if name not in _written and _is_data(name, elsewhere)), MOST))


def _note(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: an error here would be raised by the trainer's own `open`."""
    if event != "open" or len(_read) > MOST_NOTED or not isinstance(arguments[0], str | bytes):
        return
    try:
        name = os.path.abspath(os.fsdecode(arguments[0]))
    except (OSError, ValueError):  # the working folder is gone, or this is no path
        return
    if arguments[2] & WRITES:
        _written.add(name)
    else:
        _read[name] = None


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


def _is_data(name: str, elsewhere: tuple[str, ...]) -> bool:
    """elsewhere: folders, each with a slash at its end."""
    if not name.startswith("/") or "/." in name or name.startswith(elsewhere):
        return False
    return os.path.splitext(name)[1] not in CODE and os.path.isfile(name)
