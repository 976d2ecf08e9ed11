"""What a slot is to whoever gives it work, and what its name says."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Protocol

NAME = re.compile(r"(?P<gpu>(?:.*[-_.])?gpu(?P<number>\d+))(?P<share>[a-z]?)|(?:.*[-_.])?cpu\d+")
"""gpu0, cpu3, or with a host in front, host-gpu0. What is behind "gpu" is the CUDA device. Slots that share one have a
letter each: gpu0a, gpu0b.
"""

MOST_SHARES = 26


def shared_gpu(slot: str) -> str | None:
    """The GPU of which a slot is a share, by the name that it would have as one slot; None of a slot that is none."""
    matched = NAME.fullmatch(slot)
    return matched["gpu"] if matched and matched["share"] else None


class SlotDescription(Protocol):
    """One GPU, or one CPU process. device: in words. chain: what it is at.

    trainers: the version that it has of each, by name.
    """

    @property
    def name(self) -> str: ...
    @property
    def device(self) -> str: ...
    @property
    def chain(self) -> str | None: ...
    @property
    def resident_model(self) -> Mapping[str, Any] | None: ...
    @property
    def trainers(self) -> Mapping[str, str]: ...
