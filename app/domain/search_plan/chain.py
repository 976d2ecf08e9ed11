"""Stages under way."""

from __future__ import annotations

from dataclasses import dataclass

from app.domain import events as e
from app.domain.ids import ChainId
from app.domain.states import ProofKind


@dataclass(slots=True)
class Chain:
    """Stages under way on a slot; `index` is the one in training, past the last while checkpoints are written.

    seconds: spent on the stages before that one. proof: what it proves by training steps again; None where it trains.
    broke: the first step on the way to its end at which training went on from a state that was saved; 0 for none.
    """

    id: ChainId
    slot: str
    stages: tuple[e.Stage, ...]
    at: float
    index: int = 0
    seconds: float = 0.0
    proof: ProofKind | None = None
    broke: int = 0

    @property
    def is_trained(self) -> bool:
        return self.index >= len(self.stages)
