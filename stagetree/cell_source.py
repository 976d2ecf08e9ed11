"""The source of a trainer that lives in a notebook's cell or a script: a folder that a worker can run by itself.

It holds the class, what the class uses of the names around it, and copies of the user's own modules that it imports.
Its name is made of its content, so that changed code is another trainer.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import inspect
import linecache
import math
import pickle
import symtable
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from stagetree.errors import StagetreeError
from stagetree.functions import FunctionTrainer
from stagetree.trainer import Trainer

__all__ = ["SourceFolder", "source_of"]

_LONGEST = 100_000
"""The most characters of a value that is written into the source."""

_FILE = "trainer.py"


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """`name` is what a study calls the trainer, `folder` what the folder is called; `files` by their paths in it."""

    name: str
    folder: str
    files: Mapping[str, str]

    def write(self, under: Path) -> None:
        """Put the folder there, the trainer's file last; if it is there, it is the same."""
        for path, text in sorted(self.files.items(), key=lambda file: file[0] == _FILE):
            target = under / self.folder / path
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                new = target.with_suffix(".new")
                new.write_text(text, encoding="utf-8")
                new.replace(target)


def source_of(cls: type[Trainer]) -> SourceFolder:
    """The source of a trainer's class. Raises `StagetreeError` where it cannot be had, with what to do about it."""
    if not (isinstance(cls, type) and issubclass(cls, Trainer)):
        raise StagetreeError(f"a trainer must be a class that is a Trainer, got {cls!r}")
    name = str(cls.__dict__.get("name", cls.__name__))
    gathered = _Gathered()
    if issubclass(cls, FunctionTrainer) and cls.__module__ == FunctionTrainer.__module__:
        last = gathered.functions(cls)
    else:
        last = gathered.trainer(cls)
    text = "\n\n\n".join(["from __future__ import annotations", *gathered.texts.values(), last])
    files = {_FILE: text, **gathered.modules}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    full = f"{name}@{digest}"
    return SourceFolder(full, f"{cls.__name__}-{digest}", {**files, _FILE: text.replace(_UNNAMED, full) + "\n"})


_UNNAMED = "the name of this trainer goes here"


class _Gathered:
    """Definitions by name, those before others that those need; and the user's own modules, by their paths."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}
        self.modules: dict[str, str] = {}

    def trainer(self, cls: type) -> str:
        """The class itself, with the name it is known by."""
        if _is_imported(cls, cls.__name__):
            self.add(cls.__name__, cls, cls.__name__)
            text = f"{self.texts.pop(cls.__name__)}\n\n\nclass Renamed({cls.__name__}):\n    pass"
        else:
            text = _definition(cls, cls.__name__)
            self._needs(text, _namespace(cls), cls.__name__)
        return _renamed(text)

    def functions(self, cls: type[FunctionTrainer]) -> str:
        """A class of functions, written out."""
        lines = []
        for field in ("build", "step", "measure"):
            function = inspect.getattr_static(cls, field).__func__
            self.add(function.__name__, function, cls.__name__)
            lines.append(f"    {field} = staticmethod({function.__name__})")
        head = "from stagetree.functions import FunctionTrainer"
        return f'{head}\n\n\nclass Functions(FunctionTrainer):\n    name = "{_UNNAMED}"\n' + "\n".join(lines)

    def add(self, name: str, value: Any, user: str) -> None:
        """What makes `name` mean `value`. `user` needs it, and is named where that cannot be."""
        if name in self.texts:
            return
        self.texts[name] = ""  # it may need itself
        text = self._text(name, value, user)
        del self.texts[name]
        self.texts[name] = text

    def _text(self, name: str, value: Any, user: str) -> str:
        if isinstance(value, ModuleType):
            self._keep(value.__name__)
            return (
                f"import {value.__name__} as {name}"
                if "." in value.__name__ or name != value.__name__
                else (f"import {name}")
            )
        if isinstance(value, type | FunctionType) and not _is_imported(value, name):
            text = _definition(value, user)
            self._needs(text, _namespace(value), name)
            return text
        if isinstance(value, type | FunctionType) or (home := _home(value, name)):
            module, attribute = (
                (value.__module__, value.__qualname__) if hasattr(value, "__qualname__") else (home, name)
            )
            self._keep(module)
            return f"from {module} import {attribute}" + (f" as {name}" if name != attribute else "")
        if _is_plain(value) and len(text := repr(value)) <= _LONGEST:
            return f"{name} = {text}"
        kind = type(value).__name__
        raise StagetreeError(
            f"{user} uses {name}, a {kind} that cannot be written into its source: make it inside {user}, "
            "or hand it over in trainer_args"
        )

    def _needs(self, text: str, namespace: Mapping[str, Any], user: str) -> None:
        for name in sorted(_global_names(text)):
            if name in namespace:
                self.add(name, namespace[name], user)

    def _keep(self, name: str) -> None:
        """Copy a module of the user's own, and those of them that it imports."""
        for part in _packages(name):
            module = sys.modules.get(part)
            path = _own_file(module)
            if path is None:
                continue
            place = part.replace(".", "/") + ("/__init__.py" if path.name == "__init__.py" else ".py")
            if place not in self.modules:
                self.modules[place] = path.read_text(encoding="utf-8")
                package = part if path.name == "__init__.py" else part.rpartition(".")[0]
                for imported in _imports(self.modules[place], package):
                    self._keep(imported)


