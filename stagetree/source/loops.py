"""Analyzes a script's loop over `run.steps()` from its source, without running it.

Finds the names that the loop sets in each step, and the hyper-parameters that the script reads.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from stagetree.source.syntax import syntax_tree
from stagetree.source.versions import root

INDIRECT_READS = frozenset({"eval", "exec", "globals", "locals", "vars"})
"""Functions that can read a name without naming it."""


def read_in_steps(path: str | Path, files: Mapping[str, bytes]) -> frozenset[str] | None:
    """The hyper-parameters that a script may read; None if the source does not show.

    It does if the script loops over its steps itself and reads values by literal names, such as `hp["lr"]`. If it
    passes the dict or the run on, anything may be read.
    """
    tree = _tree(path, files)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For) and _is_over_steps(node.iter)]
    targets = [loop.target for loop in loops]
    pairs = [each.elts for each in targets if isinstance(each, ast.Tuple) and len(each.elts) == 2]
    values = {name.id for _, name in pairs if isinstance(name, ast.Name)}
    runs = {loop.iter.func.value for loop in loops if isinstance(loop.iter, ast.Call)}  # type: ignore[attr-defined]
    names = {run.id for run in runs if isinstance(run, ast.Name)}
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute) and node.attr == "steps"]
    if not loops or len(pairs) != len(loops) or len(calls) != len(loops) or not values or len(names) != len(runs):
        return None
    return _read(tree, values, names)


def _read(tree: ast.Module, values: set[str], runs: set[str]) -> frozenset[str] | None:
    """The keys read from variables in `values`; None if these or `runs` are used in another way."""
    found, seen = set[str](), set[ast.AST]()
    for node in ast.walk(tree):
        for variable, name in _readings(node):
            if isinstance(variable, ast.Name) and variable.id in values:
                seen.add(variable)
                found.add(name)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in runs:
            seen.add(node.value)
    used = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Store))
    if any(each.id in INDIRECT_READS or (each.id in values | runs and each not in seen) for each in used):
        return None
    return frozenset(found)


def _readings(node: ast.AST) -> Iterator[tuple[ast.expr, str]]:
    """The mapping and the literal key of an expression that reads a value."""
    match node:
        case ast.Subscript(value=mapping, slice=ast.Constant(value=str(name))):
            yield mapping, name
        case ast.Call(func=ast.Attribute(value=mapping, attr="get" | "pop"), args=[ast.Constant(value=str(name)), *_]):
            yield mapping, name
        case ast.Compare(left=ast.Constant(value=str(name)), ops=[ast.In() | ast.NotIn()], comparators=[mapping]):
            yield mapping, name


def set_in_each_step(path: str | Path, files: Mapping[str, bytes]) -> frozenset[str]:
    """The names that a script's loop over `steps()` sets in each step before it reads them: no step depends on them.

    A name counts if its first occurrence in the loop is an unconditional assignment.
    """
    loops = (node for node in ast.walk(_tree(path, files)) if isinstance(node, ast.For) and _is_over_steps(node.iter))
    return frozenset(name for loop in loops for name, is_set in _first_places(loop).items() if is_set)


def _tree(path: str | Path, files: Mapping[str, bytes]) -> ast.Module:
    file = Path(path).resolve()
    return syntax_tree(files[file.relative_to(root(file)[0]).as_posix()])


def _is_over_steps(node: ast.expr) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "steps"


def _first_places(loop: ast.For) -> dict[str, bool]:
    """For each name in a loop, whether it is certainly set before it is read."""
    set_first: dict[str, bool] = {}
    places = [(node, True) for node in [loop.target, *loop.body]]
    while places:
        node, is_certain = places.pop(0)
        if isinstance(node, ast.Name):
            set_first.setdefault(node.id, is_certain and isinstance(node.ctx, ast.Store))
            continue
        certain = is_certain and not isinstance(node, _CONDITIONAL)
        places[:0] = [(each, certain) for each in _execution_order(node)]
    return set_first


_CONDITIONAL = (ast.If, ast.While, ast.Try, ast.Match, ast.IfExp, ast.BoolOp, ast.FunctionDef, ast.Lambda, ast.ClassDef)


def _execution_order(node: ast.AST) -> list[ast.AST]:
    """The parts of a statement in the order of execution: values before their targets."""
    match node:
        case ast.AugAssign(target=ast.Name(id=name), value=value):
            return [ast.Name(name, ast.Load()), value]
        case ast.Assign(targets=targets, value=value):
            return [value, *targets]
        case ast.AnnAssign(target=target, value=value):
            return [value, target] if value else []
        case ast.For(target=target, iter=over, body=body, orelse=last):
            return [over, target, *body, *last]
        case ast.NamedExpr(target=target, value=value):
            return [value, target]
    return list(ast.iter_child_nodes(node))
