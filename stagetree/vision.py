"""torchvision on any build of torch.

torchvision's wheel needs CUDA's libraries for its operators. Beside a CPU-only torch it does without them, but for two
whose mere names it wants while it is imported: we declare those first. Models, transforms and data sets then work as
ever, and `torchvision.ops.nms` says that it has no implementation.
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

_DECLARED: list[torch.library.Library] = []  # a library that is collected takes its operators with it


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators cannot be loaded.

        torchvision = import_torchvision()
        model = torchvision.models.mobilenet_v2()

    Returns:
        The module `torchvision`. Once it is there, a plain `import torchvision` works too.

    Raises:
        ImportError: if torchvision is not installed.
    """
    prepare_torchvision()
    return importlib.import_module("torchvision")


def prepare_torchvision() -> None:
    """From here on a plain `import torchvision` works in this process, also that of a library. It imports nothing."""
    if not any(isinstance(finder, _Preparing) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Preparing())


class _Preparing(MetaPathFinder):
    """Finds nothing, and is told of the import before it happens."""

    def find_spec(self, fullname: str, path: Any, target: ModuleType | None = None) -> None:
        if fullname == "torchvision":
            _declare_operators()


def lacks_operators() -> bool:
    """Whether torchvision is installed, and its build is not one for this torch: a plain import of it fails."""
    spec = PathFinder.find_spec("torchvision")
    return spec is not None and spec.origin is not None and not _has_operators(Path(spec.origin).parent)


def _declare_operators() -> None:
    if _DECLARED or not lacks_operators():
        return
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _DECLARED.append(library)


def _has_operators(folder: Path) -> bool:
    """Whether torchvision's own library can be loaded; it is, then."""
    for library in folder.glob("_C*.so"):
        try:
            torch.ops.load_library(library)  # type: ignore[no-untyped-call]
        except OSError:
            continue
        return True
    return False
