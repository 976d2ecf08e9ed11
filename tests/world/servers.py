"""The database and the broker of a simulated world, as its processes see them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from app.events.database import Database
from app.events.log import Append, EventLog, StoredEvent, VersionConflict
from app.events.memory import MemoryRecords
from app.events.records import Records
from app.events.sql_log import SqlRecords
from app.outages import DatabaseUnavailable, LostRace
from tests.world.fault_alphabet import LAG, Effects
from tests.world.fibers import Time
from tests.world.replica import PutBack, copy_records


class Server:
    """Something that can be away, for everybody or for one process."""

    def __init__(self, time: Time) -> None:
        self._time, self._away_until = time, dict[str, float]()

    def leave(self, whom: str, seconds: float) -> None:
        self._away_until[whom] = self._time.now + seconds

    def come_back(self) -> None:
        self._away_until.clear()

    def is_away(self, whom: str) -> bool:
        return self._time.now < max(self._away_until.get("", 0.0), self._away_until.get(whom, 0.0))


class WorldDatabase(Server):
    """One for all. offset: by how much its clock is wrong. writes: how many there were to its log. file: where it is,
    if it is a real one. lost: how many events fail-overs have lost."""

    def __init__(self, time: Time, file: Path | None = None) -> None:
        super().__init__(time)
        self.offset, self.writes, self.lost = 0.0, 0, 0
        self._replica: PutBack | None = None  # while it falls behind
        self.sql = None if file is None else _create_database(file, self.clock)
        self.records: Records = MemoryRecords(self.clock) if self.sql is None else SqlRecords(self.sql)

    def fall_behind(self) -> bool:
        """From now on, commits do not reach the replica. False: that is so already."""
        is_news = self._replica is None
        self._replica = self._replica or copy_records(self.records)
        return is_news

    def catch_up(self) -> None:
        """The replica has all that was committed."""
        if self._replica is not None:
            self._replica = copy_records(self.records)

    def fail_over(self) -> None:
        """The replica replaces the database. Commits that it lacks are lost."""
        assert self._replica is not None
        before = self.records.log.head()
        self._replica()
        self._replica = None
        self.lost += before - self.records.log.head()
        self.writes += 1

    def clock(self) -> float:
        return 1_000_000.0 + self._time.now + self.offset


def _create_database(file: Path, clock: Callable[[], float]) -> Database:
    file.write_bytes(_empty())
    return Database(f"sqlite:///{file}", clock=clock)


@cache
def _empty() -> bytes:
    """A database file as the migrations leave it, which take longer than a history."""
    with TemporaryDirectory() as folder:
        file = Path(folder) / "empty.db"
        database = Database(f"sqlite:///{file}")
        database.create()
        database.dispose()
        return file.read_bytes()


class WorldRecords:
    """The records as one process sees them."""

    def __init__(self, database: WorldDatabase, effects: Effects) -> None:
        self.database, self.effects = database, effects
        self.log = WorldLog(database.records.log, self)

    @contextmanager
    def read(self) -> Iterator[Any]:
        self.ask("database read")
        with self.database.records.read() as rows:
            yield rows

    @contextmanager
    def write(self) -> Iterator[Any]:
        self.ask("database write")
        self.check_race("write")
        with self.database.records.write() as rows:
            yield rows
        self.answer("database write")

    def close(self) -> None:
        """Nothing is open."""

    def ask(self, what: str) -> None:
        self.effects.moment(f"before {what}")
        faults, me = self.effects.faults, self.effects.process.name
        if faults.strikes("database is away", what):
            self.database.leave("", faults.seconds(90.0))
        if faults.strikes("database is away for one", f"{me}, {what}"):
            self.database.leave(me, faults.seconds(90.0))
        if faults.strikes("database's clock jumps", what):
            self.database.offset += faults.seconds(600.0) * (
                1 if self.effects.process.time.chance.random() < 0.5 else -1
            )
        if faults.strikes("database loses its last commits", f"{me}, {what}"):
            self.effects.process.lose_commits(faults.seconds(LAG))
        self.check_away(me)
        if faults.strikes("database fails", f"{me}, {what}"):
            raise DatabaseUnavailable("The database did not answer.")

    def check_away(self, me: str) -> None:
        if self.database.is_away(me):
            raise DatabaseUnavailable("The database is away.")

    def check_race(self, what: str) -> None:
        if self.effects.faults.strikes("race is lost", f"{self.effects.process.name}, {what}"):
            raise LostRace("The transaction lost against another one.")

    def answer(self, what: str) -> None:
        me = self.effects.process.name
        self.effects.moment(f"after {what}")
        if self.effects.faults.strikes("database's answer is lost", f"{me}, {what}"):
            raise DatabaseUnavailable("The connection was lost while the commit was under way.")


class WorldLog:
    """An `EventLog`. Reading takes no time: no other fiber runs while a plan is held."""

    append, scan = EventLog.append, EventLog.scan

    def __init__(self, log: EventLog, records: WorldRecords) -> None:
        self._log, self._records = log, records

    def write(self, append: Append) -> list[StoredEvent]:
        kinds = ", ".join(type(event).__name__ for event in append.events) or "decision"
        self._records.ask(f"append of {kinds}")
        if self._records.effects.faults.strikes("race is lost", kinds):
            raise VersionConflict("The transaction lost against another one.")
        self._records.database.writes += 1
        recorded = self._log.write(append)
        self._records.answer(f"append of {kinds}")
        return recorded

    def __getattr__(self, name: str) -> Any:
        self._records.check_away(self._records.effects.process.name)
        return getattr(self._log, name)


class WorldBroker(Server):
    """Messages on their way: each is taken by one of the processes that serve its queue."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self._queues: dict[str, deque[tuple[Any, ...]]] = {}
        self._flags: dict[str, dict[str, Any]] = {}  # by queue, of each process

    def serve(self, process: str, queue: str, flag: Any) -> None:
        """This process, instead of the one before it of that name, waits for that flag."""
        self._flags.setdefault(queue, {})[process] = flag
        if self._queues.get(queue):
            flag.set()

    def send(self, effects: Effects, queue: str, message: tuple[Any, ...]) -> None:
        effects.moment("before send")
        faults, about = effects.faults, f"{message} for {queue}"
        if faults.strikes("broker is away", about):
            self.leave("", faults.seconds(60.0))
        if faults.strikes("broker forgets", about):
            self._queues.clear()
        if self.is_away(effects.process.name):
            raise ConnectionError("The broker is away.")
        if not faults.strikes("message is lost", about):
            self._put(effects, queue, message)
        if faults.strikes("message comes twice", about):
            self._put(effects, queue, message)
        effects.moment("after send")

    def take(self, effects: Effects, queue: str) -> tuple[Any, ...] | None:
        """Waits for one; None where it was woken for something else."""
        flag = self._flags[queue][effects.process.name]
        flag.wait()
        flag.clear()
        waiting = self._queues.get(queue)
        if not waiting:
            return None
        message = waiting.popleft()
        if waiting:
            flag.set()
        effects.moment("after take")
        return message

    def _put(self, effects: Effects, queue: str, message: tuple[Any, ...]) -> None:
        if effects.faults.strikes("message is late", f"{message} for {queue}"):
            effects.process.later(effects.faults.seconds(40.0), lambda: self._place(queue, message))
        else:
            self._place(queue, message)

    def _place(self, queue: str, message: tuple[Any, ...]) -> None:
        self._queues.setdefault(queue, deque()).append(message)
        for flag in self._flags.get(queue, {}).values():
            flag.set()
