"""The checkpoints of a chain.

Those inside a stage are kept for accidents and late branches: the newest, and others while there is room. The state
whose loss costs the least retraining is dropped first: one that no known trial needs, and of these the one with the
closest neighbours.

Runs on: the saver's thread; `ChainCheckpoints` on the thread that trains.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from app.domain import events as e
from app.domain.terms import NodeId
from app.events import DatabaseUnavailable, Records
from app.outages import LostRace
from app.workers.slot.checkpoint_store import Stored
from app.workers.slot.claim import Claim
from app.workers.slot.outbox import FactOutbox, Finish
from app.workers.slot.saver import Saver
from app.workers.state import State

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class IntermediateState:
    """start: of its stage.
    branches: steps inside the stage at which known trials would branch off.
    best_for: as in `Save`.
    """

    fact: e.CheckpointKept
    start: int
    branches: tuple[int, ...]
    best_for: tuple[int, ...] = ()

    @property
    def step(self) -> int:
        return self.fact.step


class IntermediateCheckpoints:
    """The states inside one chain's stages. limit: bytes for all but the best ones; the newest may exceed it."""

    def __init__(self, claim: Claim, limit: int, records: Records, outbox: FactOutbox, saver: Saver) -> None:
        self._claim, self._limit = claim, limit
        self._records, self._outbox, self._saver = records, outbox, saver
        self._kept: list[IntermediateState] = []

    def keep(self, kept: IntermediateState) -> None:
        """Record a stored state; older ones make room for it once it is recorded."""
        self._kept.append(kept)
        self._outbox.put(self._claim, [kept.fact], on_recorded=lambda: self._saver.submit(self._claim, self._make_room))

    def release_at_end(self) -> list[e.CheckpointReleased]:
        """Release states over the limit once the stage's end is kept; the scheduler deletes them."""
        released, best = [], self._best()
        for old in list(self._kept):
            if self._exceeds_limit() and old not in best and not self._is_needed(old.fact):
                self._kept.remove(old)
                released.append(_released_fact(old.fact, "the end of its stage is kept"))
        return released

    def _exceeds_limit(self) -> bool:
        best = self._best()
        return sum(each.fact.size for each in self._kept if each not in best) > self._limit

    def _best(self) -> list[IntermediateState]:
        """For each node and study that asks for it, the last best state. Other trials branch off at a node's end."""
        return list({(number, each.fact.node): each for each in self._kept for number in each.best_for}.values())

    def _make_room(self) -> None:
        passed_over = {each.step for each in self._best() if each.fact.node == self._kept[-1].fact.node}
        while self._exceeds_limit():
            here = [each for each in self._kept if each.fact.node == self._kept[-1].fact.node]
            old = cheapest_to_drop(here, passed_over)
            if old is None:
                return
            if self._is_needed(old.fact):
                passed_over.add(old.step)
            else:
                self._kept.remove(old)
                self._replace(old.fact)

    def _replace(self, old: e.CheckpointKept) -> None:
        """If this process ends in between, the scheduler deletes it."""
        released = _released_fact(old, "replaced")
        dropped = e.CheckpointDropped(node=old.node, step=old.step, key=old.key, reason="replaced")
        record = partial(self._outbox.put, self._claim, [dropped])
        delete = partial(self._saver.delete, self._claim, old.keys, record)
        self._outbox.put(self._claim, [released], on_recorded=delete)

    def _is_needed(self, old: e.CheckpointKept) -> bool:
        """Whether another chain begins there, or may do so for all we know."""
        try:
            with self._records.read() as rows:
                live = rows.chains.live(self._claim.stream)
        except (DatabaseUnavailable, LostRace) as problem:
            logger.info("an older intermediate checkpoint stays: %s", problem)
            return True
        return any(row.may_read(old.key) for row in live)


