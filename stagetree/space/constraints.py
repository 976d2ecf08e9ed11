"""Constraints of a study: comparisons of metrics, and by how much a result violates them.

>>> constraint = read_constraint("memory_gb <= 70")
>>> constraint.names, constraint.violation({"memory_gb": 84.0})
(('memory_gb',), 0.2)

A constraint has `<=`, `>=`, `<` or `>` between metrics and numbers, with arithmetic as in `where`. A metric whose name
is not an identifier is written `metrics['val/loss']`.
"""

from __future__ import annotations

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from stagetree.sequences import SequenceError
from stagetree.space.where import WhereError, number_of, parse_expression

METRICS = "metrics"
"""The name by which an expression can index all reported metrics."""

_COMPARISONS: dict[type[ast.AST], int] = {ast.LtE: 1, ast.Lt: 1, ast.GtE: -1, ast.Gt: -1}
"""1 if the left side must be smaller, -1 if it must be greater."""
_STRICT = (ast.Lt, ast.Gt)
_ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.Add, ast.Sub, ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.USub, ast.UAdd)
_EXAMPLE = "must be a comparison of metrics and numbers by <=, >=, < or >, such as memory_gb <= 70"


@dataclass(frozen=True, slots=True)
class _Comparison:
    left: ast.expr
    right: ast.expr
    sign: int
    """As in `_COMPARISONS`."""
    is_strict: bool
    scale: float
    """The violation is divided by this."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """A condition on the metrics of a result."""

    text: str
    names: tuple[str, ...]
    """The metrics in the condition, in order."""
    _comparisons: tuple[_Comparison, ...]

    def violation(self, metrics: Mapping[str, float | None]) -> float:
        """By how much the metrics violate the constraint; 0 if they satisfy it.

        It is the excess of the side that must be smaller, relative to the bound if one side is a number other than 0,
        so that gigabytes and milliseconds can be added. A strict comparison of equals is violated by the smallest
        positive float. Raises `SequenceError` if it cannot be computed.
        """
        values = {**metrics, METRICS: metrics}
        try:
            excess = sum((_excess(each, values) for each in self._comparisons), 0.0)
        except WhereError as error:
            raise SequenceError("", error.problem) from None
        except OverflowError:
            raise SequenceError("", "this comes to a number that is too large") from None
        if not math.isfinite(excess):
            raise SequenceError("", "this does not come to a finite number")
        return excess


def _excess(comparison: _Comparison, values: Mapping[str, Any]) -> float:
    excess = comparison.sign * (number_of(comparison.left, values) - number_of(comparison.right, values))
    if excess == 0 and comparison.is_strict:
        return math.ulp(0.0)
    return excess / comparison.scale if not excess <= 0 else 0.0


@lru_cache(maxsize=1000)
def read_constraint(text: str) -> Constraint:
    """Parse a constraint. Raises `SequenceError`."""
    text = text.replace("\n", " ").strip()
    try:
        tree = parse_expression(text)
    except WhereError:
        raise SequenceError("", f"{_EXAMPLE}, got {text[:100]!r}") from None
    if not isinstance(tree, ast.Compare) or not all(type(op) in _COMPARISONS for op in tree.ops):
        raise SequenceError("", f"{_EXAMPLE}, got {text[:100]!r}")
    sides = [tree.left, *tree.comparators]
    names = tuple(dict.fromkeys(name for side in sides for name in _names(side, text)))
    if not names:
        raise SequenceError("", f"must name a metric, got {text[:100]!r}")
    pairs = zip(sides, tree.ops, sides[1:], strict=False)
    return Constraint(text, names, tuple(_comparison(left, op, right, text) for left, op, right in pairs))


def _names(node: ast.AST, text: str, depth: int = 0) -> Iterator[str]:
    """The metrics on one side, after checking that it consists of numbers, metrics and arithmetic."""
    match node:
        case ast.Subscript(value=ast.Name(id="metrics"), slice=ast.Constant(value=str(name))) | ast.Name(id=name):
            yield name
        case ast.Constant(value=float() | int() as value) if not isinstance(value, bool):
            pass
        case ast.BinOp() | ast.UnaryOp() if depth < 50:
            for child in ast.iter_child_nodes(node):
                yield from _names(child, text, depth + 1)
        case _ if not isinstance(node, _ARITHMETIC) or depth >= 50:
            raise SequenceError("", f"{_EXAMPLE}, got {text[:100]!r}")


def _comparison(left: ast.expr, op: ast.cmpop, right: ast.expr, text: str) -> _Comparison:
    try:
        bounds = [abs(float(number_of(side, {}))) for side in (left, right) if not any(_names(side, text))]
    except (WhereError, OverflowError):
        raise SequenceError("", f"must have a number for a bound, got {text[:100]!r}") from None
    scale = bounds[0] if bounds and bounds[0] and math.isfinite(bounds[0]) else 1.0
    return _Comparison(left, right, _COMPARISONS[type(op)], isinstance(op, _STRICT), scale)
