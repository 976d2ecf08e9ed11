"""Which device a slot is, by its name, without starting anything of CUDA: `gpu1` is the second GPU that may be seen."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

NVIDIA_SMI_SECONDS = 30.0
GPU = re.compile(r"GPU (\d+):")
MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
NUMBER = re.compile(r"(gpu|cpu)(\d+)$")
DEVICE_FILE = re.compile(r"nvidia\d+$")


class NoDevice(Exception):
    """The slot is called after a GPU that is not there; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SlotDevice:
    """device: as torch writes it. visible: for CUDA_VISIBLE_DEVICES of the process that trains; None: as it is."""

    device: str
    visible: str | None

    def __str__(self) -> str:
        return "the CPU" if self.device == "cpu" else f"GPU {self.visible}"


CPU = SlotDevice("cpu", "")
"""With no GPU to be seen, so that nothing ends up there by accident."""


def device_of(slot: str, gpus: Sequence[str], *, allow_cpu: bool) -> SlotDevice:
    """gpus: what may be seen, see `visible_gpus`. allow_cpu: whether a `gpuN` without its GPU is the CPU.

    Raises `NoDevice`.
    """
    matched = NUMBER.search(slot)
    if matched is None or matched[1] == "cpu":
        return CPU
    number = int(matched[2])
    if number < len(gpus):
        return SlotDevice("cuda:0", gpus[number])
    if allow_cpu:
        return CPU
    there = f"only {len(gpus)} can be seen" if gpus else "none can be seen"
    raise NoDevice(
        f"slot {slot} has no GPU: {there} on this machine; call it cpu{number}, or set STAGETREE_ALLOW_CPU=1 to let it "
        "train on the CPU"
    )


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The GPUs that may be seen, each as CUDA_VISIBLE_DEVICES would name it alone."""
    given = environment.get("CUDA_VISIBLE_DEVICES")
    if given is None:
        return _installed_gpus()
    visible: list[str] = []
    for name in (each.strip() for each in given.split(",")):
        if not name or name == "-1" or name == "NoDevFiles":
            break  # as CUDA does: what comes behind is not seen
        visible.append(name)
    return visible


def gpus_of(listing: str) -> list[str]:
    """The GPUs in what `nvidia-smi -L` prints; where one is divided, its parts instead of it."""
    gpus: list[list[str]] = []
    for line in listing.splitlines():
        if gpu := GPU.match(line):
            gpus.append([gpu[1]])
        elif gpus and (part := MIG.match(line)):
            gpus[-1].append(part[1])
    return [name for gpu in gpus for name in (gpu[1:] or gpu)]


def _installed_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return [str(number) for number, _ in enumerate(filter(DEVICE_FILE.match, _device_files()))]
    try:
        command = ["nvidia-smi", "-L"]
        listed = subprocess.run(command, capture_output=True, text=True, check=False, timeout=NVIDIA_SMI_SECONDS)
    except subprocess.TimeoutExpired:
        return []
    return gpus_of(listed.stdout)


def _device_files() -> list[str]:
    return [path.name for path in Path("/dev").iterdir()]
