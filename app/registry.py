"""The trainers that this installation offers: read from Python files named by the operator, never by a client.

`describe` looks at the files without running them, so that the API process needs neither torch nor the user's code;
`load` runs them, in a worker. Both give a class the same version: the literal `version` it declares, or the SHA-256 of
its file, so that changed code is another plan and never goes on from an old checkpoint.
"""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from stagetree import Trainer


class TrainerFileError(Exception):
    """A trainer file that cannot be used; the message says which and why."""


def describe(files: Iterable[str]) -> dict[str, str]:
    """The version of each trainer by its name. Raises `TrainerFileError`."""
    found: dict[str, str] = {}
    for path in files:
        for name, version in _classes(path):
            if name in found:
                raise TrainerFileError(f"{path}: there is another trainer named {name!r}; names must differ")
            found[name] = version
    return found


def load(files: Iterable[str], name: str) -> type[Trainer] | None:
    """The trainer of that name, if a file has it; other files are not run, so that a broken one harms nobody else.

    Raises `TrainerFileError`; whatever the file raises when it is run comes through.
    """
    from stagetree.trainer import Trainer

    for path in files:
        if name in dict(_classes(path)):
            for value in vars(_run(Path(path))).values():
                if isinstance(value, type) and issubclass(value, Trainer) and value.__dict__.get("name") == name:
                    return value
    return None


def _classes(path: str) -> Iterator[tuple[str, str]]:
    """(name, version) of each class in a file that has bases and a literal `name`."""
    source = _read(path)
    try:
        tree = ast.parse(source, filename=path)
    except SyntaxError as error:
        raise TrainerFileError(f"{path}, line {error.lineno}: {error.msg}") from None
    literals = [_literals(node) for node in tree.body if isinstance(node, ast.ClassDef) and node.bases]
    named = [(found["name"], found.get("version", _digest(source))) for found in literals if "name" in found]
    if not named:
        raise TrainerFileError(f'{path} holds no trainer: a subclass of Trainer with name = "..." in its body')
    yield from named


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "is not a Python file"
        raise TrainerFileError(f"{path}: {reason}") from None


def _literals(node: ast.ClassDef) -> dict[str, str]:
    """The string attributes that a class body sets."""
    found: dict[str, str] = {}
    for statement in node.body:
        targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
        value = getattr(statement, "value", None)
        for target in targets:
            if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
                found[target.id] = value.value
    return found


def _digest(source: str) -> str:
    return hashlib.sha256(source.encode()).hexdigest()[:16]


def _run(path: Path) -> object:
    """The module of a file, run once; its folder can be imported from, as for a script."""
    name = f"stagetree_trainers_{_digest(str(path.resolve()))}"
    if name not in sys.modules:
        sys.path.append(str(path.resolve().parent))
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        sys.modules[name] = module = importlib.util.module_from_spec(spec)
        try:
            spec.loader.exec_module(module)
        except BaseException:
            del sys.modules[name]
            raise
    return sys.modules[name]
