"""The code that belongs to a trainer: its file and all modules below its folder that it imports.

`module_files` reads them without running anything, and `version_of` computes a version of them. `importing` makes a
process import exactly these bytes.

Imports are found in the source: `import x`, `from x import y` and relative imports at any place, and
`import_module("x")` with a literal name. Files named in the `command` of a `CommandTrainer` are included. Modules with
computed names, editable installs, other data files and compiled extensions are not; `Imports.beyond` lists the imported
modules that are not covered.
"""

from __future__ import annotations

import ast
import hashlib
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from pathlib import Path

from stagetree.source.syntax import syntax_tree

PACKAGE = "__init__.py"


class SourceError(Exception):
    """A file that cannot be read or is not Python; the message says which and why."""


def module_files(path: str | Path) -> dict[str, bytes]:
    """The contents of the file and of every module below its folder that it imports, by path relative to
    `root(path)[0]`.

    For a file in a package, of all modules below the topmost package folder. Raises `SourceError`.
    """
    file = Path(path).resolve()
    base, name = root(file)
    closure = _Closure(base, base / name.split(".")[0] if "." in name or file.name == PACKAGE else base)
    closure.add(file)
    return dict(sorted(closure.files.items()))


def candidates(path: str | Path, files: Mapping[str, bytes]) -> list[Path]:
    """All files whose change could affect `module_files(path)`: existing ones, and places of possible imports."""
    base, _ = root(Path(path).resolve())
    paths = {base / name: None for name in files}
    for name, content in files.items():
        if not name.endswith(".py"):
            continue
        for module in _read_names(content, base / name, _package(base, base / name)).imported:
            paths |= dict.fromkeys(chain.from_iterable(_places(base, module)))
    return list(paths)


def version_of(files: Mapping[str, bytes]) -> str:
    """A hash of names and contents; of a single file only its content, so that it may be renamed and moved."""
    if len(files) == 1:
        return hashlib.sha256(*files.values()).hexdigest()[:16]
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(b"%s\0%s" % (name.encode(), hashlib.sha256(files[name]).digest()))
    return whole.hexdigest()[:16]


def root(file: Path) -> tuple[Path, str]:
    """The folder that a file is imported from, and its import name: `package.module` in a package."""
    parts = [] if file.name == PACKAGE else [file.stem]
    folder = file.parent
    while (folder / PACKAGE).exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts) or file.parent.name


def module_name(relative: str) -> str:
    """The import name of a file, from its relative path."""
    parts = relative.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class _Closure:
    """The modules below `below` that the first one reaches, by their paths relative to `base`."""

    def __init__(self, base: Path, below: Path) -> None:
        self._base, self._below = base, below
        self.files: dict[str, bytes] = {}

    def add(self, file: Path) -> None:
        waiting = [file, *self._module_paths(module_name(file.relative_to(self._base).as_posix()))]
        while waiting:
            file = waiting.pop()
            relative = file.relative_to(self._base).as_posix()
            if relative not in self.files:
                try:
                    self.files[relative] = file.read_bytes()
                except OSError as error:
                    raise SourceError(f"{file}: {error.strerror}") from None
                if file.suffix != ".py":
                    continue  # not Python: a program, or a file that it reads
                names = _read_names(self.files[relative], file, _package(self._base, file))
                waiting += self._command_files(names.words, file.parent)
                for module in names.imported:
                    waiting += self._module_paths(module)

    def _command_files(self, words: Iterable[str], folder: Path) -> Iterator[Path]:
        """The files named in the commands of `CommandTrainer`s."""
        for word in words:
            if (file := (folder / word).resolve()).is_file() and file.is_relative_to(self._below):
                yield file

    def _module_paths(self, module: str) -> Iterator[Path]:
        """The files of a module and of its packages."""
        for places in _places(self._base, module):
            yield from [place for place in places if place.is_file() and place.is_relative_to(self._below)][:1]


def _places(base: Path, module: str) -> Iterator[tuple[Path, Path]]:
    """The possible files of each package of a module and of the module, in import order."""
    folder = base
    for part in module.split("."):
        folder = folder / part
        yield folder / PACKAGE, folder.with_name(f"{part}.py")


def _package(base: Path, file: Path) -> tuple[str, ...]:
    """The package that relative imports of a file start from, as parts."""
    return file.parent.relative_to(base).parts


@dataclass(frozen=True, slots=True)
class _Names:
    """What a source names: the modules that it may import, and the words of its commands."""

    imported: tuple[str, ...]
    words: tuple[str, ...]


@lru_cache(maxsize=256)
def _read_names(content: bytes, file: Path, package: tuple[str, ...]) -> _Names:
    """Cached: a trainer's files are read several times before it is known that they do not change.

    Raises `SourceError`.
    """
    try:
        tree = syntax_tree(content, filename=str(file))
        return _Names(tuple(_imported_names(tree, package)), tuple(_commands(tree)))
    except SyntaxError as error:
        raise SourceError(f"{file}, line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError):
        raise SourceError(f"{file}: is not a Python file") from None


def _imported_names(tree: ast.Module, package: Sequence[str]) -> Iterator[str]:
    """The absolute names of all modules that a source may import; some may be names inside a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from _names_in_import(module, names, level, package)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name))]):
                if called in ("import_module", "__import__"):
                    yield name


def _commands(tree: ast.Module) -> Iterator[str]:
    """The words of all `command = "..."` in class bodies."""
    statements = (each for node in tree.body if isinstance(node, ast.ClassDef) for each in node.body)
    for each in statements:
        match each:
            case (
                ast.Assign(targets=[ast.Name(id="command")], value=ast.Constant(value=str(command)))
                | ast.AnnAssign(target=ast.Name(id="command"), value=ast.Constant(value=str(command)))
            ):
                with suppress(ValueError):  # reported when the command is used
                    yield from shlex.split(command)


def _names_in_import(module: str | None, names: list[ast.alias], level: int, package: Sequence[str]) -> Iterator[str]:
    if level > len(package):
        return
    within = [*package[: len(package) - level + 1], *([module] if module else [])] if level else [module or ""]
    yield from (".".join([*within, alias.name]) for alias in names if alias.name != "*")
    if within:
        yield ".".join(within)
