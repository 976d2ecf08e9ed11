"""Whether code may set environment variables, by which packages may be imported otherwise than without it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from stagetree.source.syntax import syntax_tree

WRITERS = frozenset({"environb", "putenv", "unsetenv"})
WORD = re.compile(r"\b(?:environb?|putenv|unsetenv)\b")
READING_METHODS = frozenset({"copy", "get", "items", "keys", "values"})


def may_set_environment(source: bytes) -> bool:
    """False only if the code names `os.environ` nowhere, or reads it each time. True for code that cannot be parsed."""
    if not WORD.search(source.decode(errors="replace")):
        return False
    try:
        tree = syntax_tree(source)
    except (SyntaxError, ValueError):
        return True
    reads = {id(environ) for node in ast.walk(tree) for environ in _read_in(node)}
    return any(_may_write(node) and id(node) not in reads for node in ast.walk(tree))


def _may_write(node: ast.AST) -> bool:
    """Whether a node is the environment or a function that sets it, or might lead to them by another name."""
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name == "environ" or name in WRITERS
        case ast.alias(name=name, asname=other):
            return name in WRITERS or (name == "environ" and other is not None)
        case ast.Constant(value=str(text)):
            return WORD.search(text) is not None
    return False


def _read_in(node: ast.AST) -> Iterator[ast.AST]:
    """The environments that a node only reads: `environ[NAME]`, `NAME in environ`, `environ.get(NAME)` and copies."""
    match node:
        case ast.Subscript(value=environ, ctx=ast.Load()):
            yield environ
        case ast.Call(func=ast.Attribute(value=environ, attr=method)) if method in READING_METHODS:
            yield environ
        case ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[environ]):
            yield environ
        case ast.Dict(keys=keys, values=values):
            yield from (value for key, value in zip(keys, values, strict=True) if key is None)
        case ast.Call(func=ast.Name(id="dict"), args=[environ], keywords=[]):
            yield environ
