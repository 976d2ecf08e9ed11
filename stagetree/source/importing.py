"""Makes a process import a trainer's modules from given bytes, even if the files change later."""

from __future__ import annotations

import importlib
import importlib.util
import linecache
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.abc import InspectLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import CodeType, ModuleType

from stagetree.source.versions import PACKAGE, module_name, root, version_of

SYSTEM = ("/proc", "/sys", "/dev", "/etc", "/usr", "/lib", "/opt/conda")
PACKAGES = {"site-packages", "dist-packages"}
OURS = [str(Path(__file__).parents[1]), str(Path(__file__).parents[2] / "app")]


@dataclass(frozen=True)
class Imports:
    """A trainer's imported module. files: contents by path relative to `base`."""

    path: Path
    base: Path
    name: str
    files: Mapping[str, bytes]

    @property
    def version(self) -> str:
        """The version of exactly the imported bytes."""
        return version_of(self.files)

    def others(self) -> dict[Path, bytes]:
        """The files other than the trainer's own, which other processes may read."""
        files = {self.base / name: content for name, content in self.files.items()}
        return {file: content for file, content in files.items() if file != self.path}

    def module(self) -> ModuleType:
        """The trainer's own module. Raises the module's errors."""
        present = sys.modules.get(self.name)
        if "." not in self.path.stem and (present is None or _file(present) == str(self.path)):
            return importlib.import_module(self.name)
        return self._import_renamed()

    def uncovered_files(self) -> list[str]:
        """The files of imported modules that are neither in `files` nor installed."""
        covered, installed = {str(self.base / name) for name in self.files}, installed_folders()
        files = {_file(module) for module in list(sys.modules.values())} - covered
        return sorted(file for file in files if file is not None and not is_installed(file, installed))

    def _import_renamed(self) -> ModuleType:
        """Import a file whose name is taken by another module, such as json.py, by another name."""
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
    """Make this process import the modules of `files`, the result of `module_files(path)`, from their bytes.

    They take precedence over other modules of their names. The folder is appended to the path, so that modules beyond
    `files` are found without shadowing others; callers may put it first.
    """
    file = Path(path).resolve()
    base, name = root(file)
    sys.meta_path.insert(0, _Finder(base, files))
    if str(base) not in sys.path:
        sys.path.append(str(base))
    importlib.invalidate_caches()
    return Imports(file, base, name, files)


class _Finder(MetaPathFinder):
    """Finds a trainer's modules in memory by their natural names."""

    def __init__(self, base: Path, files: Mapping[str, bytes]) -> None:
        self._specs = {module_name(name): (base / name, content) for name, content in files.items()}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        place = self._specs.get(fullname)
        return None if place is None else _spec(fullname, *place)


class _Loader(InspectLoader):
    """Loads a module from bytes, with its file in tracebacks."""

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


def installed_folders() -> tuple[str, ...]:
    """The folders of the system, Python, packages and stagetree, each with a trailing slash."""
    return _installed_folders(tuple(sys.path))


@cache
def _installed_folders(search_path: tuple[str, ...]) -> tuple[str, ...]:
    packages = [path for path in search_path if Path(path).name in PACKAGES]
    folders = [sys.prefix, sys.base_prefix, os.path.dirname(os.__file__), *packages, *OURS]
    return tuple({f"{folder.rstrip('/')}/": None for folder in (*SYSTEM, *folders, *map(os.path.realpath, folders))})


def is_installed(file: str, folders: tuple[str, ...]) -> bool:
    """Whether a file is installed. folders: from `installed_folders`."""
    return file.startswith(folders) or not PACKAGES.isdisjoint(file.split("/"))


def _file(module: ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return _resolve(file) if isinstance(file, str) and os.path.isabs(file) else None  # some of torch are invented


def cache_module_paths() -> None:
    """Cache the paths of all imported modules, so that forks need not resolve them."""
    for module in list(sys.modules.values()):
        _file(module)


@cache
def _resolve(file: str) -> str:
    """Cached, since each new model resolves thousands of modules."""
    return os.path.realpath(file)
