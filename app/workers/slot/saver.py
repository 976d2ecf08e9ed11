"""Runs on: the saver's thread, but for `save`, `submit` and `delete`, which the thread that trains calls.

Checkpoints on their way to the store, in order, while the next stage trains.

A store that is away is waited for, as long as the process lives and the chain is ours: no fact is dropped. Facts that
must come after a checkpoint, such as the end of its chain, go through here as well.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from app.object_store import StoreUnavailable
from app.workers.slot.checkpoint_store import SMALL, CheckpointStore, Stored
from app.workers.slot.claim import Claim
from app.workers.slot.retry import Clock, RetryPolicy, SlotStatus, WorkerThread
from app.workers.state import State
from app.workers.threads import THREADS, Executor

logger = logging.getLogger(__name__)

BACKLOG = 4
"""So many states may wait in memory; whoever has one more waits."""

SAVE_SECONDS = 0.05
"""What keeping a state is taken to cost before one of its plan was kept, and the most that an upload counts, since
training goes on beside it."""

FIRST_COSTS = (SAVE_SECONDS,) * 3

NOTED_AFTER = 4
"""After so many tries in vain, the slot's row says that it waits."""


@dataclass(frozen=True, slots=True)
class _Job:
    claim: Claim
    do: Callable[[], None]


class Saver:
    """clock: of how long it takes."""

    def __init__(
        self,
        store: CheckpointStore,
        retry: RetryPolicy,
        status: SlotStatus,
        clock: Clock,
        executor: Executor = THREADS,
    ) -> None:
        self._store, self._retry, self._status, self._clock = store, retry, status, clock
        self._costs: Mapping[str, Sequence[float]] = {}  # put in place whole: others read it
        self._thread = WorkerThread[_Job]("saver", self._do, retry, BACKLOG, executor)

    @property
    def is_idle(self) -> bool:
        return self._thread.is_idle

    def is_quick(self, state: State | None) -> bool:
        """Whether a state, or that there is none, would be told of about as soon as a fact is on record."""
        return self.is_idle and (state is None or state.total <= SMALL)

    def seconds(self, plan: str) -> float:
        """The time that training loses by keeping a state of a plan: the median of the last ones.

        One that took long, as where the machine stood still, must not make the next ones rare. An upload costs little,
        however long it takes: ten gigabytes, two minutes on their way to S3, would be kept every three hours otherwise.
        """
        return median(self._costs.get(plan, FIRST_COSTS))

    def save(
        self,
        claim: Claim,
        place: str,
        state: State,
        on_stored: Callable[[Stored], None],
        *,
        copy_seconds: float = 0.0,
        is_branch_point: bool = False,
    ) -> None:
        """Store a state, which is the saver's from here on; `on_stored` gets what was stored.

        copy_seconds: what it took so far. is_branch_point: as in `CheckpointStore.write`. Raises `Closing` if there
        never was room for it.
        """

        def save() -> None:
            try:
                written = self._write(claim, place, state, is_branch_point)
            finally:
                state.close()
            if written is not None:
                stored, seconds = written
                _, *later = self._costs.get(claim.stream, FIRST_COSTS)
                self._costs = {**self._costs, claim.stream: (*later, copy_seconds + min(seconds, SAVE_SECONDS))}
                on_stored(stored)

        self._thread.put(_Job(claim, save))

    def submit(self, claim: Claim, do: Callable[[], None]) -> None:
        """Do something after all that came before, unless the chain is over at that point. Does not wait for room."""
        self._thread.put(_Job(claim, do), wait=False)

    def delete(self, claim: Claim, keys: Sequence[str], on_deleted: Callable[[], None]) -> None:
        """Delete the objects of a checkpoint that is released. What cannot be at once is left to the scheduler."""

        def delete() -> None:
            try:
                for key in keys:
                    self._store.delete(key)
            except StoreUnavailable as problem:
                logger.info("%s; the scheduler will", problem)
            else:
                on_deleted()

        self.submit(claim, delete)

    def drain(self, seconds: float | None = None) -> bool:
        """Wait until everything is done that was given so far, or for so many seconds; whether it is."""
        return self._thread.drain(seconds)

    def close(self) -> None:
        self._thread.close()

    def _do(self, job: _Job) -> None:
        if not job.claim.over.is_set():
            job.do()

    def _write(self, claim: Claim, place: str, state: State, is_branch_point: bool) -> tuple[Stored, float] | None:
        """The stored object, and the seconds of the attempt; None if the chain was over before the store took it."""
        try:
            for number in self._retry.attempts():
                if claim.over.is_set():
                    return None
                begun_at = self._clock()
                try:
                    stored = self._store.write(place, state, is_branch_point=is_branch_point)
                except StoreUnavailable as problem:
                    self._say(number, problem)
                else:
                    return stored, self._clock() - begun_at
            return None
        finally:
            self._status.remove("saver")

    def _say(self, number: int, problem: StoreUnavailable) -> None:
        if number == 1:
            logger.warning("waiting for the store: %s", problem)
        if number == NOTED_AFTER:
            self._status.put("saver", f"waits for the store: {problem}")
