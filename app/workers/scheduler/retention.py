"""Runs on: the retention thread; `chains_that_fit` on the tick's.

Deletes checkpoints: those that no study is left to ask for, and as many others as are more than the budget allows.

In two steps, each a fact: a checkpoint is released, so that nothing begins with it any more, and its object is deleted.
After a crash in between, the next look finds it among released ones. It is done on a thread of its own, a few at a
time, and not during a backup; the tick calls `chains_that_fit`, which reads a `Budget` that it publishes whole.
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

MOST_OBJECTS = 64
"""So many objects are deleted in one look."""
MOST_FOLDED = 4
"""So many plans that have changed are looked at in one look, in turn; until all were, nothing goes for the budget."""
BEGIN, UNTIL = 0.9, 0.8
"""From which share of the budget on checkpoints go, and down to which: what is being written meanwhile needs room."""
ON_THE_WAY = 2
"""So many states a chain may write before the next look. At most half of the budget is held for that; slots wait."""


@dataclass(frozen=True, slots=True)
class PlanUse:
    """What a plan keeps, as of a version. last_at: when a study of it was submitted, or ended, for the last time.

    has_garbage: whether something must be deleted whatever the budget. largest: the bytes of its largest checkpoint.
    """

    version: int
    kept_bytes: int
    is_open: bool
    last_at: float
    has_garbage: bool
    largest: int = 0
    chains: int = 0

    @classmethod
    def of(cls, plan: SearchPlan) -> PlanUse:
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
    """What one look did. is_done: whether there is nothing more to do for now."""

    objects: int
    bytes: int
    is_done: bool


@dataclass(frozen=True, slots=True)
class Budget:
    """What a tick needs to know of the checkpoints, as of the last look.

    kept: bytes by plan. largest: bytes of the largest checkpoint of the plans under way. is_at_its_end: all that may go
    has gone.
    """

    kept: Mapping[str, int]
    largest: int
    is_at_its_end: bool


class Retention:
    """budget: bytes for all checkpoints; None for any number. report: told a sentence when the budget cannot be held,
    and an empty one when it can. begin, until: shares of the budget."""

    def __init__(
        self,
        records: Records,
        plans: Plans,
        store: ObjectStore,
        budget: int | None,
        clock: Callable[[], float],
        report: Callable[[str], None] = lambda text: None,
        pause: Callable[[float], object] = time.sleep,
        begin: float = BEGIN,
        until: float = UNTIL,
    ) -> None:
        self._records, self._plans, self._store, self._budget = records, plans, store, budget
        self._clock, self._report, self._pause, self._begin, self._until = clock, report, pause, begin, until
        self._uses: dict[str, PlanUse] = {}  # that which was looked at last comes last
        self._exhausted: dict[str, int] = {}  # plans of which nothing may go for the budget, as of a version
        self._is_at_its_end = False
        self._published = Budget({}, 0, False)  # set by the thread that deletes, read by the tick
        self._waiting = 0  # set by the tick, read by the thread that deletes
        self.fence = Fence()

    @property
    def kept_bytes(self) -> int:
        """Of the plans that were looked at."""
        return sum(use.kept_bytes for use in self._uses.values())

    def chains_that_fit(self, plans: Mapping[str, SearchPlan], live: int, wanted: int) -> int:
        """How many of so many more chains, beside those that live, may write without more room being made.

        plans: those in which something goes on, as they are now. The others wait for the next look; where nothing
        may go that is there, nobody waits.
        """
        published = self._published
        if self._budget is None or published.is_at_its_end:
            self._waiting = 0
            return wanted
        stored_bytes = sum(size for stream, size in published.kept.items() if stream not in plans)
        stored_bytes += sum(plan.kept_bytes for plan in plans.values())
        each = ON_THE_WAY * published.largest or 1
        fit = wanted if stored_bytes <= self._budget / 2 else (self._budget - stored_bytes) // each - live
        self._waiting = wanted - min(max(fit, 0), wanted)
        return wanted - self._waiting

    @property
    def is_waited_for(self) -> bool:
        """Whether slots had to wait at the last tick."""
        return self._waiting > 0

    def look(self) -> Freed:
        """Look once, and delete a few. Raises `DatabaseUnavailable`, `LostRace`."""
        try:
            return Freed(0, 0, True) if is_paused(self._records) else self._look()
        finally:
            self._publish()

    def _look(self) -> Freed:
        versions = self._records.log.versions()
        self.fence.begin_tick()
        self.fence.keep(versions)
        is_current, is_complete = self._survey(versions), versions.keys() <= self._uses.keys()
        objects = freed = 0
        for stream in sorted(stream for stream, use in self._uses.items() if use.has_garbage):
            number, size = self._free(stream, 0, MOST_OBJECTS - objects)
            objects, freed = objects + number, freed + size
        if is_complete:
            number, size = self._make_room(MOST_OBJECTS - objects)
            objects, freed = objects + number, freed + size
        return Freed(objects, freed, is_current and objects < MOST_OBJECTS)

    def survey(self) -> None:
        """Look at all plans. Raises `DatabaseUnavailable`."""
        while not self._survey(self._records.log.versions()):
            pass

    def choose(self) -> dict[str, list[PlacedCheckpoint]]:
        """What would go now, by plan, after a `survey`."""
        excess, chosen = self._excess(), dict[str, list[PlacedCheckpoint]]()
        for stream in self._in_order():
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
        """Look at some plans that have changed, new ones first; whether all are known as they are."""
        self._uses = {stream: use for stream, use in self._uses.items() if stream in versions}  # others are archived
        outdated = [stream for stream in self._uses if self._uses[stream].version < versions.get(stream, 0)]
        changed = [*(stream for stream in versions if stream not in self._uses), *outdated]
        for stream in changed[:MOST_FOLDED]:
            self._see(stream, versions[stream])
        self._publish()
        return len(changed) <= MOST_FOLDED

    def _see(self, stream: str, version: int) -> None:
        self._uses.pop(stream, None)
        self._uses[stream] = PlanUse(version, 0, True, 0.0, False)  # after an error, nothing of it goes
        with self.fence.around(stream, "adding up its checkpoints"), self._plans.holding(stream) as plan:
            self._uses[stream] = PlanUse.of(plan)

    def _publish(self) -> None:
        by_stream = {stream: use.kept_bytes for stream, use in self._uses.items()}
        self._published = Budget(by_stream, self._largest, self._is_at_its_end)

    @property
    def _largest(self) -> int:
        return max((use.largest for use in self._uses.values()), default=0)

    def _excess(self) -> int:
        """How many bytes must go."""
        if self._budget is None:
            return 0
        coming = ON_THE_WAY * sum(use.chains * use.largest for use in self._uses.values())
        coming += ON_THE_WAY * self._waiting * self._largest
        begin = max(self._budget / 2, min(self._begin * self._budget, self._budget - coming))
        until = begin - (self._begin - self._until) * self._budget
        return int(self.kept_bytes - until) if self.kept_bytes > begin else 0

    def _in_order(self) -> list[str]:
        """The plans in which nothing goes on, the oldest first; then those which keep the most."""

        def order(stream: str) -> tuple[bool, float]:
            use = self._uses[stream]
            return use.is_open, -use.kept_bytes if use.is_open else use.last_at

        return sorted(self._uses, key=order)

    # ------------------------------------------------------------------------------------------------ what goes

    def _make_room(self, most: int) -> tuple[int, int]:
        excess = self._excess()
        objects = freed = 0
        for stream in self._in_order():
            if freed < excess:
                number, size = self._free(stream, excess - freed, most - objects)
                objects, freed = objects + number, freed + size
        self._is_at_its_end = freed < excess and objects < most
        if objects < most:
            self._say()
        return objects, freed

    def _say(self) -> None:
        """All has gone that may: whether that was enough."""
        if self._budget is None:
            return
        text = f"checkpoints take {self.kept_bytes:,} bytes of {self._budget:,}, and none of them may go"
        self._report(text if self.kept_bytes > self._budget else "")

    def _free(self, stream: str, excess: int, most: int) -> tuple[int, int]:
        """Delete up to so many objects of a plan; how many, and how many bytes."""
        if most <= 0:
            return 0, 0
        with self.fence.around(stream, "deleting its checkpoints"):
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
        def decided(plan: SearchPlan) -> Sequence[Event]:
            return decide(plan, c.ReleaseCheckpoints(checkpoints=chosen, reason=reason, assigned_keys=named))

        named = self._named(stream, chosen)  # a chain that is given later is in the plan that is decided on
        self._transact(stream, decided)

    def _delete(self, stream: str, most: int) -> tuple[int, int]:
        with self._plans.holding(stream, fresh=False) as plan:
            released = [*plan.released.values(), *checkpoint_needs.idle_weights(plan)][:most]
        named = self._named(stream, released)
        idle = (entry for entry in released if entry.key not in named)
        gone = [each for each in idle if all(delete_object(self._store, one.key) for one in each.checkpoint.objects)]
        self._transact(stream, lambda plan: decide(plan, c.RecordDeleted(keys=tuple(entry.key for entry in gone))))
        with self._plans.holding(stream, fresh=False) as plan:
            self._uses[stream] = PlanUse.of(plan)
        return len(gone), sum(entry.checkpoint.size for entry in gone)

    def _named(self, stream: str, among: Sequence[PlacedCheckpoint]) -> frozenset[str]:
        """The keys of those with which chains under way begin, by their rows."""
        if not among:
            return frozenset()
        with self._records.read() as rows:
            live = rows.chains.live(stream)
        return frozenset(entry.key for entry in among if any(row.may_read(entry.key) for row in live))

    def _transact(self, stream: str, decided: Callable[[SearchPlan], Sequence[Event]]) -> None:
        write = Write(stream=stream, decide=decided, at=self._clock())
        transact(self._records.log, self._plans, write, pause=self._pause)


def delete_object(store: ObjectStore, key: str) -> bool:
    """Whether it is gone; else it is tried again at another look."""
    try:
        store.delete(key)
    except FileNotFoundError:
        return True
    except Exception as error:  # whatever the client of the store raises; nothing is written here
        logger.warning("checkpoint %s is not deleted yet: %s: %s", key, type(error).__name__, error)
        return False
    return True
