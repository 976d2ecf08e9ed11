"""Digits on several ranks with torch's own sums, in buckets so small that their order matters."""

from __future__ import annotations

from typing import Any

from in_shards import InShards, Net
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class InDdp(InShards):
    """forgets_to_warm_up: whether it resumes from a state with no pass before."""

    name = "in_ddp"

    def __init__(self, *, seed: int, device: str, forgets_to_warm_up: bool = False, **args: Any) -> None:
        super().__init__(seed=seed, device=device, **args)
        if forgets_to_warm_up:
            self._warm_up = lambda: None  # type: ignore[method-assign]

    def replicate(self, loss: nn.Module) -> DistributedDataParallel:
        assert isinstance(loss.model, Net)
        loss.model.unused.requires_grad_(False)
        return DistributedDataParallel(loss, bucket_cap_mb=0.001)
