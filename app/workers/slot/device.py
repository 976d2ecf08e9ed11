"""Maps a slot's name to its device without initializing CUDA: `gpu1` is the second visible GPU.

`gpu1a` is a share of it (docs/decisions/0028-shares-of-a-gpu.md).

Runs on: a worker's main process, and the one that runs its tasks, before there are threads.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from string import ascii_lowercase

from app.domain.slots import NAME

NVIDIA_SMI_SECONDS = 30.0
GPU = re.compile(r"GPU (\d+):(?: (?P<model>.+) \(UUID: (?P<uuid>GPU-[^)]+)\))?")
MIG = re.compile(r"\s+MIG .*\(UUID: (MIG-[^)]+)\)")
MPS_CONTROL = "nvidia-cuda-mps-control"
DEVICE_FILE = re.compile(r"nvidia\d+$")


class NoDevice(Exception):
    """The slot is named after a GPU, or a share of one, that does not exist; the message says what to do."""


@dataclass(frozen=True, slots=True)
class SlotDevice:
    """device: as torch writes it.
    visible: the trainer's CUDA_VISIBLE_DEVICES; None: unchanged.
    shares: the number of slots on the device.
    memory_fraction: this slot's share of its memory.
    has_mps: whether all slots' kernels run at once, through CUDA's multi-process service; otherwise the slots take
        turns.
    """

    device: str
    visible: str | None
    shares: int = 1
    memory_fraction: float = 1.0
    has_mps: bool = False

    def __str__(self) -> str:
        if self.device == "cpu":
            return "the CPU"
        how = "through MPS" if self.has_mps else "in turns, without MPS"
        return f"GPU {self.visible}" + (f", shared by {self.shares} {how}" if self.shares > 1 else "")


CPU = SlotDevice("cpu", "")
"""With all GPUs hidden, so that nothing is put there by accident."""


def device_of(
    slot: str, gpus: Sequence[str], *, allow_cpu: bool, shares: int = 1, memory_fraction: float | None = None
) -> SlotDevice:
    """gpus: the visible ones, see `visible_gpus`.
    allow_cpu: whether a `gpuN` without its GPU uses the CPU.
    shares: the number of slots on a shared GPU.
    memory_fraction: None divides the memory equally. Raises `NoDevice`.
    """
    matched = NAME.fullmatch(slot)
    if matched is None or not matched["gpu"]:
        return CPU
    number, share = int(matched["number"]), matched["share"]
    if ascii_lowercase.index(share) >= shares:  # without a letter it is the whole GPU, and "" is at 0
        raise NoDevice(
            f"slot {slot} is share {share} of its GPU, and STAGETREE_SLOTS_PER_GPU={shares} says that there is none: "
            f"set it to the number of slots on each GPU, or call the slot gpu{number}"
        )
    if number < len(gpus):
        shares = shares if share else 1
        return SlotDevice("cuda:0", gpus[number], shares, memory_fraction or 1 / shares)
    if allow_cpu:
        return CPU
    there = f"only {len(gpus)} can be seen" if gpus else "none can be seen"
    raise NoDevice(
        f"slot {slot} has no GPU: {there} on this machine; call it cpu{number}, or set STAGETREE_ALLOW_CPU=1 to let it "
        "train on the CPU"
    )


def mps_is_running() -> bool:
    """Whether the control daemon of CUDA's multi-process service answers: then CUDA processes use it.

    It is looked up where CUDA_MPS_PIPE_DIRECTORY says, and never started.
    """
    if shutil.which(MPS_CONTROL) is None:
        return False
    try:
        command, timeout = [MPS_CONTROL], NVIDIA_SMI_SECONDS
        answer = subprocess.run(command, input="get_server_list\n", text=True, capture_output=True, timeout=timeout)
    except subprocess.TimeoutExpired:
        return False
    return answer.returncode == 0


def visible_gpus(environment: Mapping[str, str] = os.environ) -> list[str]:
    """The visible GPUs, each as CUDA_VISIBLE_DEVICES names it."""
    setting = environment.get("CUDA_VISIBLE_DEVICES")
    if setting is None:
        return _installed_gpus()
    visible: list[str] = []
    for name in (each.strip() for each in setting.split(",")):
        if not name or name == "-1" or name == "NoDevFiles":
            break  # as CUDA does: the rest is ignored
        visible.append(name)
    return visible


def gpus_of(listing: str) -> list[str]:
    """The GPUs in the output of `nvidia-smi -L`; a MIG GPU's instances instead of itself."""
    gpus: list[list[str]] = []
    for line in listing.splitlines():
        if gpu := GPU.match(line):
            gpus.append([gpu[1]])
        elif gpus and (part := MIG.match(line)):
            gpus[-1].append(part[1])
    return [name for gpu in gpus for name in (gpu[1:] or gpu)]


def kind_of(visible: str, listing: str) -> str:
    """The model of a GPU, by number or UUID, in the output of `nvidia-smi -L`; a MIG instance's includes its size."""
    model = ""
    for line in listing.splitlines():
        if gpu := GPU.match(line):
            model = gpu["model"] or "GPU"
            if visible in (gpu[1], gpu["uuid"]):
                return model
        elif (part := MIG.match(line)) and part[1] == visible:
            return f"{model} {line.split()[1]}"
    return "GPU"


def device_kind(device: SlotDevice) -> str:
    """The model of a slot's device, if that can be read without initializing CUDA."""
    if device.device == "cpu" or device.visible is None:
        return "CPU"
    try:
        kind = kind_of(device.visible, _list_gpus() if shutil.which("nvidia-smi") else "")
    except subprocess.TimeoutExpired:
        return "GPU"
    return kind if device.shares == 1 else f"{kind}, a share of {device.shares}"


def _list_gpus() -> str:
    command = ["nvidia-smi", "-L"]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=NVIDIA_SMI_SECONDS).stdout


def _installed_gpus() -> list[str]:
    if shutil.which("nvidia-smi") is None:
        return [str(number) for number, _ in enumerate(filter(DEVICE_FILE.match, os.listdir("/dev")))]
    try:
        return gpus_of(_list_gpus())
    except subprocess.TimeoutExpired:
        return []
