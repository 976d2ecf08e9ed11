"""Which code a trainer is: the bytes of its file and of all modules below its folder that it imports.

`module_files` reads them without running anything, `version_of` makes a version of them, and `import_exactly` lets a
process import those very bytes and no others, whatever becomes of the files meanwhile.

What is imported is read from the source: `import x`, `from x import y`, relative imports, wherever they stand, and
`import_module("x")` with a literal name. A module whose name is computed, data files and compiled extensions are out of
reach; `Imports.beyond` tells which modules were imported and are not covered.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from itertools import chain
from pathlib import Path
from types import CodeType, ModuleType

PACKAGE = "__init__.py"


class SourceError(Exception):
    """A file that cannot be read, or is not Python; the message says which and why."""


def module_files(path: str | Path) -> dict[str, bytes]:
    """The file and every module below its folder that it imports, by their paths relative to `root(path)[0]`.

    Of a file in a package, all below the package's topmost folder. Raises `SourceError`.
    """
    file = Path(path).resolve()
    base, name = root(file)
    closure = _Closure(base, base / name.split(".")[0] if "." in name or file.name == PACKAGE else base)
    closure.add(file)
    return dict(sorted(closure.files.items()))


def candidates(path: str | Path, files: Mapping[str, bytes]) -> list[Path]:
    """Every file whose change could change `module_files(path)`: those there are, and those that could be imported."""
    base, _ = root(Path(path).resolve())
    found = {base / name: None for name in files}
    for name, content in files.items():
        for module in _imported(_parsed(content, base / name), _package(base, base / name)):
            found |= dict.fromkeys(chain.from_iterable(_places(base, module)))
    return list(found)


def version_of(files: Mapping[str, bytes]) -> str:
    """A hash over names and bytes. Of a single file over its bytes alone, so that it may be called and lie anywhere."""
    if len(files) == 1:
        return hashlib.sha256(*files.values()).hexdigest()[:16]
    whole = hashlib.sha256()
    for name in sorted(files):
        whole.update(b"%s\0%s" % (name.encode(), hashlib.sha256(files[name]).digest()))
    return whole.hexdigest()[:16]


def root(file: Path) -> tuple[Path, str]:
    """The folder that a file is imported from, and the name it is imported by: `package.module` in a package."""
    parts = [] if file.name == PACKAGE else [file.stem]
    folder = file.parent
    while (folder / PACKAGE).exists():
        parts.insert(0, folder.name)
        folder = folder.parent
    return folder, ".".join(parts) or file.parent.name


class _Closure:
    """The modules below `below` that are reached from the first one, named as they are when `base` is searched."""

    def __init__(self, base: Path, below: Path) -> None:
        self._base, self._below = base, below
        self.files: dict[str, bytes] = {}

    def add(self, file: Path) -> None:
        waiting = [file, *self._found(_module_name(file.relative_to(self._base).as_posix()))]
        while waiting:
            file = waiting.pop()
            relative = file.relative_to(self._base).as_posix()
            if relative not in self.files:
                self.files[relative] = _read(file)
                tree = _parsed(self.files[relative], file)
                for module in _imported(tree, _package(self._base, file)):
                    waiting += self._found(module)

    def _found(self, module: str) -> Iterator[Path]:
        """The file of a module, and those of the packages it is in."""
        for places in _places(self._base, module):
            yield from [place for place in places if place.is_file() and place.is_relative_to(self._below)][:1]


def _places(base: Path, module: str) -> Iterator[tuple[Path, Path]]:
    """Where a module may lie, in the order in which Python looks; of the packages it is in first."""
    folder = base
    for part in module.split("."):
        folder = folder / part
        yield folder / PACKAGE, folder.with_name(f"{part}.py")


def _package(base: Path, file: Path) -> tuple[str, ...]:
    """The package that relative imports of a file start from, as parts."""
    return file.parent.relative_to(base).parts


def _read(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise SourceError(f"{file}: {error.strerror}") from None


def _parsed(content: bytes, file: Path) -> ast.Module:
    try:
        return ast.parse(content, filename=str(file))
    except SyntaxError as error:
        raise SourceError(f"{file}, line {error.lineno}: {error.msg}") from error
    except (ValueError, RecursionError, MemoryError):
        raise SourceError(f"{file}: is not a Python file") from None


def _imported(tree: ast.Module, package: Sequence[str]) -> Iterator[str]:
    """The absolute names of all modules that a source may import; some may be names inside a module."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=module, names=names, level=level):
                yield from _from(module, names, level, package)
            case ast.Call(func=ast.Name(id=called) | ast.Attribute(attr=called), args=[ast.Constant(value=str(name))]):
                if called in ("import_module", "__import__"):
                    yield name


