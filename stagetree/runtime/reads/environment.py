"""Records which environment variables a trainer's own code reads: neither its version nor its study covers them.

Variables of the machine, of launchers and of libraries are left out: they differ between equal runs.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase

from stagetree.runtime.failures import KEPT, SECRET
from stagetree.source.importing import installed_folders, is_installed
from stagetree.source.undeclared_input import UndeclaredInput

NOT_TOLD = (
    *KEPT,
    *("PWD", "OLDPWD", "HOSTNAME", "TERM", "DISPLAY", "CI"),
    *("RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*", "MASTER_*", "SLURM_*", "OMPI_*", "PMI_*", "WANDB_*", "MLFLOW_*"),
)

MOST = 16
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

    def noted(key: str) -> str:
        if key not in _read and len(_read) <= MOST and _is_asked_by_user():
            _read[key] = None
        return encoded(key)

    os.environ.encodekey = noted


def variables_read() -> list[str]:
    """The names, such as `$DATA`. Secret-sounding ones are left out: not even a password's hash should be stored."""
    names = list(_read) if len(_read) <= MOST else []
    return [UndeclaredInput.variable(name).path for name in names if not SECRET.search(name) and not _is_not_told(name)]


def _is_not_told(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in NOT_TOLD)


def _is_asked_by_user() -> bool:
    """Whether the nearest frame outside of Python's own mappings is the user's code."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in OF_MAPPINGS:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file not in _users:
        _users[file] = file.startswith("/") and not is_installed(os.path.realpath(file), installed_folders())
    return _users[file]


OF_MAPPINGS = {os.__file__, "<frozen os>", "<frozen _collections_abc>", sys.modules["_collections_abc"].__file__}
"""The files through which `os.environ.get` and `os.getenv` look variables up."""
