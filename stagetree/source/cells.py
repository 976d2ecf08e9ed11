"""The source of a trainer in a notebook cell or a script, as a folder that a worker can run.

It contains the class, the definitions that the class uses, and copies of the user's own modules that it imports. The
folder is named by a hash of its content, so that changed code is another trainer.
"""

from __future__ import annotations

import hashlib
import inspect
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from stagetree.atomic_file import atomic_file
from stagetree.errors import StagetreeError
from stagetree.functions import FunctionTrainer
from stagetree.source.definitions import (
    UNNAMED,
    definition_of,
    global_names,
    home_of,
    imports_in,
    is_imported,
    is_plain,
    namespace_of,
    own_file,
    packages,
    set_name_placeholder,
)
from stagetree.source.discovery import ENTRIES
from stagetree.trainer import Trainer

_MAX_LENGTH = 100_000
"""The most characters of a value that is written into the source."""


class SourceCollector:
    """Definitions by name, in order of dependence, and the user's own modules by path."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.modules: dict[str, str] = {}

    def trainer(self, cls: type) -> str:
        """The class itself, renamed to its trainer name."""
        if is_imported(cls):
            self.add(cls.__name__, cls, cls.__name__)
            text = f"{self.texts.pop(cls.__name__)}\n\n\nclass Renamed({cls.__name__}):\n    pass"
        else:
            text = definition_of(cls, cls.__name__)
            self._needs(text, namespace_of(cls), cls.__name__)
        return set_name_placeholder(text)

    def functions(self, cls: type[FunctionTrainer]) -> str:
        """The source of a function trainer, as a class."""
        lines = []
        for field in ("build", "step", "measure"):
            function = inspect.getattr_static(cls, field).__func__
            self.add(function.__name__, function, cls.__name__)
            lines.append(f"    {field} = staticmethod({function.__name__})")
        head = "from stagetree.functions import FunctionTrainer"
        return f'{head}\n\n\nclass Functions(FunctionTrainer):\n    name = "{UNNAMED}"\n' + "\n".join(lines)

    def add(self, name: str, value: Any, user: str) -> None:
        """Add a definition of `name` as `value`. user: what needs it, for error messages."""
        if name in self.texts:
            return
        self.texts[name] = ""  # it may refer to itself
        text = self._text(name, value, user)
        del self.texts[name]
        self.texts[name] = text

    def _text(self, name: str, value: Any, user: str) -> str:
        if isinstance(value, ModuleType):
            self._keep(value.__name__)
            is_named_so = "." not in value.__name__ and name == value.__name__
            return f"import {name}" if is_named_so else f"import {value.__name__} as {name}"
        if isinstance(value, type | FunctionType) and not is_imported(value):
            text = definition_of(value, user)
            self._needs(text, namespace_of(value), name)
            return text
        if isinstance(value, type | FunctionType) or (home := home_of(value, name)):
            is_named = hasattr(value, "__qualname__")
            module, attribute = (value.__module__, value.__qualname__) if is_named else (home, name)
            self._keep(module)
            return f"from {module} import {attribute}" + (f" as {name}" if name != attribute else "")
        if is_plain(value) and len(text := repr(value)) <= _MAX_LENGTH:
            return f"{name} = {text}"
        kind = type(value).__name__
        where = f"make it inside {user}, or save it to a file and hand over the path in runtime_args (docs/sdk.md)"
        raise StagetreeError(f"{user} uses {name} of type {kind}, which cannot be written into its source: {where}")

    def _needs(self, text: str, namespace: Mapping[str, Any], user: str) -> None:
        for name in sorted(global_names(text)):
            if name in namespace:
                self.add(name, namespace[name], user)

    def _keep(self, name: str) -> None:
        """Copy a module of the user's own, and the user's modules that it imports."""
        for part in packages(name):
            module = sys.modules.get(part)
            path = own_file(module)
            if path is None:
                continue
            place = part.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
            if place not in self.modules:
                self.modules[place] = path.read_text(encoding="utf-8")
                package = part if path.name == "__init__.py" else part.rpartition(".")[0]
                for imported in imports_in(self.modules[place], package):
                    self._keep(imported)


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """name: of the trainer in studies. folder: the name of the folder. entry: the file with the trainer.

    files: by their paths in the folder.
    """

    name: str
    folder: str
    entry: str
    files: Mapping[str, str]

    def write(self, under: Path) -> None:
        """Write the folder, the trainer's file last, unless it exists."""
        for path, text in sorted(self.files.items(), key=lambda file: file[0] == self.entry):
            target = under / self.folder / path
            if not target.exists():
                with atomic_file(target) as file:
                    file.write(text.encode())


def source_of(cls: type[Trainer]) -> SourceFolder:
    """The source of a trainer class. Raises `StagetreeError` if it is not available, with what to do about it."""
    if not (isinstance(cls, type) and issubclass(cls, Trainer)):
        raise StagetreeError(f"a trainer must be a class that is a Trainer, got {cls!r}")
    name = str(cls.__dict__.get("name", cls.__name__))
    gathered = SourceCollector()
    if issubclass(cls, FunctionTrainer) and cls.__module__ == FunctionTrainer.__module__:
        last = gathered.functions(cls)
    else:
        last = gathered.trainer(cls)
    text = "\n\n\n".join(["from __future__ import annotations", *gathered.texts.values(), last])
    has_trainer = any(place.partition("/")[0] in ("trainer", "trainer.py") for place in gathered.modules)
    entry = ENTRIES[0 if has_trainer else 1]
    files = {entry: text, **gathered.modules}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    full = f"{name}@{digest}"
    files[entry] = text.replace(UNNAMED, full) + "\n"
    return SourceFolder(full, f"{cls.__name__}-{digest}", entry, files)
