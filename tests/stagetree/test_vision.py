"""torchvision can be imported beside any build of torch."""

from __future__ import annotations

import subprocess
import sys

CODE = """
from stagetree.vision import import_torchvision

first, second = import_torchvision(), import_torchvision()
import torchvision
from torchvision import datasets
from torchvision.models import resnet18
from torchvision.transforms import v2

assert first is second is torchvision
assert v2.CenterCrop(4)(__import__("torch").zeros(3, 8, 8)).shape == (3, 4, 4)
"""


def test_torchvision_is_imported_in_a_fresh_process() -> None:
    subprocess.run([sys.executable, "-c", CODE], check=True, timeout=60)
