"""Records the inputs that a trainer was seen to read and no study declares: data, code, environment variables,
packages.

Nothing promises that such inputs keep their times, so a copy of a file with other times must not count as changed. Each
has a path: see `stagetree.source.undeclared_input`.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from functools import lru_cache
from glob import glob
from hashlib import sha256
from importlib import metadata
from itertools import chain
from typing import Any

from app.input_fingerprints import PART, SMALL, InputMissing, hash_of, look, open_file, readable
from stagetree.source.undeclared_input import PYTHON, UndeclaredInput

Json = dict[str, Any]

SAMPLES, SAMPLE_PART = 64, 2**16
"""How many files of a pattern are sampled, and how many bytes of both ends of each."""


def record_undeclared(paths: Iterable[str]) -> list[Json]:
    """A record of each input, with a stamp that is cheap to compare. Missing files are left out.

    Files that are small together are identified by their content, others by both `ends`.
    """
    records, left = list[Json](), SMALL
    for path in paths:
        with suppress(InputMissing):
            seen = _look(path)
            if is_small := seen.get("bytes", left + 1) <= left:
                left -= seen["bytes"]
            records.append({**seen, **_content(path, is_small=is_small), "found": True})
    return records


def has_changed(record: Mapping[str, Any]) -> bool:
    """Whether an input differs from its record, as far as this machine can tell. Raises `InputMissing`."""
    path, seen = record["path"], _look(record["path"])
    if seen["stamp"] == record["stamp"] or (UndeclaredInput(path).is_variable and not was_seen_on_this_machine(record)):
        return False
    now = _content(path, is_small="sha256" in record)
    return not now or any(record[name] != value for name, value in now.items())


def was_seen_on_this_machine(record: Mapping[str, Any]) -> bool:
    """True also for inputs that are the same on all machines."""
    return record.get("host") in (None, platform.node())


def _look(path: str) -> Json:
    match UndeclaredInput(path):
        case UndeclaredInput(is_variable=True, name=name):
            return {"path": path, "host": platform.node(), "stamp": _hash_of_variable(name)}
        case UndeclaredInput(is_package=True, name=name):
            return {"path": path, "host": platform.node(), "stamp": version_of(name)}
    return _look_at_many(path) if _is_pattern(path) else look(path, is_hashed=False)


def _content(path: str, *, is_small: bool) -> Json:
    """Identifies an input whose stamp differs. Empty for a variable or a package."""
    if (undeclared := UndeclaredInput(path)).is_variable or undeclared.is_package:
        return {}
    if _is_pattern(path):
        return {"ends": _hash_of_samples(path)}
    return {"sha256": hash_of(path)} if is_small else {"ends": _hash_of_ends(path, PART)}


def _hash_of_variable(name: str) -> str:
    value = os.environ.get(name)
    text = "unset" if value is None else f"set {value}"
    return sha256(text.encode("utf-8", "surrogateescape")).hexdigest()


def version_of(module: str) -> str:
    """The version of Python, or of the installed package with a module, without the part that names a device.

    Raises `InputMissing`.
    """
    if module == PYTHON:
        return "{}.{}".format(*sys.version_info)
    stamp = (os.stat(folder).st_mtime_ns for folder in sys.path if os.path.isdir(folder))
    return _installed_version(module, tuple(stamp))


@lru_cache
def _installed_version(module: str, stamp: tuple[int, ...]) -> str:
    """stamp: a cache key, because the metadata of packages are slow to read; it changes whenever one is installed,
    updated or removed. Raises `InputMissing`.
    """
    for name in chain([module], owners(module)):  # the likeliest first
        with suppress(metadata.PackageNotFoundError):
            return str(metadata.version(name)).partition("+")[0]
    raise InputMissing(f"no package {module} is installed")


def owners(module: str) -> Iterator[str]:
    """Names of the distributions that a module belongs to, as `packages_distributions` of `importlib.metadata` has
    them. That parses the lists of all files, which takes half a second; here they are searched as text.
    """
    own = re.compile(rf'^"?{re.escape(module)}(?:[/.].*)?\.(?:py|so|pyd)"?(?:,|$)', re.MULTILINE)
    for each in metadata.distributions():
        if declared := (each.read_text("top_level.txt") or "").split():
            is_owner = module in declared
        else:
            lists = map(each.read_text, ("RECORD", "installed-files.txt", "SOURCES.txt"))
            is_owner = own.search(next(filter(None, lists), "")) is not None
        if is_owner:
            yield each.metadata["Name"]


def _is_pattern(path: str) -> bool:
    return UndeclaredInput(path).is_pattern and not os.path.exists(path)


def _look_at_many(pattern: str) -> Json:
    """The number of files, and a stamp of their names and of the sizes and times of samples.

    It costs as much as listing the data set: reading the sizes of a million files on a network disk would take minutes.
    """
    folder, names = _matching(pattern)
    stamp = _hash_of_names(names)
    for path in _samples(folder, names):
        with readable(path):
            status = os.stat(path)
        stamp.update(f"{status.st_size}\0{status.st_mtime_ns}\n".encode())
    return {"path": pattern, "files": len(names), "stamp": stamp.hexdigest()}


def _hash_of_samples(pattern: str) -> str:
    """A hash of all file names, and of both ends of the samples. Raises `InputMissing`."""
    folder, names = _matching(pattern)
    whole = _hash_of_names(names)
    for path in _samples(folder, names):
        whole.update(_hash_of_ends(path, SAMPLE_PART).encode())
    return whole.hexdigest()


def _matching(pattern: str) -> tuple[str, list[str]]:
    """The folder of a pattern, and the matching names in it. Raises `InputMissing`."""
    folder = UndeclaredInput(pattern).folder
    names = sorted(glob(pattern.removeprefix(folder).lstrip("/"), root_dir=folder))
    if not names:
        raise InputMissing(f"{pattern} is the name of no file")
    return folder, names


def _hash_of_names(names: Iterable[str]) -> hashlib._Hash:
    return sha256("\0".join(names).encode("utf-8", "surrogateescape"))


def _samples(folder: str, names: list[str]) -> Iterator[str]:
    """Evenly spread, and the same each time."""
    number = min(len(names), SAMPLES)
    return (f"{folder}/{names[index * len(names) // number]}" for index in range(number))


def _hash_of_ends(path: str, part: int) -> str:
    """A hash of a file's size, and its first and last part. Raises `InputMissing`."""
    with readable(path), open_file(path) as file:
        digest = sha256(file.read(part))
        end = file.seek(0, os.SEEK_END)
        file.seek(max(end - part, 0))
        digest.update(file.read(part) + str(end).encode())
    return digest.hexdigest()
