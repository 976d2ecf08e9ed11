"""Which environment variables a trainer's own code reads: they are no part of its version, nor of its study.

Variables of the machine, of a launcher and of libraries are not told: they differ between runs that are the same.
"""

from __future__ import annotations

import os
import sys
from fnmatch import fnmatchcase

from stagetree.runtime.failures import KEPT, SECRET
from stagetree.source.importing import installed_folders, is_installed
from stagetree.undeclared_input import Unnamed

NOT_TOLD = (
    *KEPT,
    *("PWD", "OLDPWD", "HOSTNAME", "TERM", "DISPLAY", "CI"),
    *("RANK", "WORLD_SIZE", "LOCAL_*", "GROUP_*", "MASTER_*", "SLURM_*", "OMPI_*", "PMI_*", "WANDB_*", "MLFLOW_*"),
)

MOST = 16
"""A program that reads more reads all of them, to pass them on."""

_read: dict[str, None] = {}
_watched: list[bool] = []
_users: dict[str, bool] = {}  # by the name of a source file, whether it is the user's


def watch() -> None:
    """From here on, note which variables this process asks for, whether they are there or not."""
    if _watched:
        return
    _watched.append(True)
    encoded = os.environ.encodekey  # which asking begins with

    def noted(key: str) -> str:
        if key not in _read and len(_read) <= MOST and _is_asked_by_user():
            _read[key] = None
        return encoded(key)

    os.environ.encodekey = noted


def variables_read() -> list[str]:
    """Their names, as `$DATA`. Names that sound secret are left out: even a hash of a password should not be kept."""
    names = list(_read) if len(_read) <= MOST else []
    return [Unnamed.variable(name).path for name in names if not SECRET.search(name) and not _is_not_told(name)]


def _is_not_told(name: str) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in NOT_TOLD)


def _is_asked_by_user() -> bool:
    """Whether the nearest code that is not of Python itself is the user's."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_code.co_filename in OF_MAPPINGS:
        frame = frame.f_back
    file = frame.f_code.co_filename
    if file not in _users:
        _users[file] = file.startswith("/") and not is_installed(os.path.realpath(file), installed_folders())
    return _users[file]


OF_MAPPINGS = {os.__file__, "<frozen os>", "<frozen _collections_abc>", sys.modules["_collections_abc"].__file__}
"""By way of which `os.environ.get` and `os.getenv` ask."""
