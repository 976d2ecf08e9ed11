"""Which files of the tree something was learnt from, each as it was then."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from pathlib import Path

Files = Mapping[str, str]
"""By the path of each file in the tree: the digest of its content."""


def made_of(root: Path, modules: Iterable[object]) -> Files:
    """The files of the tree from which these modules were imported."""
    named = (getattr(module, "__file__", None) for module in modules)
    return digests(root, (Path(name) for name in named if name is not None))


def digests(root: Path, files: Iterable[Path]) -> Files:
    """The files of these that are in the tree, as they are now."""
    here, whole = root.resolve(), {file.resolve() for file in files}
    return {str(file.relative_to(here)): _digest(file) for file in sorted(whole) if file.is_relative_to(here)}


def is_as_it_was(root: Path, files: Files) -> bool:
    """Whether all of them are still the same."""
    return all(_digest(root / name) == digest for name, digest in files.items())


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest() if file.is_file() else ""
