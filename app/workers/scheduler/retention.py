"""Deletes the checkpoints that no study can need, and others while they exceed the budget.

Each deletion is two facts: the checkpoint is released, so that nothing begins with it any more, and then its object is
deleted. After a crash in between, the next look finds it among the released ones. Deletion happens on its own thread, a
few objects at a time, and not during a backup. The tick calls `chain_quota`, which reads a `Budget` that this thread
replaces as a whole.

Runs on: the retention thread; `chain_quota` on the tick's.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain.decide import decide
from app.domain.events import Event
from app.domain.search_plan import PlacedCheckpoint, SearchPlan
from app.events import Plans, Records, Write, transact
from app.scheduling.retention import checkpoints_to_release, unused_checkpoints
from app.storage.object_store import ObjectStore
from app.storage.owned_store import is_paused
from app.workers.scheduler.fence import Fence

logger = logging.getLogger(__name__)

MAX_OBJECTS = 64
"""Deletions in one look."""
MAX_PLANS = 4
"""Changed plans that one look examines, in turn. Until all are examined, nothing is deleted for the budget."""
HIGH_WATER, LOW_WATER = 0.9, 0.8
"""Shares of the budget: deletion starts above the first and stops at the second, which leaves room for states being
written.
"""
STATES_IN_FLIGHT = 2
"""States that a chain may write before the next look. At most half of the budget is held for them; slots wait."""


@dataclass(frozen=True, slots=True)
class PlanUse:
    """A plan's checkpoints at a version. last_at: when one of its studies was last submitted or ended.

    has_garbage: whether something must be deleted regardless of the budget.
    largest: the bytes of its largest checkpoint.
    """

    version: int
    kept_bytes: int
    is_open: bool
    last_at: float
    has_garbage: bool
    largest: int = 0
    chains: int = 0

    @classmethod
    def measure(cls, plan: SearchPlan) -> PlanUse:
        studies = plan.studies.values()
        times = (study.finished_at or study.submitted_at for study in studies)
        is_open = bool(plan.chains) or any(not study.is_final for study in studies)
        garbage = bool(plan.released) or bool(checkpoint_needs.idle_weights(plan)) or bool(unused_checkpoints(plan))
        largest = (
            max((entry.checkpoint.size for entry in checkpoint_needs.checkpoints(plan)), default=0) if is_open else 0
        )
        return cls(plan.version, plan.kept_bytes, is_open, max(times, default=0.0), garbage, largest, len(plan.chains))


@dataclass(frozen=True, slots=True)
class Freed:
    """The result of one look. is_done: whether nothing is left to do for now."""

    objects: int
    bytes: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tick needs to know about checkpoints, as of the last look.

    kept: bytes by plan.
    largest: bytes of the largest checkpoint of the open plans.
    is_exhausted: whether everything that may be deleted is deleted.
    """

    kept: Mapping[str, int]
    largest: int
    is_exhausted: bool


