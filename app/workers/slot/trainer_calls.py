"""Runs on: the thread that trains; the heartbeat's reads `busy_since` and calls `kill`.

The process that a slot trains in, and calls to it: after an error in a call, that process is used no more.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Container
from typing import TypeVar

from app.domain.chain_assignment import LentSlots
from app.workers.slot.beginnings import ModelMisplaced
from app.workers.slot.claim import NoRanks, NoTrainerProcess, Stopped
from app.workers.slot.retry import Clock, Instant
from app.workers.state import State
from app.workers.trainer_connection import CLOSE_SECONDS, Deadline, TrainerKilled
from app.workers.trainer_process import TrainerProcess
from app.workers.trial_logs import StageFiles
from app.workers.warm import WarmFailed
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.inexact_reasons import used

logger = logging.getLogger(__name__)

Result = TypeVar("Result")


class TrainerCalls:
    """start: a fresh process; called with the slots lent to a chain, it has a rank on each device: see `TrainerGroup`.
    silence_seconds: how long a process may be silent before it counts as hung, at least.

    `busy_since` is when the call under way began, by the clock; None while there is none. `has_failed` is whether the
    user's code has failed in the process that is there, which others still use.
    """

    def __init__(self, start: Callable[..., TrainerProcess], silence_seconds: float, clock: Clock) -> None:
        self._start, self._silence_seconds, self._clock = start, silence_seconds, clock
        self._process: TrainerProcess | None = None
        self._deadlines: dict[str, Deadline] = {}
        self.busy_since: Instant | None = None
        self.has_failed = False

    @property
    def operations(self) -> tuple[str, ...]:
        """Why what the model did is not exact: a reason for each operation without a deterministic form."""
        return () if self._process is None else tuple(map(used, self._process.not_exact))

    def evaluate(self, *, watch: bool = False) -> dict[str, float | None]:
        """The metrics of the model where it is. watch: note in `changed` what that changes in its state.

        Raises `TrainerFailed`.
        """
        return self.call(lambda process: process.evaluate(deadline=self.deadline("evaluate"), watch=watch))

    @property
    def changed(self) -> tuple[str, ...]:
        """The leaves of the state that the last evaluation changed, if it was watched."""
        return () if self._process is None else self._process.changed

    def save(self, *, look: bool = False) -> State:
        """The state of the model where it is; look: as of `TrainerProcess.save`. Raises `TrainerFailed`."""
        return self.call(lambda process: process.save(deadline=self.deadline("save"), look=look))

    def kill(self) -> None:
        """End the process in the middle of whatever it does. From any thread."""
        if (process := self._process) is not None:
            process.kill()

    def print_to(self, log: StageFiles | None, **lane: int) -> None:
        """What the trainer, or that of a `lane`, prints goes there; else where the slot's own log is."""

        def tell(process: TrainerProcess) -> None:
            assert log is not None
            try:
                process.log(log.printed, log.rows, **lane)
            except OSError as problem:
                logger.warning("what the trainer prints is not kept in %s: %s", log.printed, problem)

        if log is not None:
            self.call(tell)

    @property
    def process(self) -> TrainerProcess | None:
        """The one that is there: another, once it was ended."""
        return self._process

    def call(self, do: Callable[[TrainerProcess], Result], tolerated: Container[str] = ()) -> Result:
        """After an error, the process is used no more. tolerated: kinds of failures that do it no harm.
        Raises `TrainerFailed`, and `Stopped` where `kill` has ended the process."""
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
                raise Stopped from error
            raise
        finally:
            self.busy_since = None

    def deadline(self, kind: str) -> Deadline:
        """What is learnt of one kind of call is kept as long as the process."""
        return self._deadlines.setdefault(kind, Deadline(self._silence_seconds))

    def end_process(self) -> None:
        """End the one that trains. Its memory, of the GPU as well, is free after that."""
        process, self._process = self._process, None
        has_failed, self.has_failed = self.has_failed, False
        self._deadlines.clear()
        if process is not None:
            self._end(process, has_failed=has_failed)

    def _end(self, process: TrainerProcess, *, has_failed: bool) -> None:
        process.close(CLOSE_SECONDS)

    def _give_up(self, error: BaseException) -> None:
        """The process is used no more."""
        self.end_process()

    def _start_process(self, lent: LentSlots) -> None:
        """Raises `NoTrainerProcess`, `NoRanks`."""
        try:
            self._process = self._start(*lent)
        except (WarmFailed, TrainerFailed) as failed:
            raise (NoRanks if getattr(failed, "kind", "") == "rank" else NoTrainerProcess)(str(failed)) from failed
