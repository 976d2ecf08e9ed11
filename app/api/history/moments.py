"""Plans as they were: folded from the log up to an event, for whoever looks at an earlier moment.

A few of them stay in memory, and go on from where they are: whoever moves through a log forwards folds each event once.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock

from app.domain.evolve import collector_paused, evolve, strikes
from app.domain.search_plan import SearchPlan
from app.events.log import EventLog

KEPT = 4
BATCH = 5_000


class Moments:
    """The plans of earlier moments. Safe to share between threads; one looks at a time."""

    def __init__(self, log: EventLog, kept: int = KEPT) -> None:
        self._log, self._kept = log, kept
        self._plans: list[tuple[str, SearchPlan]] = []  # the one used last is last
        self._lock = Lock()

    @contextmanager
    def holding(self, stream: str, version: int) -> Iterator[SearchPlan]:
        """The plan of a stream after its event `version`, which there must be. Nobody changes it within the block."""
        with self._lock:
            plan = self._nearest(stream, version)
            if not self._fold(stream, plan, version):  # a study was struck since: none of its events counts
                plan = SearchPlan(struck=self._log.struck(stream))
                self._fold(stream, plan, version)
            self._plans = [*self._plans, (stream, plan)][-self._kept :]
            yield plan

    def _nearest(self, stream: str, version: int) -> SearchPlan:
        """The latest one that is not past the moment, taken out; or an empty one."""
        found = [each for each in self._plans if each[0] == stream and each[1].version <= version]
        if not found:
            return SearchPlan(struck=self._log.struck(stream))
        nearest = max(found, key=lambda each: each[1].version)
        self._plans = [each for each in self._plans if each is not nearest]
        return nearest[1]

    def _fold(self, stream: str, plan: SearchPlan, version: int) -> bool:
        """Go on to the moment. False where a struck study is in the plan."""
        with collector_paused():
            while plan.version < version:
                limit = min(BATCH, version - plan.version)
                batch = self._log.read(stream, after=plan.version, limit=limit)
                if not batch or not strikes(each.event for each in batch) <= plan.struck:
                    return False
                for each in batch:
                    evolve(plan, each.event)
                    plan.version = each.version
        return True
