"""The `where` of a space: an expression over hyper-parameter names that accepts or rejects a configuration.

>>> wanted = compile_where("bs == 64 or lr.family == 'multistep'", ["bs", "lr"])
>>> wanted({"bs": Constant(128), "lr": Constant(0.1)})
False

The name of a constant is its value; other sequences have fields (`lr.family`, `lr.gamma`, `lr.then.init`). A name that
the configuration does not have is `None`. Expressions may use comparisons, `in`, `and`, `or`, `not`, arithmetic,
lists and indices, but no calls, builtins or powers.
"""

from __future__ import annotations

import ast
import json
import operator
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from typing import Any

from stagetree.sequences import FAMILIES, Constant, Part, Sequence, SequenceError, as_lists, did_you_mean
from stagetree.source.syntax import syntax_tree

Where = Callable[[Mapping[str, Sequence]], bool]

PARAMS = "params"
"""The object of all hyper-parameters in an expression, unless the space has this name."""

_LONGEST, _DEEPEST = 2000, 50
_ARITHMETIC: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
}
_SIGNS: dict[type[ast.AST], Callable[[Any], Any]] = {ast.USub: operator.neg, ast.UAdd: operator.pos}
_COMPARISONS: dict[type[ast.AST], Callable[[Any, Any], Any]] = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda one, many: one in many,
    ast.NotIn: lambda one, many: one not in many,
}
_SHAPES = (ast.Expression, ast.Constant, ast.Name, ast.Attribute, ast.Subscript, ast.List, ast.Tuple)
_LOGIC = (ast.BoolOp, ast.And, ast.Or, ast.UnaryOp, ast.Not, ast.BinOp, ast.Compare, ast.Load)
_ALLOWED = (*_SHAPES, *_LOGIC, *_ARITHMETIC, *_SIGNS, *_COMPARISONS)
_FIELDS: set[str] = {"family", *(field.name for cls in (*FAMILIES.values(), Part) for field in fields(cls))}


class WhereError(SequenceError):
    """An invalid `where`: `problem` begins with the column."""

    def __init__(self, problem: str, node: ast.expr | None = None, column: int | None = None) -> None:
        column = node.col_offset + 1 if node else column
        super().__init__("where", f"at column {column}, {problem}" if column else problem)


def read_where(where: str | Where | None, names: list[str]) -> Where:
    """The predicate for an expression, or the given function. Without either, all passes. Raises `WhereError`."""
    if where is None:
        return lambda configuration: True
    if isinstance(where, str):
        return compile_where(where, names)
    if callable(where):
        return where
    raise WhereError(f"must be an expression in a string, or a function in Python, got {where!r}")


def compile_where(text: str, names: Iterable[str]) -> Where:
    """Compile `text` to a predicate over the hyper-parameters `names`.

    Raises `WhereError`. The predicate also raises it for values that it cannot compute with.
    """
    text = text.replace("\n", " ").strip()
    tree, known = parse_expression(text), list(names)
    _check(tree, tree, known, text)
    used = [name for name in known if name in _names_in(tree, known)]

    def accepts(hp: Mapping[str, Sequence]) -> bool:
        try:
            return _truth(tree, hp)
        except WhereError as error:
            shown = ", ".join(f"{name}: {_written(hp.get(name))}" for name in used)
            raise WhereError(f"{error.problem}, with {shown}" if shown else error.problem) from None

    return accepts


def _names_in(tree: ast.expr, names: list[str]) -> set[str]:
    """The hyper-parameters that an expression names."""
    nodes = list(ast.walk(tree))
    return {node.id for node in nodes if isinstance(node, ast.Name)} | {
        quoted for node in nodes if (quoted := _quoted_name(node, names)) is not None
    }


def _quoted_name(node: ast.AST, names: Iterable[str]) -> str | None:
    """The name in `params['optimizer.lr']`, which is for names that are no words; None for any other node."""
    match node:
        case ast.Subscript(value=ast.Name(id=owner), slice=ast.Constant(value=str(name))):
            return name if owner == PARAMS and PARAMS not in names else None
    return None


def _written(value: Sequence | None) -> str:
    """A value as a study file has it."""
    return json.dumps(value.to_json().get("value") if isinstance(value, Constant) else value and value.to_json())


def parse_expression(text: str) -> ast.expr:
    """Parse an expression on one line. Checks only its length. Raises `WhereError`."""
    if len(text) > _LONGEST:
        raise WhereError(f"must be at most {_LONGEST} characters long, got {len(text)}")
    try:
        return syntax_tree(text, mode="eval").body
    except SyntaxError as error:
        example = "bs == 64 and lr.family == 'constant'"
        raise WhereError(f'must be an expression such as "{example}", got {text!r}', column=error.offset) from None
    except (ValueError, RecursionError, MemoryError):
        raise WhereError("must be simpler: this is nested too deeply or not text") from None


