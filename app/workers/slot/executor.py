"""What trains, as a slot sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Protocol

from app.workers.deadline import Deadline
from app.workers.state import State
from app.workers.trainer_process import TrainedTo, TrainedTogether


class Executor(Protocol):
    """What a trainer's process does: see `app.workers.trainer_process.TrainerProcess`."""

    @property
    def not_exact(self) -> tuple[str, ...]: ...

    def log(self, path: Path, rows: Path | None = ..., **lane: int) -> None: ...

    def build(
        self,
        file: str,
        name: str,
        args: Mapping[str, Any],
        seed: int,
        *,
        deadline: Deadline,
        determinism: str = ...,
        **lane: Any,
    ) -> None: ...

    def load(self, state: State, hp: Mapping[str, Any], step: int, *, deadline: Deadline) -> tuple[str, ...]: ...

    def train(
        self,
        hp: Mapping[str, Any],
        until: int,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int | None] = ...,
    ) -> TrainedTo: ...

    def evaluate(self, *, deadline: Deadline, **lane: int) -> dict[str, float | None]: ...

    def save(self, *, deadline: Deadline, **lane: int) -> State: ...

    def join(self, lane: int, width: int, *, deadline: Deadline) -> None: ...

    def train_together(
        self,
        hps: Mapping[int, Mapping[str, Any]],
        steps: int,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int],
        profile: bool = ...,
    ) -> TrainedTogether: ...

    def leave(self, lanes: Iterable[int], *, deadline: Deadline) -> None: ...

    def resident_bytes(self) -> int: ...

    def kill(self) -> None: ...

    def close(self, patience: float = ...) -> None: ...
