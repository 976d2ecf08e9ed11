"""What packing costs on a device, in time and memory, and whether it shows in the numbers."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

import torch

ROUNDS = 3
"""The first of which is not counted: it asks for memory, and a device chooses its kernels in it."""


@dataclass(frozen=True, slots=True)
class Cost:
    """seconds: the least of some rounds. bytes: the most on the device; 0 on a CPU."""

    seconds: float
    bytes: int


@dataclass(frozen=True, slots=True)
class Profile:
    """alone, full: what one batch costs a model by itself, and a whole pack. is_exact: whether a model of the pack has
    the gradients and buffers that it has alone, to the bit, on batches of that shape; optimizers make no difference."""

    alone: Cost
    full: Cost
    is_exact: bool


def timed(compute: Callable[[], object], device: str) -> Cost:
    """What a computation costs on a device."""
    if device != "cpu":
        torch.cuda.reset_peak_memory_stats(device)
    seconds = [_seconds(compute, device) for _ in range(ROUNDS)][1:]
    return Cost(min(seconds), 0 if device == "cpu" else torch.cuda.max_memory_allocated(device))


def _seconds(compute: Callable[[], object], device: str) -> float:
    _wait_for(device)
    begun_at = time.perf_counter()
    compute()
    _wait_for(device)
    return time.perf_counter() - begun_at


def _wait_for(device: str) -> None:
    if device != "cpu":
        torch.cuda.synchronize(device)