def _check(node: ast.AST, place: ast.expr, names: list[str], text: str, depth: int = 0) -> None:
    """Reject invalid nodes before the expression gets any values. `place` is the nearest expression around `node`."""
    if depth > _DEEPEST:
        raise WhereError(f"must be simpler: this is nested more than {_DEEPEST} deep", place)
    if not isinstance(node, _ALLOWED):
        got = ast.get_source_segment(text, place)
        raise WhereError(f"only comparisons, and, or, not, arithmetic and fields are allowed, got {got}", place)
    if (quoted := _quoted_name(node, names)) is not None:
        if quoted not in names:
            raise _unknown_name(quoted, names, place)
        return
    if isinstance(node, ast.Name) and node.id not in names:
        raise _unknown_name(node.id, names, node)
    if isinstance(node, ast.Attribute) and ast.unparse(node) in names:
        raise WhereError(f"write {PARAMS}[{ast.unparse(node)!r}] for a name with a dot in it", node)
    if isinstance(node, ast.Attribute) and node.attr not in _FIELDS:
        raise WhereError(f"no family has a field {node.attr}{did_you_mean(node.attr, _FIELDS)}", node)
    for child in ast.iter_child_nodes(node):
        _check(child, child if isinstance(child, ast.expr) else place, names, text, depth + 1)


def _unknown_name(name: str, names: list[str], node: ast.expr) -> WhereError:
    longer = [each for each in names if re.match(rf"{re.escape(name)}[^\w]", each)]
    advice = f"; write {PARAMS}[{longer[0]!r}]" if longer else did_you_mean(name, names)
    return WhereError(f"{name} is not a hyper-parameter: there are {', '.join(names)}{advice}", node)


def _truth(node: ast.expr, hp: Mapping[str, Sequence]) -> bool:
    value = _scalar(node, hp)
    if not isinstance(value, bool):
        raise WhereError(f"must be true or false, got {_shorten(value)}", node)
    return value


def _scalar(node: ast.expr, hp: Mapping[str, Sequence]) -> Any:
    """The value of a node. A constant sequence counts as its value."""
    value = _value(node, hp)
    return as_lists(value.value) if isinstance(value, Constant) else value


def _value(node: ast.expr, hp: Mapping[str, Sequence]) -> Any:
    match node:
        case ast.Name(id=name):
            return hp.get(name)
        case ast.Constant(value=value):
            return value
        case ast.List(elts=items) | ast.Tuple(elts=items):
            return [_scalar(item, hp) for item in items]
        case ast.Attribute(value=owner, attr=name):
            return _field(_value(owner, hp), name, node)
        case ast.Subscript(value=ast.Name(id=owner_name), slice=ast.Constant(value=str(name))) if (
            owner_name == PARAMS and PARAMS not in hp
        ):
            return hp.get(name)
        case ast.Subscript(value=owner, slice=index):
            return _compute(node, operator.getitem, _scalar(owner, hp), _scalar(index, hp))
        case ast.BoolOp(op=op, values=parts):
            truths = (_truth(part, hp) for part in parts)
            return all(truths) if isinstance(op, ast.And) else any(truths)
        case ast.UnaryOp(op=op, operand=operand):
            if isinstance(op, ast.Not):
                return not _truth(operand, hp)
            return _compute(node, _SIGNS[type(op)], number_of(operand, hp))
        case ast.BinOp(left=left, op=op, right=right):
            return _compute(node, _ARITHMETIC[type(op)], number_of(left, hp), number_of(right, hp))
        case ast.Compare():
            return _compare(node, hp)
    raise AssertionError(node)


def _field(owner: Any, name: str, node: ast.expr) -> Any:
    if name == "family" and isinstance(owner, Sequence):
        return owner.family
    if not isinstance(owner, Sequence | Part) or not hasattr(owner, name):
        kind = owner.family if isinstance(owner, Sequence) else type(owner).__name__.lower()
        raise WhereError(f"a {kind} has no field {name}: ask for the family first, as in x.family == ... and ...", node)
    return getattr(owner, name)


def number_of(node: ast.expr, hp: Mapping[str, Any]) -> float:
    """Evaluate a node to a number. Raises `WhereError` if it is not a number."""
    value = _scalar(node, hp)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise WhereError(f"arithmetic needs numbers, got {_shorten(value)}", node)
    return value


def _compare(node: ast.Compare, hp: Mapping[str, Sequence]) -> bool:
    left = _scalar(node.left, hp)
    for op, right_node in zip(node.ops, node.comparators, strict=True):
        right = _scalar(right_node, hp)
        if not _compute(node, _COMPARISONS[type(op)], left, right):
            return False
        left = right
    return True


def _compute(node: ast.expr, function: Callable[..., Any], *values: Any) -> Any:
    try:
        return function(*values)
    except (TypeError, ArithmeticError, LookupError):
        shown = " and ".join(_shorten(value) for value in values)
        raise WhereError(f"this cannot be computed for {shown}", node) from None


def _shorten(value: Any) -> str:
    """The value, shortened for an error message."""
    if isinstance(value, Sequence):
        return f"a {value.family}"
    try:
        text = repr(value)
    except ValueError:  # Python writes no number of more than 4,300 digits
        return "a number of too many digits"
    return text if len(text) <= 80 else text[:77] + "..."
