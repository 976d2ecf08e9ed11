"""A chain in the hands of a slot: what its row says there is to do, and how far it is."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.events.rows import ChainFlags
from stagetree.runtime.timeline import Timeline


@dataclass(slots=True)
class Work:
    """What a chain's row says there is to do."""

    plan: str
    trainer: str
    trainer_version: str
    trainer_args: dict[str, Any]
    seed: int
    hp: dict[str, Any]
    stages: tuple[e.Stage, ...]
    resume: dict[str, Any] | None
    spare_bytes: int

    @classmethod
    def read(cls, work: dict[str, Any]) -> Work:
        stages = tuple(e.Stage(**{**stage, "evaluate": tuple(stage["evaluate"])}) for stage in work["stages"])
        return cls(**{**work, "stages": stages})


@dataclass(slots=True)
class Run:
    """A chain that this slot holds: its fence, how far it is, and what it was told at the last heartbeat.

    step: the last one trained. sound: the last one after which nothing has failed; always before the end of the stage,
    so that a failure fails someone and does not come back for ever. idle_since: when the stage before was done, while
    the message that starts the next one is on its way. has_news: that stage evaluated something, and the scheduler was
    not told yet, because that would hold up the message.
    """

    chain: str
    stream: str
    fence: int
    work: Work
    timeline: Timeline
    beat: ChainFlags
    index: int = 0
    step: int = 0
    sound: int = 0
    looked_at: float = 0.0
    begun_at: float = field(default_factory=time.monotonic)
    idle_since: float | None = None
    lost: bool = False
    has_news: bool = False
    spares: list[e.CheckpointKept] = field(default_factory=list)
    spare_seconds: float = 0.0
    spare_size: int = 0

    @property
    def stage(self) -> e.Stage:
        return self.work.stages[self.index]

    def take_spares(self) -> list[e.CheckpointKept]:
        """The spare checkpoints that are stored and not on record yet; whoever takes them records them."""
        taken, self.spares = self.spares, []
        return taken
