"""What is had by an import, and from which modules of the user's own."""

from __future__ import annotations

import ast
import math
import pickle
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any


def is_imported(value: Any, name: str) -> bool:
    """Whether a class or function is had by an import, rather than defined in a cell or script."""
    module = sys.modules.get(value.__module__)
    is_main = value.__module__ == "__main__" or module is None or getattr(module, "__file__", None) is None
    is_built_in = value.__module__ in sys.builtin_module_names
    top, _, rest = value.__qualname__.partition(".")
    return (is_built_in or not is_main) and not rest and getattr(module, top, None) is value


def home_of(value: Any, name: str) -> str:
    """The module in which some other value is by that name; empty if there is none, or it is a plain value."""
    if is_plain(value):
        return ""
    module = pickle.whichmodule(value, name)  # type: ignore[attr-defined]
    return "" if module == "__main__" or getattr(sys.modules.get(module), "__file__", None) is None else module


def is_plain(value: Any) -> bool:
    """Whether the value's text in Python is the value."""
    if isinstance(value, list | tuple | set | frozenset):
        return type(value) in (list, tuple, set, frozenset) and all(map(is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in (bool, int, str, bytes, type(None)) or (type(value) is float and math.isfinite(value))


def own_file(module: ModuleType | None) -> Path | None:
    """The file of a module that the user has written; None for what is installed."""
    file = getattr(module, "__file__", None)
    if module is None or file is None or not file.endswith(".py") or module.__name__.partition(".")[0] == "stagetree":
        return None
    path = Path(file).resolve()
    installed = {Path(sysconfig.get_path(kind)).resolve() for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return None if any(path.is_relative_to(folder) for folder in installed) else path


def packages(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    yield from (".".join(parts[: number + 1]) for number in range(len(parts)))


def imports_in(text: str, package: str) -> Iterator[str]:
    """The modules that a source imports, wherever it does; `from x import y` may mean the module `x.y`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = ".".join(filter(None, (above if node.level else "", node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)