def cheapest_to_drop(here: Sequence[IntermediateState], passed_over: set[int]) -> IntermediateState | None:
    """The state in a node whose loss costs the least retraining; never the newest. None if all are passed over.

    Retraining for known trials counts first, then the distance between its neighbours.
    """
    losses = []
    for number, each in enumerate(here[:-1]):
        before = max(here[number - 1].step, each.start) if number else each.start
        after = here[number + 1].step
        again = sum(each.step - before for step in each.branches if each.step <= step < after)
        if each.step not in passed_over:
            losses.append((again, after - before, number))
    return here[min(losses)[2]] if losses else None


class ChainCheckpoints:
    """Moves one chain's states to the store and their facts into the log. room: bytes for those inside stages."""

    def __init__(self, claim: Claim, room: int, records: Records, outbox: FactOutbox, saver: Saver, host: str) -> None:
        self._claim, self._outbox, self._saver, self._host = claim, outbox, saver, host
        self._intermediates = IntermediateCheckpoints(claim, room, records, outbox, saver)
        self._held: State | None = None

    @property
    def is_quick(self) -> bool:
        """Whether the held state, or its absence, would be recorded about as soon as a fact."""
        return self._saver.is_quick(self._held)

    @property
    def has_held(self) -> bool:
        return self._held is not None

    def hold(self, state: State) -> None:
        """Hold the state of a stage's end until the stage's fact is on its way to the log: see `save_held`."""
        self._held = state

    def save_held(self, stage: e.Stage, last_words: Sequence[e.Event], is_branch_point: bool) -> bool:
        """Store the held state, and return whether there was one.

        last_words: the chain's last facts, recorded with it.
        """
        state, self._held = self._held, None
        if state is None:
            return False

        def put(stored: Stored) -> None:
            saved = _kept_fact(stage.node, stage.end, stored, is_intermediate=False)
            facts: list[e.Event] = [saved, *self._intermediates.release_at_end()]
            if last_words:
                self._outbox.put(self._claim, [*facts, *last_words], Finish(), is_last=True, is_news=True)
            else:
                self._outbox.put(self._claim, facts, is_news=True)

        def put_cached(cached: Stored) -> None:
            fact = e.CheckpointCached(**_state_fields(stage.node, stage.end, cached), host=self._host)
            self._outbox.put(self._claim, [fact], is_news=True)

        on_cached = put_cached if is_branch_point else None
        self._saver.save(self._claim, self._place(stage, stage.end), state, put, on_cached=on_cached)
        return True

    def save_inside(
        self,
        stage: e.Stage,
        step: int,
        state: State,
        *,
        copy_seconds: float,
        is_intermediate: bool,
        branches: tuple[int, ...],
        best_for: tuple[int, ...] = (),
    ) -> None:
        """Store a state inside a stage. branches, best_for: as in `IntermediateState`."""

        def put(stored: Stored) -> None:
            fact = _kept_fact(stage.node, step, stored, is_intermediate=is_intermediate)
            if is_intermediate:
                self._intermediates.keep(IntermediateState(fact, stage.start, branches, best_for))
            else:
                self._outbox.put(self._claim, [fact], is_news=True)

        self._saver.save(self._claim, self._place(stage, step), state, put, copy_seconds=copy_seconds)

    def close(self) -> None:
        """Drop the held state."""
        if self._held is not None:
            self._held.close()

    def _place(self, stage: e.Stage, step: int) -> str:
        return f"{self._claim.stream}/{stage.node}/{step}"


def _released_fact(old: e.CheckpointKept, reason: str) -> e.CheckpointReleased:
    return e.CheckpointReleased(node=old.node, step=old.step, key=old.key, reason=reason)


def _kept_fact(node: NodeId, step: int, stored: Stored, *, is_intermediate: bool) -> e.CheckpointKept:
    return e.CheckpointKept(**_state_fields(node, step, stored), intermediate=is_intermediate, looked=stored.looked)


def _state_fields(node: NodeId, step: int, stored: Stored) -> dict[str, Any]:
    checkpoint = {"key": stored.key, "sha256": stored.sha256, "size": stored.size, "parts": stored.parts}
    return {"node": node, "step": step, **checkpoint}
