"""Records which environment variables a trainer's own code reads: neither its version nor its study covers them.

Variables of the machine, of launchers and of libraries are left out: they differ between equal runs.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase

from stagetree.runtime.failures import PASSED_VARIABLES, SECRET
from stagetree.source.importing import installed_folders, is_installed
from stagetree.source.undeclared_input import UndeclaredInput

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


def watch() -> None:
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
    names = list(_read) if len(_read) <= MAX_VARIABLES else []
    return [UndeclaredInput.variable(name).path for name in names if not SECRET.search(name) and not _is_ignored(name)]


def _is_ignored(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in IGNORED_VARIABLES)


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
