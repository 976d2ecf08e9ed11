"""Everything a trainer has read besides its version: data, code, environment variables and packages."""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import Any

from stagetree.runtime.failures import PASSED_VARIABLES, SECRET
from stagetree.runtime.loading import imports_of, packages_used
from stagetree.runtime.reads import file_reads
from stagetree.runtime.scripts.interface import Script
from stagetree.source.importing import installed_folders, is_installed
from stagetree.source.undeclared_input import UndeclaredInput


def watch_reads() -> None:
    """Start recording what this process reads."""
    file_reads.watch()
    watch_variables()


def reads_of(trainer: object, file: str) -> list[str]:
    """What a trainer has read, here and in its own processes, as paths of `UndeclaredInput`.

    file: the trainer's. Its own code is left out if the trainer declares a version itself.
    """
    path = Path(file).resolve()
    code = imports_of(path)
    others = trainer.files_read_by_ranks() if isinstance(trainer, Script) else []
    is_declared = getattr(trainer, "version", code.version) != code.version
    own = [] if is_declared else file_reads.code_files(code)
    used = [*file_reads.data_files(), *own, *variables_read(), *packages_used(path), *others]
    return list(dict.fromkeys(used))


def uses_of(file: str) -> dict[str, Any]:
    """The files that the trainer's process has opened since the last call, see `FileUses`; empty if there are none."""
    if not file_reads.count_uses():
        return {}
    return file_reads.uses.take({_folder_of(file), os.getcwd()})


@cache
def _folder_of(file: str) -> str:
    return str(Path(file).resolve().parent)


IGNORED_VARIABLES = (
    *PASSED_VARIABLES,
    *("PWD", "OLDPWD", "HOSTNAME", "TERM", "DISPLAY", "CI"),
    *("RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*", "MASTER_*", "SLURM_*", "OMPI_*", "PMI_*", "WANDB_*", "MLFLOW_*"),
)

MAX_VARIABLES = 16
"""A program that reads more variables copies the whole environment."""

_read: dict[str, None] = {}
_watched: list[bool] = []
_users: dict[str, bool] = {}  # whether a source file is the user's


def watch_variables() -> None:
    """Start recording the variables that this process asks for, set or not."""
    if _watched:
        return
    _watched.append(True)
    encoded = os.environ.encodekey  # called by every lookup

    def encode_and_record(key: str) -> str:
        if key not in _read and len(_read) <= MAX_VARIABLES and _is_asked_by_user():
            _read[key] = None
        return encoded(key)

    os.environ.encodekey = encode_and_record


def variables_read() -> list[str]:
    """The names, such as `$DATA`. Secret-sounding ones are left out: not even a password's hash should be stored."""
    names = [name for name in _read if not SECRET.search(name)] if len(_read) <= MAX_VARIABLES else []
    kept = (name for name in names if not any(fnmatchcase(name, pattern) for pattern in IGNORED_VARIABLES))
    return [UndeclaredInput.variable(name).path for name in kept]


def _is_asked_by_user() -> bool:
    """Whether the nearest frame outside of Python's own mappings is the user's code."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in MAPPING_FILES:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file not in _users:
        _users[file] = file.startswith("/") and not is_installed(os.path.realpath(file), installed_folders())
    return _users[file]


MAPPING_FILES = {os.__file__, "<frozen os>", "<frozen _collections_abc>", sys.modules["_collections_abc"].__file__}
"""The files through which `os.environ.get` and `os.getenv` look variables up."""
