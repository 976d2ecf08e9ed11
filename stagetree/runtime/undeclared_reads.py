"""All that a trainer has read beside its version: data, code, variables of the environment and packages."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path
from typing import Any

from stagetree.runtime import file_reads, variables
from stagetree.runtime.loading import imports_of, packages_used
from stagetree.runtime.scripted import Script


def watch_reads() -> None:
    """From here on, note what this process reads."""
    file_reads.watch()
    variables.watch()


def reads_of(trainer: object, file: str) -> list[str]:
    """What a trainer has read, here and in processes of its own, as paths of `Unnamed`.

    file: the trainer's. Its own code is left out where the trainer says itself what its version is.
    """
    path = Path(file).resolve()
    code = imports_of(path)
    others = trainer.read_elsewhere() if isinstance(trainer, Script) else []
    is_declared = getattr(trainer, "version", code.version) != code.version
    own = [] if is_declared else file_reads.code_files(code)
    used = [*file_reads.data_files(), *own, *variables.variables_read(), *packages_used(path), *others]
    return list(dict.fromkeys(used))


def uses_of(file: str) -> dict[str, Any]:
    """What the process of a trainer's file has opened since the last time, see `stagetree.runtime.file_uses`; empty
    where it has opened nothing."""
    if not file_reads.opened():
        return {}
    return file_reads.uses.take({_folder_of(file), os.getcwd()})


@cache
def _folder_of(file: str) -> str:
    return str(Path(file).resolve().parent)
