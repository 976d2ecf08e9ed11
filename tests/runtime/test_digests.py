"""A digest reads values, and changes nothing about them."""

from __future__ import annotations

import torch

from stagetree.runtime.exactness.digests import digest


def test_the_storage_of_a_tensor_can_be_resized_after_a_look() -> None:
    """FSDP frees and allocates the storages of parameters around each step."""
    tensor = torch.arange(8.0)
    before = digest(tensor)
    tensor.untyped_storage().resize_(0)
    assert digest(tensor) != before, "there is nothing to read"
    tensor.untyped_storage().resize_(32)
    tensor.copy_(torch.arange(8.0))
    assert digest(tensor) == before
