"""An input that a trainer reads and its study does not name, written as a path.

A file's path; a pattern for many files, such as `/data/train/*.png`; `$DATA` for an environment variable;
`package:timm` for an installed package, or `package:timm==1.0.3` for a version that has been replaced since.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

MANY, VARIABLE, PACKAGE, VERSION = "/*", "$", "package:", "=="

PYTHON = "Python"
"""Listed with the packages, as its version matters in the same way."""


@dataclass(frozen=True, slots=True)
class UndeclaredInput:
    path: str

    @classmethod
    def files(cls, folder: str, ending: str) -> UndeclaredInput:
        """All files with an ending in a folder."""
        return cls(f"{folder}{MANY}{ending}")

    @classmethod
    def variable(cls, name: str) -> UndeclaredInput:
        return cls(VARIABLE + name)

    @classmethod
    def package(cls, module: str, version: str = "") -> UndeclaredInput:
        """module: its import name, or `PYTHON`."""
        return cls(f"{PACKAGE}{module}{VERSION if version else ''}{version}")

    @property
    def is_variable(self) -> bool:
        return self.path.startswith(VARIABLE)

    @property
    def is_package(self) -> bool:
        return self.path.startswith(PACKAGE)

    @property
    def is_file(self) -> bool:
        """Whether it is a file, or stands for many."""
        return not (self.is_variable or self.is_package)

    @property
    def is_pattern(self) -> bool:
        """Whether it stands for many files."""
        return MANY in self.path and self.is_file

    @property
    def name(self) -> str:
        """The name of a variable or package; otherwise the path."""
        if self.is_package:
            return self.path.removeprefix(PACKAGE).partition(VERSION)[0]
        return self.path.removeprefix(VARIABLE)

    @property
    def version(self) -> str:
        """A package's version at the time; empty if unknown."""
        return self.path.partition(VERSION)[2] if self.is_package else ""

    @property
    def folder(self) -> str:
        """The folder that contains a pattern's files, directly or in subfolders; a file's own path."""
        return (self.path.partition(MANY)[0] or os.sep) if self.is_pattern else self.path
