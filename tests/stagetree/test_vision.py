"""torchvision can be imported beside any build of torch."""

from __future__ import annotations

import subprocess
import sys

import pytest

WAYS = {
    "by its function": "from stagetree.vision import import_torchvision; import_torchvision(); import_torchvision()",
    "plainly": "from stagetree.vision import prepare_torchvision; prepare_torchvision()",
    "by a library": "import stagetree.integrations, lightning",
}
THEN = """
import torch, torchvision
from torchvision import datasets
from torchvision.models import resnet18
from torchvision.transforms import v2

assert v2.CenterCrop(4)(torch.zeros(3, 8, 8)).shape == (3, 4, 4)
"""


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
def test_torchvision_is_imported_in_a_fresh_process(way: str) -> None:
    subprocess.run([sys.executable, "-c", f"{WAYS[way]}\n{THEN}"], check=True, timeout=600)
