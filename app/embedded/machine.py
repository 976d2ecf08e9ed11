"""The slots of this machine: its GPUs, or its CPU. Nothing here takes the seconds that importing torch does."""

from __future__ import annotations

import os
from string import ascii_lowercase

from app.embedded.errors import StackFailed
from app.workers.slot.device import visible_gpus


def slot_names(count: int, per_gpu: int = 1) -> list[str]:
    """What the slots of this machine are called: after its GPUs, or its CPU. Each GPU has a slot before one has two."""
    gpus = len(visible_gpus())
    if not gpus:
        return [f"cpu{number}" for number in range(count)]
    if per_gpu == 1:
        return [f"gpu{number}" for number in range(count)]
    return [f"gpu{number % gpus}{ascii_lowercase[number // gpus]}" for number in range(count)]


def default_slots(per_gpu: int = 1) -> int:
    """So many for each GPU that may be seen, or else one for each CPU core. Raises `StackFailed`."""
    if gpus := len(visible_gpus()):
        return per_gpu * gpus
    if per_gpu > 1:
        raise StackFailed("--slots-per-gpu divides GPUs, and none can be seen on this machine: leave it out")
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def default_device() -> str:
    """Where slots train by default, as torch writes it."""
    return "cuda:0" if visible_gpus() else "cpu"