class Retention:
    """budget: bytes for all checkpoints; None: no limit.
    report: gets a sentence when the budget cannot be kept, and an empty one when it can.
    begin, until: shares of the budget, see `HIGH_WATER`.
    """

    def __init__(
        self,
        records: Records,
        plans: Plans,
        store: ObjectStore,
        budget: int | None,
        clock: Callable[[], float],
        report: Callable[[str], None] = lambda text: None,
        pause: Callable[[float], object] = time.sleep,
        begin: float = HIGH_WATER,
        until: float = LOW_WATER,
    ) -> None:
        self._records, self._plans, self._store, self._budget = records, plans, store, budget
        self._clock, self._report, self._pause, self._begin, self._until = clock, report, pause, begin, until
        self._forget()
        self._published = Budget({}, 0, False)  # set by the thread that deletes, read by the tick
        self._waiting = 0  # set by the tick, read by the thread that deletes
        self.fence = Fence()

    def _forget(self) -> None:
        """Void all measurements: the log may have lost events."""
        self._losses = self._plans.losses
        self._uses: dict[str, PlanUse] = {}  # in the order of the looks
        self._exhausted: dict[str, int] = {}  # versions of plans with nothing left to delete for the budget
        self._is_exhausted = False

    @property
    def kept_bytes(self) -> int:
        """Of the plans already examined."""
        return sum(use.kept_bytes for use in self._uses.values())

    def chain_quota(self, plans: Mapping[str, SearchPlan], live: int, wanted: int) -> int:
        """How many of `wanted` more chains, beside the `live` ones, may write before room must be made.

        plans: the open ones, as they are now. The rest waits for the next look; if nothing more can be deleted, no
            chain waits.
        """
        published = self._published
        if self._budget is None or published.is_exhausted:
            self._waiting = 0
            return wanted
        stored_bytes = sum(size for stream, size in published.kept.items() if stream not in plans)
        stored_bytes += sum(plan.kept_bytes for plan in plans.values())
        each = STATES_IN_FLIGHT * published.largest or 1
        fit = wanted if stored_bytes <= self._budget / 2 else (self._budget - stored_bytes) // each - live
        self._waiting = wanted - min(max(fit, 0), wanted)
        return wanted - self._waiting

    @property
    def has_waiting_slots(self) -> bool:
        """Whether slots had to wait at the last tick."""
        return self._waiting > 0

    def look(self) -> Freed:
        """Look once and delete a few objects. Raises `DatabaseUnavailable`, `LostRace`."""
        try:
            return Freed(0, 0, True) if is_paused(self._records) else self._look()
        finally:
            self._publish()

    def _look(self) -> Freed:
        if self._plans.losses != self._losses:
            self._forget()
        self._plans.check_log()
        versions = self._records.log.versions()
        self.fence.begin_tick()
        self.fence.retain(versions)
        is_current, is_complete = self._survey(versions), versions.keys() <= self._uses.keys()
        objects = freed = 0
        for stream in sorted(stream for stream, use in self._uses.items() if use.has_garbage):
            number, size = self._free(stream, 0, MAX_OBJECTS - objects)
            objects, freed = objects + number, freed + size
        if is_complete:
            number, size = self._make_room(MAX_OBJECTS - objects)
            objects, freed = objects + number, freed + size
        return Freed(objects, freed, is_current and objects < MAX_OBJECTS)

    def survey(self) -> None:
        """Examine all plans. Raises `DatabaseUnavailable`."""
        while not self._survey(self._records.log.versions()):
            pass

    def choose(self) -> dict[str, list[PlacedCheckpoint]]:
        """The checkpoints that would be deleted now, by plan. Call `survey` first."""
        excess, chosen = self._excess(), dict[str, list[PlacedCheckpoint]]()
        for stream in self._eviction_order():
            with self._plans.holding(stream) as plan:
                going = [
                    *plan.released.values(),
                    *checkpoint_needs.idle_weights(plan),
                    *checkpoints_to_release(plan, excess, sys.maxsize),
                ]
            if going:
                chosen[stream] = going
                excess -= sum(entry.checkpoint.size for entry in going)
        return chosen

    # ------------------------------------------------------------------------------------------------ what there is

    def _survey(self, versions: Mapping[str, int]) -> bool:
        """Examine some changed plans, new ones first, and return whether all are up to date."""
        self._uses = {stream: use for stream, use in self._uses.items() if stream in versions}  # others are archived
        outdated = [stream for stream in self._uses if self._uses[stream].version < versions.get(stream, 0)]
        changed = [*(stream for stream in versions if stream not in self._uses), *outdated]
        for stream in changed[:MAX_PLANS]:
            self._measure(stream, versions[stream])
        self._publish()
        return len(changed) <= MAX_PLANS

    def _measure(self, stream: str, version: int) -> None:
        self._uses.pop(stream, None)
        self._uses[stream] = PlanUse(version, 0, True, 0.0, False)  # after an error, nothing of it is deleted
        with self.fence.guard(stream, "adding up its checkpoints"), self._plans.holding(stream) as plan:
            self._uses[stream] = PlanUse.measure(plan)

    def _publish(self) -> None:
        by_stream = {stream: use.kept_bytes for stream, use in self._uses.items()}
        self._published = Budget(by_stream, self._largest, self._is_exhausted)

    @property
    def _largest(self) -> int:
        return max((use.largest for use in self._uses.values()), default=0)

    def _excess(self) -> int:
        """How many bytes must be deleted."""
        if self._budget is None:
            return 0
        coming = STATES_IN_FLIGHT * sum(use.chains * use.largest for use in self._uses.values())
        coming += STATES_IN_FLIGHT * self._waiting * self._largest
        begin = max(self._budget / 2, min(self._begin * self._budget, self._budget - coming))
        until = begin - (self._begin - self._until) * self._budget
        return int(self.kept_bytes - until) if self.kept_bytes > begin else 0

    def _eviction_order(self) -> list[str]:
        """Plans without open studies first, the oldest first; then the largest."""

        def order(stream: str) -> tuple[bool, float]:
            use = self._uses[stream]
            return use.is_open, -use.kept_bytes if use.is_open else use.last_at

        return sorted(self._uses, key=order)

    # ------------------------------------------------------------------------------------------------ what goes

    def _make_room(self, most: int) -> tuple[int, int]:
        excess = self._excess()
        objects = freed = 0
        for stream in self._eviction_order():
            if freed < excess:
                number, size = self._free(stream, excess - freed, most - objects)
                objects, freed = objects + number, freed + size
        self._is_exhausted = freed < excess and objects < most
        if objects < most:
            self._report_budget()
        return objects, freed

    def _report_budget(self) -> None:
        """Everything deletable is deleted: report whether that was enough."""
        if self._budget is None:
            return
        text = f"checkpoints take {self.kept_bytes:,} bytes of {self._budget:,}, and none of them may go"
        self._report(text if self.kept_bytes > self._budget else "")

    def _free(self, stream: str, excess: int, most: int) -> tuple[int, int]:
        """Delete up to `most` objects of a plan; returns their number and bytes."""
        if most <= 0:
            return 0, 0
        with self.fence.guard(stream, "deleting its checkpoints"):
            with self._plans.holding(stream) as plan:
                if excess and self._exhausted.get(stream) == plan.version:
                    return 0, 0
                chosen = tuple(checkpoints_to_release(plan, excess, most))
                if excess and not chosen:
                    self._exhausted[stream] = plan.version
            if chosen:
                self._release(stream, chosen, "budget" if excess else "no study")
            return self._delete(stream, most)
        return 0, 0

    def _release(self, stream: str, chosen: tuple[PlacedCheckpoint, ...], reason: str) -> None:
        def decide_release(plan: SearchPlan) -> Sequence[Event]:
            return decide(plan, c.ReleaseCheckpoints(checkpoints=chosen, reason=reason, assigned_keys=named))

        named = self._keys_in_use(stream, chosen)  # chains assigned later are in the plan of the decision
        self._transact(stream, decide_release)

    def _delete(self, stream: str, most: int) -> tuple[int, int]:
        with self._plans.holding(stream, fresh=False) as plan:
            released = [*plan.released.values(), *checkpoint_needs.idle_weights(plan)][:most]
        named = self._keys_in_use(stream, released)
        idle = (entry for entry in released if entry.key not in named)
        gone = [each for each in idle if all(delete_object(self._store, one.key) for one in each.checkpoint.objects)]
        self._transact(stream, lambda plan: decide(plan, c.RecordDeleted(keys=tuple(entry.key for entry in gone))))
        with self._plans.holding(stream, fresh=False) as plan:
            self._uses[stream] = PlanUse.measure(plan)
        return len(gone), sum(entry.checkpoint.size for entry in gone)

    def _keys_in_use(self, stream: str, among: Sequence[PlacedCheckpoint]) -> frozenset[str]:
        """The keys with which live chains begin, by their rows."""
        if not among:
            return frozenset()
        with self._records.read() as rows:
            live = rows.chains.live(stream)
        return frozenset(entry.key for entry in among if any(row.may_read(entry.key) for row in live))

    def _transact(self, stream: str, decide_release: Callable[[SearchPlan], Sequence[Event]]) -> None:
        write = Write(stream=stream, decide=decide_release, at=self._clock())
        transact(self._records.log, self._plans, write, pause=self._pause)


def delete_object(store: ObjectStore, key: str) -> bool:
    """Whether it is gone; otherwise a later look tries again."""
    try:
        store.delete(key)
    except FileNotFoundError:
        return True
    except Exception as error:  # the client of the store may raise anything; nothing is written here
        logger.warning("checkpoint %s is not deleted yet: %s: %s", key, type(error).__name__, error)
        return False
    return True
