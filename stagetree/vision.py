"""torchvision on any build of torch.

torchvision's wheel needs CUDA libraries for its operators. Beside a CPU-only torch it works without them, except for
two operators that must be declared before it is imported; we declare them. Models, transforms and data sets then work,
and `torchvision.ops.nms` raises that it has no implementation.
"""

from __future__ import annotations

import importlib
import sys
from importlib.abc import MetaPathFinder
from importlib.machinery import PathFinder
from pathlib import Path
from types import ModuleType
from typing import Any

import torch

_DECLARED: list[torch.library.Library] = []  # a library's operators are removed when it is garbage-collected


def import_torchvision() -> ModuleType:
    """Import torchvision, even if its compiled operators cannot be loaded.

        torchvision = import_torchvision()
        model = torchvision.models.mobilenet_v2()

    Returns:
        The module `torchvision`. From then on, `import torchvision` works too.

    Raises:
        ImportError: if torchvision is not installed.
    """
    prepare_torchvision()
    return importlib.import_module("torchvision")


def prepare_torchvision() -> None:
    """Make `import torchvision` work in this process from now on, also in libraries. Imports nothing itself."""
    if not any(isinstance(finder, _Preparing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Preparing())


class _Preparing(MetaPathFinder):
    """Finds nothing itself; it is called before the import."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> None:
        if fullname != "torchvision" or _DECLARED or not lacks_operators():
            return
        library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
        _DECLARED.append(library)


def lacks_operators() -> bool:
    """Whether torchvision is installed for another build of torch, so that a plain import of it fails."""
    spec = PathFinder.find_spec("torchvision")
    return spec is not None and spec.origin is not None and not _has_operators(Path(spec.origin).parent)


def _has_operators(folder: Path) -> bool:
    """Try to load torchvision's compiled operators."""
    for library in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        except OSError:
            continue
        return True
    return False
