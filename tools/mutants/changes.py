"""The mutants of a file: each is the file with one guard less.

A guard is a condition that keeps something from happening: an `if` that returns, raises, breaks or continues, or that
does something only then; one side of an `and` or an `or`; the `if` of a comprehension or of a `case`; an `except`; a
condition of a SQL `where`; a lock; a loop that waits. Each is made to let everything through.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

Undo = Callable[[], None]

NO_GUARDS = ("TYPE_CHECKING", "__name__ == '__main__'")
"""Conditions that decide how a module is read or run, and guard nothing."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """A file without one of its guards, which is in `function`. lines: of the guard. source: the whole file."""

    file: str
    function: str
    lines: range
    what: str
    source: str

    @property
    def name(self) -> str:
        """What stays the same when lines above it change."""
        return f"{self.file} {self.function}: {self.what}"

    def __str__(self) -> str:
        return f"{self.file}:{self.lines.start} {self.function}: {self.what}"


def mutants_of(root: Path, file: str) -> Iterator[Mutant]:
    """Every mutant of a file, in the order of its lines."""
    tree = ast.parse((root / file).read_text())
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    found, met = [], Counter[tuple[str, str]]()
    for node in ast.walk(tree):
        for guard, what, undo in _changes(node):
            lines = range(guard.lineno, (guard.end_lineno or guard.lineno) + 1)
            around = [each.name for each in functions if each.lineno <= guard.lineno <= (each.end_lineno or 0)]
            name, what = around[-1] if around else "module", what.replace("\n", " ")
            met[name, what] += 1
            number = f" ({met[name, what]})" if met[name, what] > 1 else ""
            found.append(Mutant(file, name, lines, what + number, ast.unparse(tree)))
            undo()
    yield from sorted(found, key=lambda mutant: mutant.lines.start)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr, str, Undo]]:
    """Change the tree in place; yield the guard's expression, the change, and its inverse."""
    match node:
        case ast.If(test=test, body=[*_, ast.Return() | ast.Raise() | ast.Continue() | ast.Break()]):
            yield test, f"never: if {ast.unparse(test)}", _set(node, "test", ast.Constant(False))
        case ast.While(test=test) if not isinstance(test, ast.Constant):
            yield test, f"never: while {ast.unparse(test)}", _set(node, "test", ast.Constant(False))
        case ast.BoolOp(op=ast.And(), values=values):
            for value, rest in _each_without(values):
                yield value, f"without: {ast.unparse(value)}", _set(node, "values", [*rest, ast.Constant(True)])
        case ast.BoolOp(op=ast.Or(), values=values) if any(map(_is_a_condition, values)):
            for value, rest in _each_without(values):
                yield value, f"without: or {ast.unparse(value)}", _set(node, "values", [*rest, ast.Constant(False)])
        case ast.Call(func=ast.Attribute(attr="where"), args=args):
            for value, rest in _each_without(args):
                yield value, f"without: where {ast.unparse(value)}", _set(node, "args", rest)
        case ast.Call(func=ast.Attribute(attr="with_for_update") as lock):
            yield lock, f"without: lock of {ast.unparse(lock.value)}", _set(lock, "attr", "where")
        case ast.If(test=test, orelse=[]) if ast.unparse(test) not in NO_GUARDS:
            yield test, f"always: if {ast.unparse(test)}", _set(node, "test", ast.Constant(True))
        case ast.comprehension(ifs=tests):
            for test, rest in _each_without(tests):
                yield test, f"without: for ... if {ast.unparse(test)}", _set(node, "ifs", rest)
        case ast.match_case(guard=ast.expr() as guard):
            yield guard, f"without: case ... if {ast.unparse(guard)}", _set(node, "guard", None)
        case ast.ExceptHandler(type=ast.expr() as kind):
            yield kind, f"never: except {ast.unparse(kind)}", _set(node, "type", ast.Tuple([]))


def _is_a_condition(value: ast.expr) -> bool:
    """Whether it is true or false, and no value with a default behind it."""
    match value:
        case ast.Compare() | ast.UnaryOp(op=ast.Not()) | ast.BoolOp():
            return True
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)):
            return name.lstrip("_").startswith(("is", "has", "any"))
    return False


def _each_without(values: list[ast.expr]) -> Iterator[tuple[ast.expr, list[ast.expr]]]:
    for number, value in enumerate(values):
        yield value, values[:number] + values[number + 1 :]


def _set(node: ast.AST, name: str, value: object) -> Undo:
    before = getattr(node, name)
    setattr(node, name, value)
    return lambda: setattr(node, name, before)
