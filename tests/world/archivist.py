"""Who puts plans of a simulated world away when they are over, and brings them back, as `stagetree archive` does."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from app.domain.terms import StateConflict
from app.events import archive
from app.events.database import Database
from app.events.plans import Plans
from app.outages import DatabaseUnavailable, LostRace
from app.workers.scheduler.retention import PlanUse

if TYPE_CHECKING:
    from tests.world.members import Member
    from tests.world.system import World

AGAIN = 3.0


class Archivist:
    """is_done: whether each plan was put away and is back."""

    def __init__(self, world: World) -> None:
        self._world, self.is_done = world, not world.setting.archives

    def work(self, me: Member) -> None:
        database, time = self._world.database.sql, self._world.time
        if database is None:
            return
        while not self._world.has_ended():
            time.wait(AGAIN)
        for stream in sorted(set(self._world.users.streams.values())):
            time.wait(float(time.chance.random()) * 20)
            self._retry(me, f"archive {stream}", lambda stream=stream: self._archive(me, database, stream))  # type: ignore[misc]
            before = me.records.database.records.log.read(stream)
            time.wait(float(time.chance.random()) * 30)
            self._retry(me, f"bring back {stream}", lambda stream=stream: self._bring_back(database, stream))  # type: ignore[misc]
            assert me.records.database.records.log.read(stream)[: len(before)] == before, "other events are back"
        self.is_done = True

    def _retry(self, me: Member, what: str, do: Callable[[], bool]) -> None:
        """Again where the database did not answer, or the plan is active."""
        while True:
            try:
                me.records.ask(what)
                is_done = do()
                self._world.database.catch_up()
                self._world.faults.tell(f"asked: {what}, {is_done}")
                me.records.answer(what)
            except (DatabaseUnavailable, LostRace, StateConflict):
                is_done = False
            if is_done:
                return
            self._world.time.wait(AGAIN)

    def _archive(self, me: Member, database: Database, stream: str) -> bool:
        """None of it: it was done when no answer came."""
        if stream in archive.list_archived(database):
            return True
        events = self._world.database.records.log.read(stream)
        with Plans(me.records.log).holding(stream) as plan:
            has_garbage = PlanUse.measure(plan).has_garbage
        if has_garbage:
            return False
        archive.archive(database, stream, self._world.wall_clock())
        assert self._world.database.records.log.read(stream) == events, "an archived plan has other events"
        return True

    def _bring_back(self, database: Database, stream: str) -> bool:
        archive.bring_back(database, stream)
        return True