def _from(module: str | None, names: list[ast.alias], level: int, package: Sequence[str]) -> Iterator[str]:
    if level > len(package):
        return
    within = [*package[: len(package) - level + 1], *([module] if module else [])] if level else [module or ""]
    yield from (".".join([*within, alias.name]) for alias in names if alias.name != "*")
    if within:
        yield ".".join(within)


# -------------------------------------------------------------------------------------------------------- importing


@dataclass(frozen=True)
class Imports:
    """A trainer's module as it is imported in this process: `files` by relative path, below `base`."""

    path: Path
    base: Path
    name: str
    files: Mapping[str, bytes]

    @property
    def version(self) -> str:
        """Of the very bytes that are imported."""
        return version_of(self.files)

    def module(self) -> ModuleType:
        """The trainer's own module; what it raises when it runs comes through."""
        present = sys.modules.get(self.name)
        if "." not in self.path.stem and (present is None or _is_at(present, self.path)):
            return importlib.import_module(self.name)
        return self._under_another_name()

    def beyond(self) -> list[str]:
        """The modules from below the folder that were imported so far and are not in `files`, as relative paths."""
        below = self.base / self.name.split(".")[0] if "." in self.name else self.base
        files = {_file(module) for module in list(sys.modules.values())}
        inside = (Path(file) for file in files if file is not None and file.startswith(f"{below}{os.sep}"))
        outside = {name for file in inside if (name := file.relative_to(self.base).as_posix()) not in self.files}
        return sorted(name for name in outside if "site-packages" not in name)

    def _under_another_name(self) -> ModuleType:
        """A file called as a module that is there already, such as json.py: that one must stay what it is."""
        other = f"trainer_{self.name.replace('.', '_')}"
        if other not in sys.modules:
            spec = _spec(other, self.path, self.files[self.path.relative_to(self.base).as_posix()])
            sys.modules[other] = module = module_from_spec(spec)
            try:
                spec.loader.exec_module(module)  # type: ignore[union-attr]
            except BaseException:
                del sys.modules[other]
                raise
        return sys.modules[other]


def import_exactly(path: str | Path, files: Mapping[str, bytes]) -> Imports:
    """From here on this process imports the modules of `files`, as `module_files(path)` gave them, from their bytes.

    They come before all others of their names. The folder is last on the path, so that what is beyond them is found
    too, and shadows nothing; whoever wants it first puts it there.
    """
    file = Path(path).resolve()
    base, name = root(file)
    sys.meta_path.insert(0, _Finder(base, files))
    if str(base) not in sys.path:
        sys.path.append(str(base))
    importlib.invalidate_caches()
    return Imports(file, base, name, files)


class _Finder(MetaPathFinder):
    """Finds the modules of a trainer in memory, by their natural names."""

    def __init__(self, base: Path, files: Mapping[str, bytes]) -> None:
        self._specs = {_module_name(name): (base / name, content) for name, content in files.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        found = self._specs.get(fullname)
        return None if found is None else _spec(fullname, *found)


class _Loader(InspectLoader):
    """A module from bytes, with the file they come from in its tracebacks."""

    def __init__(self, file: Path, content: bytes) -> None:
        self._file, self._content = file, content

    def is_package(self, fullname: str) -> bool:
        return self._file.name == PACKAGE

    def get_source(self, fullname: str) -> str:
        return importlib.util.decode_source(self._content)

    def get_filename(self, fullname: str) -> str:
        return str(self._file)

    def get_code(self, fullname: str) -> CodeType:
        lines = self.get_source(fullname).splitlines(keepends=True)
        linecache.cache[str(self._file)] = (len(self._content), None, lines, str(self._file))  # for tracebacks
        code: CodeType = compile(self._content, str(self._file), "exec", dont_inherit=True)
        return code


def _spec(name: str, file: Path, content: bytes) -> ModuleSpec:
    loader = _Loader(file, content)
    spec = spec_from_loader(name, loader, origin=str(file), is_package=loader.is_package(name))
    assert spec is not None
    spec.has_location = True
    if spec.submodule_search_locations is not None:
        spec.submodule_search_locations.append(str(file.parent))
    return spec


def _module_name(relative: str) -> str:
    parts = relative.removesuffix(".py").split("/")
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_at(module: ModuleType, path: Path) -> bool:
    return _file(module) == str(path)


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return _resolved(file) if isinstance(file, str) else None


def know_modules() -> None:
    """Look up where all modules are that are imported so far: what is forked later need not do that again."""
    for module in list(sys.modules.values()):
        _file(module)


@cache
def _resolved(file: str) -> str:
    """Once for each: there are thousands of modules, and every new model asks where all of them are."""
    return os.path.realpath(file)
