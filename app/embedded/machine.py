"""The slots of this machine: its GPUs, or its CPU. Nothing here takes the seconds that importing torch does."""

from __future__ import annotations

import os

from app.workers.slot.device import visible_gpus


def slot_names(count: int) -> list[str]:
    """What the slots of this machine are called: after its GPUs, or its CPU."""
    kind = "gpu" if visible_gpus() else "cpu"
    return [f"{kind}{number}" for number in range(count)]


def default_slots() -> int:
    """The GPUs that may be seen, or else the CPU cores."""
    return len(visible_gpus()) or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )


def default_device() -> str:
    """Where slots train by default, as torch writes it."""
    return "cuda:0" if visible_gpus() else "cpu"
