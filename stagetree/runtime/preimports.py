"""What trainers' files import, imported once in the interpreter that their processes are forked from.

scikit-learn alone takes more than a second of CPU, and a study starts several processes that train: one a slot, one for
the check, one for each hand-over that is proven. What is in the interpreter at that point costs none of them anything.

Only where nobody can tell. `PACKAGES` are those whose import starts no thread, opens no device and draws no random
number. They read the environment at most, as `SCIPY_ARRAY_API`: so nothing is imported where one of the files may
change that. Lightning, Transformers and their like read more when they are imported, and are left to the user.
"""

from __future__ import annotations

import ast
import contextlib
import importlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from stagetree.source.versions import SourceError, module_files, root
from stagetree.vision import prepare_torchvision

PACKAGES = frozenset({"PIL", "numpy", "pandas", "scipy", "sklearn", "torchvision"})

ENVIRONMENT = (b"environ", b"putenv")
"""Words of files that may change how a package is imported."""


def import_for(trainers: Iterable[str]) -> None:
    """Import what these trainers' files would, as far as that is sound; what cannot be imported is left to them."""
    names = modules_for(trainers)
    if names:
        prepare_torchvision()  # as the trainer's process does: beside a CPU-only torch it cannot be imported else
    for name in names:
        with contextlib.suppress(Exception):  # the trainer's process meets it, too, and can say whose it is
            importlib.import_module(name)


def modules_for(trainers: Iterable[str]) -> list[str]:
    """The names of modules of `PACKAGES` that trainers' files import; none for a file that is not there.

    None at all where one of the files may set environment variables: all processes have the same interpreter.
    """
    found: dict[str, None] = {}
    own: set[str] = set()
    for path in trainers:
        try:
            files = module_files(path)
        except SourceError:  # whoever loads it says so
            continue
        if any(word in content for content in files.values() for word in ENVIRONMENT):
            return []
        own |= {each.stem for each in root(Path(path).resolve())[0].iterdir()}  # where an import looks first
        found |= dict.fromkeys(_imported(files))
    return [name for name in found if name.partition(".")[0] in PACKAGES - own]


def _imported(files: Mapping[str, bytes]) -> Iterator[str]:
    """The modules that files name in their imports, wherever these stand."""
    for content in files.values():
        for node in ast.walk(ast.parse(content)):
            match node:
                case ast.Import(names=names):
                    yield from (alias.name for alias in names)
                case ast.ImportFrom(module=str(module), level=0):
                    yield module
