"""Python source as a syntax tree, in a process with several threads."""

from __future__ import annotations

import ast
from typing import Literal, overload

ATTEMPTS = 10


@overload
def syntax_tree(source: str | bytes, filename: str = ..., mode: Literal["exec"] = ...) -> ast.Module: ...
@overload
def syntax_tree(source: str | bytes, filename: str = ..., *, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(source: str | bytes, filename: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """What `ast.parse` gives. Raises as it does.

    CPython 3.11 counts the depth of a tree once for all threads: where two make one at the same time, it may say
    SystemError, and nothing is wrong with the source. Such a parse is made again.
    """
    for _ in range(ATTEMPTS - 1):
        try:
            return ast.parse(source, filename, mode)
        except SystemError:
            pass
    return ast.parse(source, filename, mode)


def string_attributes(node: ast.ClassDef) -> dict[str, str]:
    """The string attributes that a class body sets."""
    found: dict[str, str] = {}
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[target.id] = value.value
    return found


def dotted_name(node: ast.expr) -> str | None:
    """`a.b.c` as it is written, without the brackets of a generic; None for anything else."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            before = dotted_name(owner)
            return None if before is None else f"{before}.{name}"
        case ast.Subscript(value=owner):
            return dotted_name(owner)
    return None
