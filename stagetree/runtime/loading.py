"""The trainer class out of a user's file. A process serves one such file, so that no two users' modules ever meet.

The file is imported as Python would if its user ran it: its folder, or the folder that holds its package, comes first
on the path, and the module has its natural name. So its neighbours and relative imports are found, and a process that
it starts can import it by that name. What is imported are the very bytes that its version is over. torchvision can be
imported there beside any torch.
"""

from __future__ import annotations

import sys
from functools import cache
from pathlib import Path

from stagetree.source.versions import Imports, SourceError, import_exactly, module_files
from stagetree.trainer import Trainer
from stagetree.vision import prepare_torchvision


class TrainerFileError(Exception):
    """A trainer file that cannot be used; the message says which and why."""


def load_trainer(path: str | Path, name: str) -> type[Trainer]:
    """The trainer of that name in a file. Raises `TrainerFileError`; whatever the file raises comes through."""
    for value in vars(imports_of(Path(path).resolve()).module()).values():
        if isinstance(value, type) and issubclass(value, Trainer) and value.__dict__.get("name") == name:
            return value
    raise TrainerFileError(f"{path} holds no subclass of Trainer whose name is {name!r}")


@cache
def imports_of(file: Path) -> Imports:
    """What this process imports of a trainer's code: as it was when it was first asked. Raises `TrainerFileError`."""
    if not file.is_file():
        raise TrainerFileError(f"{file}: there is no such file on the machine of this worker")
    prepare_torchvision()
    try:
        imports = import_exactly(file, module_files(file))
    except SourceError as error:
        raise (error.__cause__ or TrainerFileError(str(error))) from None  # as Python itself would say it
    if sys.path[:1] != [str(imports.base)]:
        sys.path.insert(0, str(imports.base))
    return imports
