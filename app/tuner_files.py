"""Tuners from Python files that the operator names, never a client: `STAGETREE_TUNERS=mine.py,theirs.py`."""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import ModuleType

from app.tuning.tuners.base import Tuner
from app.tuning.tuners.custom import REGISTERED, Registered


class TunerFileError(Exception):
    """A tuner file that cannot be used; the message says which and why."""


def register(files: Iterable[str]) -> dict[str, str]:
    """Register the tuners of all files; the version of each by its name. Raises `TunerFileError`."""
    found: dict[str, Registered] = {}
    for path in files:
        for name, registered in load(path).items():
            if name in found:
                raise TunerFileError(f"{path}: there is another tuner named {name!r}; names must differ")
            found[name] = registered
    REGISTERED.update(found)
    return {name: registered.version for name, registered in found.items()}


def load(path: str) -> dict[str, Registered]:
    """The tuners of one file by name. Raises `TunerFileError`; what the file raises when it is run is said in it."""
    try:
        source = Path(path).read_bytes()
    except OSError as error:
        raise TunerFileError(f"{path}: {error.strerror}") from None
    digest = hashlib.sha256(source).hexdigest()[:16]
    found = {
        str(tuner.__dict__["name"]): Registered(tuner, str(getattr(tuner, "version", digest)))
        for tuner in _tuners(_run(Path(path), digest))
    }
    if not found:
        raise TunerFileError(f'{path} holds no tuner: a subclass of Tuner with name = "..." in its body')
    return found


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
