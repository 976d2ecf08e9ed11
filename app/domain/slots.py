"""What a slot is to whoever gives it work."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol


class Slot(Protocol):
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
