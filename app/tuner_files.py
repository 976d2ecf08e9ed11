"""The tuners of this installation, from Python files named by the operator (`STAGETREE_TUNERS=mine.py,theirs.py`).

The files are run.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from app.search.tuners.base import REGISTERED, Registered, Tuner

T = TypeVar("T")


class TunerFileError(Exception):
    """A tuner file that cannot be used; the message names it and the reason."""


def register(files: Iterable[str]) -> dict[str, str]:
    """Register the tuners of all files; the version of each by its name. Raises `TunerFileError`."""
    registered_now: dict[str, Registered] = {}
    for path in files:
        for name, registered in load(path).items():
            if name in registered_now:
                raise TunerFileError(f"{path}: there is another tuner named {name!r}; names must differ")
            registered_now[name] = registered
    REGISTERED.update(registered_now)
    return {name: registered.version for name, registered in registered_now.items()}


def call_with_tuners(files: Sequence[str], do: Callable[..., T], *given: Any) -> T:
    """Call a function in a new process, where users' tuners are not registered yet. Raises `TunerFileError`."""
    register(files)
    return do(*given)


def load(path: str) -> dict[str, Registered]:
    """The tuners of one file by name. Raises `TunerFileError`, also for an exception of the file's code."""
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise TunerFileError(f"{path}: {error.strerror}") from None
    digest = hashlib.sha256(source).hexdigest()[:16]
    registered = {
        str(tuner.__dict__["name"]): Registered(tuner, str(getattr(tuner, "version", digest)))
        for tuner in _tuners(_run(Path(path), digest))
    }
    if not registered:
        raise TunerFileError(f'{path} holds no tuner: a subclass of Tuner with name = "..." in its body')
    return registered


def _tuners(module: ModuleType) -> Iterator[type[Tuner]]:
    for value in vars(module).values():
        if isinstance(value, type) and issubclass(value, Tuner) and isinstance(value.__dict__.get("name"), str):
            yield value


def _run(path: Path, digest: str) -> ModuleType:
    name = f"stagetree_tuners_{digest}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise TunerFileError(f"{path} is not a Python file")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        del sys.modules[name]
        raise TunerFileError(f"{path} cannot be run: {type(error).__name__}: {error}") from error
    return module
