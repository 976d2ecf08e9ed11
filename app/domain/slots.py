"""The scheduler's description of a slot, and functions that parse slot names and kinds of device."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Protocol

NAME = re.compile(r"(?P<gpu>(?P<site>.*[-_.])?gpu(?P<number>\d+))(?P<share>[a-z]?)|(?P<cpus>.*[-_.])?cpu\d+")
"""gpu0, cpu3, or with a host in front, host-gpu0. The number is that of the CUDA device. Slots that share a GPU have a
letter behind it: gpu0a, gpu0b."""

SCHEDULER = "scheduler"
"""The queue of the scheduler. No slot has this name."""

MOST_SHARES = 26

MOST_NAMES = 4096
"""Size of the caches. The scheduler parses the name of each slot whenever it assigns work."""


@lru_cache(maxsize=MOST_NAMES)
def shared_gpu(slot: str) -> str | None:
    """The GPU that a slot has a share of, by the name of the whole slot. None if the slot does not share one."""
    matched = NAME.fullmatch(slot)
    return matched["gpu"] if matched and matched["share"] else None


def site(slot: str) -> str:
    """The name of a slot without its device. A worker sees the devices of all slots with its site."""
    matched = NAME.fullmatch(slot)
    return slot if matched is None else matched["site"] or matched["cpus"] or ""


def is_cpu(slot: str) -> bool:
    """Whether a slot of this name trains on a CPU."""
    matched = NAME.fullmatch(slot)
    return matched is not None and matched["gpu"] is None


def verification_device(slot: SlotDescription) -> str:
    """The kind of device for which this slot verifies trainers."""
    return slot.kind or slot.device


def multi_machine_kind(kind: str) -> str:
    """The kind of a gang on several machines. Its speed differs, so it is measured separately."""
    return f"{kind}, several machines"


UNKNOWN_GPUS = frozenset({"", "cpu", "gpu"})
WORDS = re.compile("[a-z0-9]+")


def gpu_of(kind: str) -> str:
    """The GPU of a slot or share of this kind; "" for none, or an unknown one."""
    gpu = kind.partition(",")[0]  # a remark on the slot or its gang follows the comma
    return "" if gpu.lower() in UNKNOWN_GPUS else gpu


def matches_device(kind: str, devices: Sequence[str]) -> bool:
    """Whether one of these names matches the kind of device, word by word: H100 matches NVIDIA H100 80GB HBM3, and L4
    does not match L40S. An empty sequence matches any device.
    """
    return not devices or any(_words(kind) >= _words(device) for device in devices)


@lru_cache(maxsize=MOST_NAMES)
def _words(text: str) -> frozenset[str]:
    return frozenset(WORDS.findall(text.lower()))


class SlotDescription(Protocol):
    """A slot for the scheduler: one GPU, a share of one, or one CPU process."""

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str:
        """The device in words, for display."""

    @property
    def host(self) -> str: ...
    @property
    def kind(self) -> str:
        """Slots of one host and one kind of device may train a trial together."""

    @property
    def address(self) -> str:
        """Where workers of other machines reach this slot's; "" if they cannot."""

    @property
    def chain(self) -> str | None:
        """The chain that the slot trains."""

    @property
    def resident_model(self) -> Mapping[str, Any] | None:
        """The plan, node and step of the model in the slot's memory."""

    @property
    def trainers(self) -> Mapping[str, str]:
        """The versions of its trainers, by name."""
