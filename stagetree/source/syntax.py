"""Parses Python source in a process with several threads."""

from __future__ import annotations

import ast
from typing import Literal, overload

ATTEMPTS = 10


@overload
def syntax_tree(source: str | bytes, filename: str = ..., mode: Literal["exec"] = ...) -> ast.Module: ...
@overload
def syntax_tree(source: str | bytes, filename: str = ..., *, mode: Literal["eval"]) -> ast.Expression: ...
def syntax_tree(source: str | bytes, filename: str = "<unknown>", mode: str = "exec") -> ast.AST:
    """As `ast.parse`.

    CPython 3.11 counts the depth of syntax trees once for all threads, so that concurrent calls may raise a spurious
    SystemError. Such a call is repeated.
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
    """`a.b.c` as it is written, without generic arguments; None for other expressions."""
    match node:
        case ast.Name(id=name):
            return name
        case ast.Attribute(value=owner, attr=name):
            before = dotted_name(owner)
            return None if before is None else f"{before}.{name}"
        case ast.Subscript(value=owner):
            return dotted_name(owner)
    return None
