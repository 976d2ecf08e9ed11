"""The trainer class out of a user's file. A process serves one such file, so that no two users' modules ever meet.

The file is imported as Python would if its user ran it: its folder, or the folder that holds its package, comes first
on the path, and the module has its natural name. So its neighbours and relative imports are found, and a process that
it starts can import it by that name.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

from stagetree.trainer import Trainer


class TrainerFileError(Exception):
    """A trainer file that cannot be used; the message says which and why."""


def load_trainer(path: str | Path, name: str) -> type[Trainer]:
    """The trainer of that name in a file. Raises `TrainerFileError`; whatever the file raises comes through."""
    file = Path(path).resolve()
    if not file.is_file():
        raise TrainerFileError(f"{path}: there is no such file on the machine of this worker")
    for value in vars(_module(file)).values():
        if isinstance(value, type) and issubclass(value, Trainer) and value.__dict__.get("name") == name:
            return value
    raise TrainerFileError(f"{path} holds no subclass of Trainer whose name is {name!r}")


def natural_name(file: Path) -> tuple[Path, str]:
    """The folder to import a file from, and the name to import it by: `package.module` inside a package."""
    parts = [] if file.name == "__init__.py" else [file.stem]
    folder = file.parent
    while (folder / "__init__.py").exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts)


def _module(file: Path) -> ModuleType:
    folder, name = natural_name(file)
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))
    importlib.invalidate_caches()
    if "." in file.stem:  # which no import statement can say
        return _under_another_name(name, file)
    module = sys.modules.get(name)
    if module is None and _is_from(importlib.util.find_spec(name), file):
        return importlib.import_module(name)
    return module if module is not None and _is_from(module.__spec__, file) else _under_another_name(name, file)


def _is_from(spec: object, file: Path) -> bool:
    origin = getattr(spec, "origin", None)
    return isinstance(origin, str) and Path(origin).resolve() == file


def _under_another_name(name: str, file: Path) -> ModuleType:
    """A file called as a module that is there already, such as json.py: that one must stay what it is."""
    other = f"trainer_{name.replace('.', '_')}"
    if other not in sys.modules:
        spec = importlib.util.spec_from_file_location(other, file)
        assert spec is not None and spec.loader is not None  # the name ends in .py
        sys.modules[other] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[other]
            raise
    return sys.modules[other]