# ------------------------------------------------------------------------------------------------------------- sources


def _definition(value: type | FunctionType, user: str) -> str:
    """The text of a class or function, as it was written. Raises `StagetreeError`."""
    if "<locals>" in value.__qualname__:
        raise StagetreeError(f"{value.__name__} is defined inside a function: define it at the top of a cell or a file")
    for file, line in _places(value):
        lines = linecache.getlines(file)
        if (node := _node(lines, value.__name__, line)) is not None:
            return "".join(lines[_first_line(node) - 1 : node.end_lineno]).rstrip()
    raise StagetreeError(
        f"the source of {value.__name__} cannot be had, which {user} needs: "
        "define it in a notebook's cell, a script or a module"
    )


def _places(value: Any) -> Iterator[tuple[str, int | None]]:
    """Where a definition may be: where its code says, and for a class without any in cells, the last one first."""
    codes = [code for code in _codes(value) if linecache.getlines(code.co_filename)]
    yield from ((code.co_filename, code.co_firstlineno) for code in codes)
    if not codes and isinstance(value, type):
        yield from (
            (name, None) for name, entry in reversed(linecache.cache.items()) if len(entry) > 1 and not entry[1]
        )
        yield getattr(sys.modules[value.__module__], "__file__", None) or "", None


def _codes(value: Any) -> Iterator[Any]:
    """The code of a function, or of the methods of a class."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", None) or member))
        if isinstance(function, FunctionType):
            yield function.__code__


def _node(
    lines: list[str], name: str, line: int | None
) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition of a name at the top of a source, around a line; the last one, if that is not known."""
    try:
        tree = ast.parse("".join(lines))
    except SyntaxError:
        return None
    for node in reversed(tree.body):
        if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) or node.name != name:
            continue
        if line is None or _first_line(node) <= line <= (node.end_lineno or line):
            return node
    return None


def _first_line(node: ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """The line of a definition, or of the first of its decorators."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def _renamed(text: str) -> str:
    """The source with the name that is to be filled in as the last class's own."""
    tree = ast.parse(text)
    cls = next(node for node in reversed(tree.body) if isinstance(node, ast.ClassDef))
    lines = text.splitlines()
    for node in cls.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
            start, end = node.lineno - 1, node.end_lineno or node.lineno
            return "\n".join([*lines[:start], f'{" " * node.col_offset}name = "{_UNNAMED}"', *lines[end:]])
    first = cls.body[0]
    if first.lineno == cls.lineno:
        raise StagetreeError(f"{cls.name} must have its body on lines of its own")
    place = first.lineno - 1
    return "\n".join([*lines[:place], f'{" " * first.col_offset}name = "{_UNNAMED}"', *lines[place:]])


def _global_names(text: str) -> set[str]:
    """The names that a source takes from around it."""
    waiting, found = [symtable.symtable(text, "cell", "exec")], set[str]()
    while waiting:
        table = waiting.pop()
        is_top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or (is_top and not symbol.is_assigned())):
                found.add(symbol.get_name())
        waiting += table.get_children()
    return {name for name in found if not hasattr(builtins, name)}


def _namespace(value: Any) -> Mapping[str, Any]:
    """The names around a class or function."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and function.__module__ == value.__module__:
            return function.__globals__
    return vars(sys.modules[value.__module__])


# ------------------------------------------------------------------------------------------------------------- modules


def _is_imported(value: Any, name: str) -> bool:
    """Whether a class or function is had by an import, rather than defined in a cell or script."""
    module = sys.modules.get(value.__module__)
    is_main = value.__module__ == "__main__" or module is None or getattr(module, "__file__", None) is None
    is_built_in = value.__module__ in sys.builtin_module_names
    top, _, rest = value.__qualname__.partition(".")
    return (is_built_in or not is_main) and not rest and getattr(module, top, None) is value


def _home(value: Any, name: str) -> str:
    """The module in which some other value is by that name; empty if there is none, or it is a plain value."""
    if _is_plain(value):
        return ""
    module = pickle.whichmodule(value, name)  # type: ignore[attr-defined]
    return "" if module == "__main__" or getattr(sys.modules.get(module), "__file__", None) is None else module


def _is_plain(value: Any) -> bool:
    """Whether the value's text in Python is the value."""
    if isinstance(value, list | tuple | set | frozenset):
        return type(value) in (list, tuple, set, frozenset) and all(map(_is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(_is_plain(key) and _is_plain(item) for key, item in value.items())
    return type(value) in (bool, int, str, bytes, type(None)) or (type(value) is float and math.isfinite(value))


def _own_file(module: ModuleType | None) -> Path | None:
    """The file of a module that the user has written; None for what is installed."""
    file = getattr(module, "__file__", None)
    if module is None or file is None or not file.endswith(".py") or module.__name__.partition(".")[0] == "stagetree":
        return None
    path = Path(file).resolve()
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return None if any(path.is_relative_to(folder) for folder in installed) else path


def _packages(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    yield from (".".join(parts[: number + 1]) for number in range(len(parts)))


def _imports(text: str, package: str) -> Iterator[str]:
    """The modules that a source imports, wherever it does; `from x import y` may mean the module `x.y`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = ".".join(filter(None, (above if node.level else "", node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
