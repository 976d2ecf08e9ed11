"""The slots of this machine: its GPUs, or its CPU."""

from __future__ import annotations

import os
import shutil
import subprocess


def slot_names(count: int) -> list[str]:
    """What the slots of this machine are called: after its GPUs, or its CPU."""
    kind = "gpu" if count_gpus() else "cpu"
    return [f"{kind}{number}" for number in range(count)]


def default_slots() -> int:
    """The GPUs, or else the CPU cores."""
    return count_gpus() or len(
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    )


def count_gpus() -> int:
    """How many GPUs there are, without the seconds that it takes to import torch."""
    if shutil.which("nvidia-smi") is None:
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([device for device in visible.split(",") if device.strip()])
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len([line for line in listed.stdout.splitlines() if line.startswith("GPU ")])
