"""What packing costs on a device, in time and memory, and whether it shows in the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

SECONDS = 0.1
"""For so long a computation is repeated: others on the machine hold some rounds up, and seldom all."""


@dataclass(frozen=True, slots=True)
class PackCost:
    """seconds: of the shortest round. bytes: the most on the device; 0 on a CPU."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """alone: what one batch costs a model by itself. packed: what it costs full packs, by how many lanes they have.
    batch: the hyper-parameters that decided which batch. is_exact: whether a model of the widest was found to have the
    gradients and buffers that it has alone, to the bit, on batches of that shape; optimizers make no difference.
    other_draws: the first module that draws other random numbers in a pack than alone, as `Lane.other_draws`."""

    alone: PackCost
    packed: Mapping[int, PackCost]
    batch: Mapping[str, Any]
    is_exact: bool = False
    other_draws: str = ""


def widths_below(width: int) -> list[int]:
    """The powers of two from 2 on."""
    return [2**power for power in range(1, (width - 1).bit_length())]


def timed(compute: Callable[[], object], device: str) -> PackCost:
    """What a computation costs on a device."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    _seconds(compute, device)  # it asks for memory, and a device chooses its kernels in it
    rounds = [_seconds(compute, device)]
    while sum(rounds) < SECONDS:
        rounds.append(_seconds(compute, device))
    return PackCost(min(rounds), 0 if device == "cpu" else torch.cuda.max_memory_allocated(device))


def _seconds(compute: Callable[[], object], device: str) -> float:
    _wait_for(device)
    begun_at = time.perf_counter()
    compute()
    _wait_for(device)
    return time.perf_counter() - begun_at


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
