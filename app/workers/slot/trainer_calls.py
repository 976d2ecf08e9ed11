"""Calls to the process that a slot trains in; after an error in a call, that process is not used again.

Runs on: the thread that trains; the heartbeat's reads `busy_since` and `resident_bytes`, and calls `kill`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import TYPE_CHECKING, Any, TypeVar

from app.domain.chain_assignment import LentSlots
from app.workers.slot.beginnings import ModelMisplaced
from app.workers.slot.claim import ChainStopped, NoTrainerProcess, RanksUnavailable
from app.workers.slot.retry import Clock, Instant
from app.workers.state import State
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import CLOSE_SECONDS, Deadline, TrainerKilled
from app.workers.trial_logs import StageFiles
from app.workers.warm import WarmFailed
from stagetree.runtime.commands import Evaluation, Json, call_with
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact_reasons import used

if TYPE_CHECKING:
    from app.workers.trainer_client import Child

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class TrainerCalls:
    """start: starts a fresh process; with the slots lent to a chain, it has a rank on each device: see `TrainerGroup`.
    silence_seconds: the shortest silence after which a process counts as hung.

    `busy_since` is when the current call began; None while there is none. `has_failed` is whether user code has failed
    in the present process, which other lanes still use.
    """

    def __init__(self, start: Callable[..., TrainerClient], silence_seconds: float, clock: Clock) -> None:
        self._start, self._silence_seconds, self._clock = start, silence_seconds, clock
        self._process: TrainerClient | None = None
        self._deadlines: dict[str, Deadline] = {}
        self.busy_since: Instant | None = None
        self.has_failed = False

    @property
    def operations(self) -> tuple[str, ...]:
        """Why the model's results are not exact: a reason for each operation without a deterministic form."""
        return () if self._process is None else tuple(map(used, self._process.leader.not_exact))

    @property
    def resident_bytes(self) -> int:
        """The memory of the process; 0 if there is none. From any thread."""
        process = self._process
        return 0 if process is None else process.resident_bytes()

    def commands(self, tolerated: Container[str] = ()) -> Child:
        """The commands as methods, each with its own deadline. Raises as `call`."""

        def ask(do: str, given: Json) -> Any:
            return self.call(lambda process: process.ask(do, given, self.deadline(do)), tolerated)

        commands: Child = call_with(ask)
        return commands

    def evaluate(self, *, watch: bool = False, look: bool | None = None) -> Evaluation:
        """The model's metrics. watch, look: as for `TrainerClient.evaluate`. Raises as `call`."""
        deadline = self.deadline("evaluate")
        return self.call(lambda process: process.evaluate(deadline=deadline, watch=watch, look=look))

    def save(self, *, look: bool = False, lane: int | None = None, tolerated: Container[str] = ()) -> State:
        """The state of the model; look: as for `Child.save`. Raises as `call`."""
        return self.call(lambda process: process.save(deadline=self.deadline("save"), look=look, lane=lane), tolerated)

    def kill(self) -> None:
        """End the process during any call. From any thread."""
        if (process := self._process) is not None:
            process.kill()

    def print_to(self, log: StageFiles | None, lane: int | None = None) -> None:
        """Redirect the output of the trainer, or of a `lane`'s, to these files; None: to the slot's own log."""

        def tell(process: TrainerClient) -> None:
            assert log is not None
            try:
                process.log(log.printed, log.rows, lane)
            except OSError as problem:
                logger.warning("what the trainer prints is not kept in %s: %s", log.printed, problem)

        if log is not None:
            self.call(tell)

    @property
    def process(self) -> TrainerClient | None:
        """The present process."""
        return self._process

    def call(self, do: Callable[[TrainerClient], Result], tolerated: Container[str] = ()) -> Result:
        """Call the process; after an error it is not used again. tolerated: kinds of failures that leave it intact.

        Raises `TrainerFailed`, and `ChainStopped` if `kill` ended the process.
        """
        process = self._process
        if process is None:
            raise ModelMisplaced("there is no process with a model")
        self.busy_since = self._clock()
        try:
            return do(process)
        except BaseException as error:
            self.has_failed = True
            if not (isinstance(error, TrainerFailed) and error.kind in tolerated):
                self._give_up(error)
            if isinstance(error, TrainerKilled):
                raise ChainStopped from error
            raise
        finally:
            self.busy_since = None

    def deadline(self, kind: str) -> Deadline:
        """The deadline of one kind of call, learned as long as the process lives."""
        return self._deadlines.setdefault(kind, Deadline(self._silence_seconds))

    def end_process(self) -> None:
        """End the process, which frees its memory, also on the GPU."""
        process, self._process = self._process, None
        has_failed, self.has_failed = self.has_failed, False
        self._deadlines.clear()
        if process is not None:
            self._end(process, has_failed=has_failed)

    def _end(self, process: TrainerClient, *, has_failed: bool) -> None:
        process.close(CLOSE_SECONDS)

    def _give_up(self, error: BaseException) -> None:
        """Stop using the process."""
        self.end_process()

    def _start_process(self, lent: LentSlots) -> None:
        """Raises `NoTrainerProcess`, `RanksUnavailable`."""
        try:
            self._process = self._start(*lent)
        except (WarmFailed, TrainerFailed) as failed:
            raise (RanksUnavailable if getattr(failed, "kind", "") == "rank" else NoTrainerProcess)(
                str(failed)
            ) from failed
