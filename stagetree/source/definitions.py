"""The source text of a class or function, the global names that it uses, and its imports."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import math
import pickle
import symtable
import sys
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

from stagetree.errors import StagetreeError


@dataclass(frozen=True, slots=True)
class Arguments:
    """The trainer_args and runtime_args that a trainer's constructor takes. is_open: it takes any others too."""

    names: tuple[str, ...] = ()
    required: tuple[str, ...] = ()
    is_open: bool = True

    @classmethod
    def parse_calls(cls, calls: Iterable[ast.Call], own: Collection[str]) -> Arguments:
        """The keyword arguments of some calls, which have defaults there; without the function's `own` ones."""
        names = [keyword.arg for call in calls for keyword in call.keywords]
        told = dict.fromkeys(name for name in names if name is not None and name not in own)
        return cls(tuple(told), is_open=None in names)

    @classmethod
    def from_function(cls, function: ast.FunctionDef, bound: int = 1) -> Arguments:
        """The arguments of an `__init__` that users set; with `bound` 0, of a plain function."""
        supplied, args = {"seed", "device"}, function.args
        plain = [each.arg for each in [*args.posonlyargs, *args.args][bound:]]
        optional = {*plain[len(plain) - len(args.defaults) :]} if args.defaults else set[str]()
        optional |= {each.arg for each, value in zip(args.kwonlyargs, args.kw_defaults, strict=True) if value}
        names = [name for name in [*plain, *(each.arg for each in args.kwonlyargs)] if name not in supplied]
        required = tuple(name for name in names if name not in optional)
        return cls(tuple(names), required, is_open=args.kwarg is not None)


def is_imported(value: Any) -> bool:
    """Whether a class or function can be imported, as opposed to one defined in a cell or script."""
    module = sys.modules.get(value.__module__)
    is_main = value.__module__ == "__main__" or module is None or getattr(module, "__file__", None) is None
    is_built_in = value.__module__ in sys.builtin_module_names
    top, _, rest = value.__qualname__.partition(".")
    return (is_built_in or not is_main) and not rest and getattr(module, top, None) is value


def home_of(value: Any, name: str) -> str:
    """The module that has the value by that name; empty if none has, or if it is a plain value."""
    if is_plain(value):
        return ""
    module = pickle.whichmodule(value, name)  # type: ignore[attr-defined]
    is_there = getattr(sys.modules.get(module), name, None) is value  # a tensor claims to be torch's
    return module if is_there and module != "__main__" and getattr(sys.modules[module], "__file__", None) else ""


def is_plain(value: Any) -> bool:
    """Whether the value equals its `repr` as Python source."""
    if isinstance(value, list | tuple | set | frozenset):
        return type(value) in (list, tuple, set, frozenset) and all(map(is_plain, value))
    if isinstance(value, dict):
        return type(value) is dict and all(is_plain(key) and is_plain(item) for key, item in value.items())
    return type(value) in (bool, int, str, bytes, type(None)) or (type(value) is float and math.isfinite(value))


def own_file(module: ModuleType | None) -> Path | None:
    """The file of a module that the user has written; None for installed modules."""
    file = getattr(module, "__file__", None)
    if module is None or file is None or not file.endswith(".py") or module.__name__.partition(".")[0] == "stagetree":
        return None
    path = Path(file).resolve()
    return None if any(path.is_relative_to(folder) for folder in _installed_folders()) else path


@cache
def _installed_folders() -> frozenset[Path]:
    kinds = ("stdlib", "platstdlib", "purelib", "platlib")
    return frozenset(Path(sysconfig.get_path(kind)).resolve() for kind in kinds)


def packages(name: str) -> Iterator[str]:
    """`a`, `a.b` and `a.b.c` of `a.b.c`."""
    parts = name.split(".")
    yield from (".".join(parts[: number + 1]) for number in range(len(parts)))


def imports_in(text: str, package: str) -> Iterator[str]:
    """The modules that a source imports, at any place; `from x import y` may mean the module `x.y`."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.rsplit(".", node.level - 1)[0] if node.level > 1 else package
            module = ".".join(filter(None, (above if node.level else "", node.module)))
            yield module
            yield from (f"{module}.{alias.name}" for alias in node.names)


UNNAMED = "the name of this trainer goes here"


def definition_of(value: type | FunctionType, user: str) -> str:
    """The source text of a class or function. Raises `StagetreeError`."""
    if value.__name__ == "<lambda>":
        raise StagetreeError(f"{user} is given a lambda, whose source cannot be taken alone: write it as a def")
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
    """Places to look for a definition: its code's, or for a class without code in a cell, the newest cells first."""
    codes = [code for code in _codes(value) if linecache.getlines(code.co_filename)]
    yield from ((code.co_filename, code.co_firstlineno) for code in codes)
    if not codes and isinstance(value, type):
        yield from (
            (name, None) for name, entry in reversed(linecache.cache.items()) if len(entry) > 1 and not entry[1]
        )
        yield getattr(sys.modules[value.__module__], "__file__", None) or "", None


def _codes(value: Any) -> Iterator[Any]:
    """The code of a function, or of a class's methods."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        function = inspect.unwrap(getattr(member, "__func__", getattr(member, "fget", None) or member))
        if isinstance(function, FunctionType):
            yield function.__code__


def _node(
    lines: list[str], name: str, line: int | None
) -> ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef | None:
    """The definition of a name at the top level, around a line; the last one if the line is unknown."""
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
    """The line of a definition, or of its first decorator."""
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])


def set_name_placeholder(text: str) -> str:
    """The source with a placeholder as the last class's `name`."""
    tree = ast.parse(text)
    cls = next(node for node in reversed(tree.body) if isinstance(node, ast.ClassDef))
    lines = text.splitlines()
    for node in cls.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(isinstance(target, ast.Name) and target.id == "name" for target in targets):
            start, end = node.lineno - 1, node.end_lineno or node.lineno
            return "\n".join([*lines[:start], f'{" " * node.col_offset}name = "{UNNAMED}"', *lines[end:]])
    first = cls.body[0]
    if first.lineno == cls.lineno:
        raise StagetreeError(f"{cls.name} must have its body on lines of its own")
    place = first.lineno - 1
    return "\n".join([*lines[:place], f'{" " * first.col_offset}name = "{UNNAMED}"', *lines[place:]])


def global_names(text: str) -> set[str]:
    """The global names that a source uses."""
    waiting, names = [symtable.symtable(text, "cell", "exec")], set[str]()
    while waiting:
        table = waiting.pop()
        is_top = table.get_type() == "module"
        for symbol in table.get_symbols():
            if symbol.is_referenced() and (symbol.is_global() or (is_top and not symbol.is_assigned())):
                names.add(symbol.get_name())
        waiting += table.get_children()
    return {name for name in names if not hasattr(builtins, name)}


def namespace_of(value: Any) -> Mapping[str, Any]:
    """The global namespace of a class or function."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and function.__module__ == value.__module__:
            return function.__globals__
    return vars(sys.modules[value.__module__])
