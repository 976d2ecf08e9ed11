"""The text of a class or function as it was written, and the names that it takes from around it."""

from __future__ import annotations

import ast
import builtins
import inspect
import linecache
import symtable
import sys
from collections.abc import Iterator, Mapping
from types import FunctionType
from typing import Any

from stagetree.errors import StagetreeError

UNNAMED = "the name of this trainer goes here"


def definition_of(value: type | FunctionType, user: str) -> str:
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


def renamed(text: str) -> str:
    """The source with the name that is to be filled in as the last class's own."""
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


def namespace_of(value: Any) -> Mapping[str, Any]:
    """The names around a class or function."""
    members = [value] if isinstance(value, FunctionType) else list(vars(value).values())
    for member in members:
        function = getattr(member, "__func__", member)
        if isinstance(function, FunctionType) and function.__module__ == value.__module__:
            return function.__globals__
    return vars(sys.modules[value.__module__])
