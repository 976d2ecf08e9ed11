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
