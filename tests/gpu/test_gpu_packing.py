"""The promises of packs hold on a GPU, too: the tests of tests/packing, with their models on the GPU."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA here")]


def test_packs_pass_the_cpu_tests_on_a_gpu() -> None:
    root = Path(__file__).parents[2]
    command = [sys.executable, "-m", "pytest", "-n", "4", "--dist", "loadfile", "tests/packing"]
    env = {**os.environ, "STAGETREE_TEST_DEVICE": "cuda:0"}
    done = subprocess.run(command, cwd=root, env=env, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-5000:]
