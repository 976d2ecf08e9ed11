"""Numbers are compared to the bit, so they are computed on one thread, as slots fix theirs: several divide a sum by the
load of the moment."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch
from lanes import DEVICE

from stagetree.runtime.machine import set_determinism
from stagetree.trainer import generators

collect_ignore = (
    ["test_caches.py", "test_operations.py", "test_profile.py", "test_recordings.py"] if DEVICE != "cpu" else []
)
"""Tests of the CPU only."""


@pytest.fixture(autouse=True, scope="package")
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(autouse=True, scope="package")
def on_its_device() -> Iterator[None]:
    """Set up the GPU as in a training process."""
    if DEVICE == "cpu":
        yield
        return
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    set_determinism("strict")
    generators.undo_draws_of_imports()
    yield
    set_determinism("off")
