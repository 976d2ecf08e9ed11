"""torchvision on any build of torch."""

from __future__ import annotations

import importlib
from types import ModuleType

import torch

_DECLARED: list[torch.library.Library] = []  # a library that is collected takes its operators with it


def import_torchvision() -> ModuleType:
    """Import torchvision, also where its compiled operators cannot be loaded.

    torchvision's wheel needs CUDA's libraries for its operators. Beside a CPU-only torch it does without them, but for
    two whose mere names it wants while it is imported: we declare those first. Models, transforms and data sets then
    work as ever, and `torchvision.ops.nms` says that it has no implementation.

        torchvision = import_torchvision()
        model = torchvision.models.mobilenet_v2()

    Returns:
        The module `torchvision`. Once it is there, a plain `import torchvision` works too.

    Raises:
        ImportError: if torchvision is not installed.
    """
    try:
        return importlib.import_module("torchvision")
    except RuntimeError as error:
        if "torchvision::nms does not exist" not in str(error):
            raise
    library = torch.library.Library("torchvision", "FRAGMENT")  # type: ignore[no-untyped-call]
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")  # type: ignore[no-untyped-call]
    _DECLARED.append(library)
    return importlib.import_module("torchvision")
