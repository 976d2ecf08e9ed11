"""Calls to what trains one model: a trainer's process, or the processes of several ranks.

Runs on: the thread that trains; `kill` on any.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from app.domain.chain_assignment import NextStop
from app.workers.state import State
from app.workers.trainer_connection import Deadline, Look, TrainerConnection, nothing
from stagetree.runtime.commands import Evaluation, Json, Metrics, PackTrained, Trained, call_with

if TYPE_CHECKING:
    from stagetree.runtime.child import Child as Child


class TrainerClient(ABC):
    """`TrainerConnection` lists what every call raises, and documents `kill` and `close`.

    leader: the process, or the first of several, whose step and other facts count.
    """

    @property
    @abstractmethod
    def leader(self) -> TrainerConnection: ...

    @abstractmethod
    def ask(self, do: str, given: Json, deadline: Deadline, look: Look = nothing) -> Any:
        """As `TrainerConnection.ask`."""

    @abstractmethod
    def log(self, path: Path, rows: Path | None = None, lane: int | None = None) -> None:
        """Append the trainer's output to that file from the next command on. Raises OSError.

        rows: the file for `Trainer.log`, of the trainer or of a `lane`: about one row a second; None keeps nothing.
        """

    def evaluate(self, *, deadline: Deadline, watch: bool = False, look: bool | None = None) -> Evaluation:
        """The model's metrics. watch: as for `Child.evaluate`. look: of the `save` that comes next, if one does."""
        return self.call(deadline).evaluate(watch=watch)

    @abstractmethod
    def save(self, *, deadline: Deadline, look: bool = False, lane: int | None = None) -> State:
        """The whole state of the model, or of a `lane`'s. look: as for `Child.save`."""

    @abstractmethod
    def resident_bytes(self) -> int:
        """The memory of the largest process now; 0 if unknown."""

    @abstractmethod
    def kill(self) -> None: ...

    @abstractmethod
    def close(self, patience: float = 5.0) -> None: ...

    def call(self, deadline: Deadline, look: Look = nothing) -> Child:
        """The commands as methods. look: called several times a second during the call."""
        commands: Child = call_with(partial(self.ask, deadline=deadline, look=look))
        return commands

    def train(
        self,
        hp: Json,
        until: int,
        ahead: Callable[[int], NextStop] | None = None,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int | None] = lambda step: None,
    ) -> Trained:
        """Train from the model's step up to step `until`. hp: the JSON of the trial's sequences.

        ahead: the coming work of the stage, given the model's step.

        `on_progress` is called several times a second, also while the trainer is silent, with the last reported step.
        It returns the new end of the training, or None for no change; 0 stops after the current step. If it raises, the
        next call stops the training in the same way and waits for that.
        """
        leader, end, peak, passed = self.leader, until, 0, dict[int, Metrics]()

        def look() -> None:
            nonlocal end
            until = on_progress(leader.step)
            if until is not None and until != end:
                end = until
                leader.tell("until", {"until": end})

        train, room = self.call(deadline, look).train, leader.reports_free_memory
        while True:
            coming = (end, (), ()) if ahead is None else ahead(leader.step)
            trained = train(hp=dict(hp), until=end, ahead=coming, room=room)
            passed |= {int(step): metrics for step, metrics in trained.passed.items()}
            peak = max(peak, trained.peak_bytes)
            if leader.step >= end:  # else it arrived before it heard of the later end
                return trained._replace(passed=passed, peak_bytes=peak)

    def train_together(
        self,
        hps: Mapping[int, Json],
        steps: int,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int],
        profile: bool = False,
    ) -> PackTrained:
        """Train these lanes for `steps` steps each, or until one fails. hps: by lane, the JSON of its sequences.

        `on_progress` is called as by `train`, with the number of steps taken, and returns how many to take in all.
        profile: also measure the costs of packs.
        """
        leader = self.leader

        def look() -> None:
            if (until := on_progress(leader.step)) < steps:
                leader.tell("until", {"until": until})

        leader.step = 0
        by_lane = {str(lane): dict(hp) for lane, hp in hps.items()}
        trained = self.call(deadline, look).train_together(hps=by_lane, until=steps, profile=profile)
        return trained._replace(failed={int(lane): failure for lane, failure in trained.failed.items()})

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
