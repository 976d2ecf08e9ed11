"""What a trainer reads and its study does not name, told by a path each.

Of a file, its own; of many files, a pattern, such as `/data/train/*.png`; of a variable of the environment, `$DATA`; of
an installed package, `package:timm`, and `package:timm==1.0.3` where another version took its place.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MANY, VARIABLE, PACKAGE, VERSION = "/*", "$", "package:", "=="

PYTHON = "Python"
"""Among packages: it changes as they do."""


@dataclass(frozen=True, slots=True)
class Unnamed:
    path: str

    @classmethod
    def files(cls, folder: str, ending: str) -> Unnamed:
        """All files of an ending in a folder."""
        return cls(f"{folder}{MANY}{ending}")

    @classmethod
    def variable(cls, name: str) -> Unnamed:
        return cls(VARIABLE + name)

    @classmethod
    def package(cls, module: str, version: str = "") -> Unnamed:
        """module: as it is imported, or `PYTHON`."""
        return cls(f"{PACKAGE}{module}{VERSION if version else ''}{version}")

    @property
    def is_variable(self) -> bool:
        return self.path.startswith(VARIABLE)

    @property
    def is_package(self) -> bool:
        return self.path.startswith(PACKAGE)

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for many files, unless there is one that is called so."""
        return MANY in self.path and not (self.is_variable or self.is_package)

    @property
    def name(self) -> str:
        """Of a variable or a package; of files, their path."""
        if self.is_package:
            return self.path.removeprefix(PACKAGE).partition(VERSION)[0]
        return self.path.removeprefix(VARIABLE)

    @property
    def version(self) -> str:
        """Of a package, as it was; empty where that is not told."""
        return self.path.partition(VERSION)[2] if self.is_package else ""

    @property
    def folder(self) -> str:
        """Where all files of a pattern lie, or in folders of it; of a file, itself."""
        return (self.path.partition(MANY)[0] or os.sep) if self.is_pattern else self.path
