"""Loads the trainer class from a user's file. A process serves one file, so that different users' modules never mix.

The file is imported as if its user ran it: its folder, or the folder of its package, comes first on the path, and the
module has its natural name. So it finds its neighbours and relative imports, and processes that it starts can import
it. The imported bytes are exactly those of its version. torchvision works beside any torch.

A script that owns its loop is run instead: see `stagetree.runtime.scripts.script_trainer`.

Some imports are made in advance, in the interpreter that trainer processes are forked from: scikit-learn alone takes
more than a second of CPU, and a study starts many processes. Only `PACKAGES` are imported there, since their import
starts no thread, opens no device and draws no random number. They read at most environment variables, such as
`SCIPY_ARRAY_API`: nothing is imported in advance if a trainer's file may set one. Lightning, Transformers and the like
read more on import, and are left to the user.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache, lru_cache
from importlib import metadata
from pathlib import Path
from types import ModuleType
from typing import Any

from stagetree.runtime.scripts.launched_trainer import LaunchedTrainer
from stagetree.runtime.scripts.script_trainer import script_trainer
from stagetree.source.discovery import scripts
from stagetree.source.environment_writes import may_set_environment
from stagetree.source.importing import Imports, import_exactly
from stagetree.source.undeclared_input import PYTHON, UndeclaredInput
from stagetree.source.versions import SourceError, module_files, root
from stagetree.trainer import Trainer, generators
from stagetree.trainer.command import CommandTrainer
from stagetree.vision import prepare_torchvision


class TrainerFileError(Exception):
    """A trainer file that cannot be used; the message says which and why."""


def load_trainer(path: str | Path, name: str) -> type[Trainer]:
    """The trainer of that name in a file. Raises `TrainerFileError`, and the file's own errors."""
    imports = imports_of(Path(path).resolve())
    if name in (scripts_here := scripts(path, imports.files)):
        if not (launch := scripts_here[name].get("launch")):
            return script_trainer(name, imports)
        members = {"__module__": __name__, "name": name, "file": imports.path, "version": imports.version}
        return type("Script", (LaunchedTrainer,), {**members, "launch": launch, "defaults": scripts_here[name]})
    for value in vars(imports.module()).values():
        if isinstance(value, type) and issubclass(value, Trainer) and value.__dict__.get("name") == name:
            if issubclass(value, CommandTrainer):
                value.folder, value.sources = imports.path.parent, imports.others()
            return value
    raise TrainerFileError(f"{path} holds no subclass of Trainer whose name is {name!r}")


def script_of(path: str | Path, name: str) -> Mapping[str, Any] | None:
    """The literal arguments of `attach`, if the trainer of that name is a script that owns its loop; else None.

    Runs no code. Raises `SourceError`.
    """
    return scripts(path, module_files(path)).get(name)


@cache
def imports_of(file: Path) -> Imports:
    """The imports of a trainer's code, cached at the first call. Raises `TrainerFileError`."""
    if not file.is_file():
        raise TrainerFileError(f"{file}: there is no such file on the machine of this worker")
    prepare_torchvision()
    try:
        imports = import_exactly(file, module_files(file))
    except SourceError as error:
        raise (error.__cause__ or TrainerFileError(str(error))) from None  # a SyntaxError is raised as Python does
    generators.undo_draws_of_imports()
    if sys.path[:1] != [str(imports.base)]:
        sys.path.insert(0, str(imports.base))
    return imports


def code_modules(file: str) -> list[ModuleType]:
    """The imported modules of the user's code."""
    names = _names_of_code(file, len(sys.modules), next(reversed(sys.modules)))
    return [sys.modules[name] for name in names if name in sys.modules]


@lru_cache(maxsize=4)
def _names_of_code(file: str, count: int, newest: str) -> list[str]:
    """count, newest: of all modules, as a cheap sign of new imports among a thousand."""
    imports = imports_of(Path(file).resolve())
    files = {str(imports.base / name) for name in imports.files}
    nothing: dict[str, Any] = {}
    modules = list(sys.modules.items())
    return [name for name, each in modules if getattr(each, "__dict__", nothing).get("__file__") in files]


PACKAGES = frozenset({"PIL", "numpy", "pandas", "scipy", "sklearn", "torchvision"})


def import_for(trainers: Iterable[str]) -> None:
    """Import the trainers' packages in advance where that is safe; errors are left to the trainers."""
    names = modules_for(trainers)
    if names:
        prepare_torchvision()  # it may be imported beside a CPU-only torch
    for name in names:
        with contextlib.suppress(Exception):  # the trainer's process raises it again, with its file
            importlib.import_module(name)


def modules_for(trainers: Iterable[str]) -> list[str]:
    """The modules of `PACKAGES` that trainers' files import; none for a missing file.

    None at all if one of the files may set environment variables: all processes share the interpreter.
    """
    modules: dict[str, None] = {}
    own: set[str] = set()
    for path in trainers:
        try:
            files = module_files(path)
        except SourceError:  # loading the trainer reports it
            continue
        if any(map(may_set_environment, files.values())):
            return []
        own |= {each.stem for each in root(Path(path).resolve())[0].iterdir()}  # these would shadow a package
        modules |= dict.fromkeys(_imported_modules(files))
    return [name for name in modules if name.partition(".")[0] in PACKAGES - own]


@cache
def package_versions(file: Path) -> dict[str, str]:
    """The version of each package that a trainer's files import, by name.

    torch and Python are recorded separately with the machine. Raises `TrainerFileError`.
    """
    found = {name: _version_of(name) for name in _imported_packages(file) if name != "torch"}
    return {name: version for name, version in found.items() if version}


def packages_used(file: Path) -> list[str]:
    """Python, torch and the packages that a trainer's files import, as paths of `UndeclaredInput`.

    Raises `TrainerFileError`.
    """
    return [UndeclaredInput.package(name).path for name in dict.fromkeys([PYTHON, "torch", *_imported_packages(file)])]


def _imported_packages(file: Path) -> list[str]:
    """The third-party modules that a trainer's files import."""
    imports = imports_of(file)
    names = {name.partition(".")[0] for name in _imported_modules(imports.files)} - {"stagetree"}
    own = {each.split("/")[0].removesuffix(".py") for each in imports.files}
    return sorted(names - sys.stdlib_module_names - own)


def _version_of(name: str) -> str:
    """The version by the imported module, or else by the distribution of that name."""
    told = getattr(sys.modules.get(name), "__version__", None)
    if isinstance(told, str):
        return told
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return ""


def _imported_modules(files: Mapping[str, bytes]) -> Iterator[str]:
    """The modules that files import, at any place."""
    for content in (content for name, content in files.items() if name.endswith(".py")):
        for node in ast.walk(ast.parse(content)):
            match node:
                case ast.Import(names=names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield module
