"""The folder that a trainer's source is written to, named by its content."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stagetree.cell_source.definitions import UNNAMED
from stagetree.cell_source.gathering import Gathered
from stagetree.errors import StagetreeError
from stagetree.functions import FunctionTrainer
from stagetree.trainer import Trainer
from stagetree.trainer_source import ENTRIES
from stagetree.whole_file import whole_file


@dataclass(frozen=True, slots=True)
class SourceFolder:
    """`name` is what a study calls the trainer, `folder` what the folder is called, `entry` which file the trainer is.

    files: by their paths in the folder.
    """

    name: str
    folder: str
    entry: str
    files: Mapping[str, str]

    def write(self, under: Path) -> None:
        """Put the folder there, the trainer's file last; if it is there, it is the same."""
        for path, text in sorted(self.files.items(), key=lambda file: file[0] == self.entry):
            target = under / self.folder / path
            if not target.exists():
                with whole_file(target) as file:
                    file.write(text.encode())


def source_of(cls: type[Trainer]) -> SourceFolder:
    """The source of a trainer's class. Raises `StagetreeError` where it cannot be had, with what to do about it."""
    if not (isinstance(cls, type) and issubclass(cls, Trainer)):
        raise StagetreeError(f"a trainer must be a class that is a Trainer, got {cls!r}")
    name = str(cls.__dict__.get("name", cls.__name__))
    gathered = Gathered()
    if issubclass(cls, FunctionTrainer) and cls.__module__ == FunctionTrainer.__module__:
        last = gathered.functions(cls)
    else:
        last = gathered.trainer(cls)
    text = "\n\n\n".join(["from __future__ import annotations", *gathered.texts.values(), last])
    has_trainer = any(place.partition("/")[0] in ("trainer", "trainer.py") for place in gathered.modules)
    entry = ENTRIES[0 if has_trainer else 1]
    files = {entry: text, **gathered.modules}
    digest = hashlib.sha256(repr(sorted(files.items())).encode()).hexdigest()[:12]
    full = f"{name}@{digest}"
    files[entry] = text.replace(UNNAMED, full) + "\n"
    return SourceFolder(full, f"{cls.__name__}-{digest}", entry, files)
