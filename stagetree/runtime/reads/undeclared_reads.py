"""Everything a trainer has read besides its version: data, code, environment variables and packages."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from stagetree.runtime.loading import imports_of, packages_used
from stagetree.runtime.reads import environment as variables
from stagetree.runtime.reads import file_reads
from stagetree.runtime.scripts.interface import Script


def watch_reads() -> None:
    """Start recording what this process reads."""
    file_reads.watch()
    variables.watch()


def reads_of(trainer: object, file: str) -> list[str]:
    """What a trainer has read, here and in its own processes, as paths of `UndeclaredInput`.

    file: the trainer's. Its own code is left out if the trainer declares a version itself.
    """
    path = Path(file).resolve()
    code = imports_of(path)
    others = trainer.files_read_by_ranks() if isinstance(trainer, Script) else []
    is_declared = getattr(trainer, "version", code.version) != code.version
    own = [] if is_declared else file_reads.code_files(code)
    used = [*file_reads.data_files(), *own, *variables.variables_read(), *packages_used(path), *others]
    return list(dict.fromkeys(used))


def uses_of(file: str) -> dict[str, Any]:
    """The files that the trainer's process has opened since the last call, see `file_uses`; empty if there are none."""
    if not file_reads.count_uses():
        return {}
    return file_reads.uses.take({_folder_of(file), os.getcwd()})


@cache
def _folder_of(file: str) -> str:
    return str(Path(file).resolve().parent)
