"""Stages under way."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain import events as e
from app.domain.ids import ChainId


@dataclass(slots=True)
class Chain:
    """Stages under way on a slot; `index` is the one in training, past the last while checkpoints are written.

    seconds: spent on the stages before that one.
    """

    id: ChainId
    slot: str
    stages: tuple[e.Stage, ...]
    at: float
    index: int = 0
    seconds: float = 0.0

    @property
    def is_trained(self) -> bool:
        return self.index >= len(self.stages)
