"""Advice on undeclared inputs: data files that a trainer reads and its study does not list in `inputs`."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from contextlib import suppress
from itertools import chain
from os.path import abspath
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeGuard

from stagetree.source.syntax import syntax_tree
from stagetree.source.versions import module_files

if TYPE_CHECKING:
    from app.registry import TrainerSource
    from stagetree.spec import StudySpec

DATA = re.compile(r"\.(arrow|bin|csv|feather|gz|h5|hdf5|jsonl|mat|npy|npz|parquet|tar|tsv|txt|zip|zst)")
"""The suffixes of data files in source code. Other paths there are often written, not read."""

MOST_NAMED = 3


def undeclared_advice(spec: StudySpec, source: TrainerSource) -> list[str]:
    """The missing `inputs`, by the trainer's arguments and source, in at most one sentence."""
    listed = [Path(abspath(each)) for each in spec.inputs]
    found: dict[Path, str] = {}
    for name, place in chain(_argument_paths(spec), _source_paths(source)):
        path = Path(abspath(name))
        if not any(path.is_relative_to(each) for each in listed):
            found.setdefault(path, f"{name} ({place})")
    if not found:
        return []
    named = list(found.values())[:MOST_NAMED]
    more = f" and {len(found) - MOST_NAMED} more" if len(found) > MOST_NAMED else ""
    return [
        f"`inputs` does not name {', '.join(named)}{more}: if such a file changes, results of the one before are "
        "shown for it; what `inputs` names is looked at"
    ]


def missing_advice(spec: StudySpec) -> list[str]:
    """The study's paths that are missing on this machine, in at most one sentence. A server may have them."""
    begin = spec.begin_from
    named = {f"inputs[{number}]": path for number, path in enumerate(spec.inputs)}
    named |= {f"begin_from.{field}": path for field in ("file", "dcp") if (path := getattr(begin, field, None))}
    absent = [f"{path} ({field})" for field, path in named.items() if not _is_there(path)]
    return [f"not on this machine: {', '.join(absent)}; `run` refuses the study here"] if absent else []


def _argument_paths(spec: StudySpec) -> Iterator[tuple[str, str]]:
    """Files and folders in `trainer_args`; in `runtime_args` files alone, since a folder may be for results."""
    for field, arguments in (("trainer_args", spec.trainer_args), ("runtime_args", spec.runtime_args)):
        for argument, value in arguments.items():
            for name in filter(_is_there, _strings(value)):
                if field == "trainer_args" or Path(name).is_file():
                    yield name, f"{field}.{argument}"


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, list | dict):
        yield from chain.from_iterable(map(_strings, value.values() if isinstance(value, dict) else value))


def _source_paths(source: TrainerSource) -> Iterator[tuple[str, str]]:
    for file, content in module_files(source.path).items():
        for node in ast.walk(syntax_tree(content)):
            if isinstance(node, ast.Constant) and _is_data(name := node.value):
                yield name, f"{Path(file).name}, line {node.lineno}"


def _is_data(value: Any) -> TypeGuard[str]:
    return isinstance(value, str) and DATA.fullmatch(Path(value).suffix) is not None and _is_there(value)


def _is_there(name: str) -> bool:
    with suppress(OSError, ValueError):  # not a path
        return bool(name.strip()) and Path(name).exists()
    return False
