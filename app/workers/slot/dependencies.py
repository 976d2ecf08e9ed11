"""Runs on: any thread; it is never changed.

What a slot is given by the process that it is in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from app.events.records import Records
from app.object_store import ObjectStore
from app.registry import TrainerSource
from app.workers.slot.retry import Clock, monotonic
from app.workers.threads import THREADS, Executor
from app.workers.trainer_process import TrainerProcess


@dataclass(frozen=True, slots=True)
class Limits:
    """Seconds, and bytes.

    heartbeat: between two signs of life. grace: for what is on its way when the slot must end. strike: how long a
    missing or damaged checkpoint is looked at again. silence: after which a trainer counts as hung, at least.
    overhead: the share of training time that intermediate checkpoints may take. memory_bytes: for recent states.
    """

    lease: float = 60.0
    heartbeat: float = 2.0
    grace: float = 20.0
    strike: float = 30.0
    silence: float = 1800.0
    overhead: float = 0.01
    memory_bytes: int = 256 * 2**20
    growth_bytes: int = 2**30


@dataclass(frozen=True, slots=True)
class SlotDependencies:
    """What a slot works with.

    start: a fresh process that trains. sources: the trainers that are here, by name. notify: tells the scheduler that
    something happened, without waiting. logs: the folder for what trainers print. is_retiring: whether the worker is to
    end. end: asks that it does, and says why. clock: any that does not go back. wall_clock: Unix seconds. wait: for
    at most so many seconds. executor: of its heartbeat, outbox and saver.
    """

    records: Records
    store: ObjectStore
    start: Callable[[], TrainerProcess]
    sources: Callable[[], Mapping[str, TrainerSource]]
    notify: Callable[[], None]
    logs: Path
    is_retiring: Callable[[], bool] = lambda: False
    end: Callable[[str], None] = lambda why: None
    clock: Clock = monotonic
    wall_clock: Callable[[], float] = time.time
    wait: Callable[[float], object] | None = None
    executor: Executor = THREADS
