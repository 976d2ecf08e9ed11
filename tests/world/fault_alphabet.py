"""What goes wrong in a simulated world, and the database, store and broker as its processes see them.

Before and after each effect there is a moment in which its process can be killed or paused: a crash point, named after
the effect. What is asked of a server can fail before it is done, after it was done, or for a while.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from app.away import LostRace
from app.events.database import DatabaseUnavailable
from app.events.log import Append, EventLog, StoredEvent, VersionConflict
from app.events.memory import MemoryRecords
from app.object_store import Written
from tests.world.fibers import Process, Time

LATENCY = 0.01
"""Mean seconds that an effect takes."""

PAUSE = 60.0
"""The most seconds that a process stands still."""

RATES = {
    "database fails": 0.02,
    "database's answer is lost": 0.02,
    "race is lost": 0.05,
    "database is away": 0.001,
    "database is away for one": 0.002,
    "database's clock jumps": 0.001,
    "store fails": 0.05,
    "store's answer is lost": 0.05,
    "store is away": 0.01,
    "object is not seen yet": 0.1,
    "object is damaged": 0.1,
    "message is lost": 0.1,
    "message comes twice": 0.1,
    "message is late": 0.1,
    "broker is away": 0.02,
    "broker forgets": 0.005,
    "worker is killed": 0.003,
    "fork is killed": 0.001,
    "worker is asked to end": 0.002,
    "worker is paused": 0.002,
    "scheduler is killed": 0.003,
    "scheduler is paused": 0.002,
    "host is lost": 0.0005,
    "everything is killed": 0.0005,
    "trainer dies": 0.01,
    "rank dies": 0.05,
    "pack dies": 0.1,
    "lane fails": 0.01,
    "no room beside others": 0.3,
    "client's answer is lost": 0.3,
    "command comes twice": 0.5,
    "api is killed": 0.02,
    "api is paused": 0.02,
    "step takes long": 0.01,
}
"""How probable each fault is where it can happen; a history has some of them."""

FREE = {
    "database fails",
    "database's answer is lost",
    "race is lost",
    "database is away",
    "store fails",
    "store's answer is lost",
    "store is away",
    "object is not seen yet",
    "client's answer is lost",
    "command comes twice",
    "api is killed",
    "api is paused",
    "message comes twice",
    "no room beside others",
    "step takes long",
}
"""Faults that must cost no step: they are waited for."""

HELD = {"trainer dies", "lane fails"}
"""Faults that count against a trial, though not at once."""

MOST = {
    "fork is killed": 2,
    "trainer dies": 1,
    "rank dies": 2,
    "pack dies": 6,
    "lane fails": 2,
    "no room beside others": 12,
    "object is damaged": 4,
    "host is lost": 2,
    "everything is killed": 2,
}
"""What happens at most so often: more of it is held against the trial, as it should be, or would take for ever."""


class Faults:
    """chosen: names of `RATES`. until: when the last one may happen. share: of the rates, how often they happen.

    told: what has happened, and when.
    """

    def __init__(self, time: Time, chosen: Iterable[str], until: float, share: float = 1.0) -> None:
        self._time, self._chosen, self.until, self._share = time, frozenset(chosen), until, share
        self.told: list[str] = []
        self.counts = Counter[str]()
        self.crash_points = Counter[str]()

    def strikes(self, name: str, about: str) -> bool:
        if name not in self._chosen or self._time.now > self.until or self.counts[name] >= MOST.get(name, 10**9):
            return False
        if self._time.chance.random() >= self._share * RATES[name]:
            return False
        self.tell(f"{name}: {about}")
        self.counts[name] += 1
        return True

    def tell(self, text: str) -> None:
        self.told.append(f"{self._time.now:9.3f}  {text}")

    def seconds(self, most: float) -> float:
        """How long something lasts: often short, sometimes as long as that."""
        return most * float(self._time.chance.random()) ** 3


class Effects:
    """What one process does to the world."""

    def __init__(self, process: Process, faults: Faults) -> None:
        self.process, self.faults, self._time = process, faults, process.time

    def moment(self, what: str) -> None:
        """It takes a moment, in which the process may be killed or paused."""
        self._accident(what)
        self._time.wait(self._time.chance.expovariate(1 / LATENCY))

    def _accident(self, what: str) -> None:
        kind = self.process.name.partition("-")[0]
        about = f"{self.process.name} at {what}"
        if self.faults.strikes(f"{kind} is killed", about):
            self.faults.crash_points[what] += 1
            self.process.kill()
        elif kind == "worker" and self.faults.strikes("fork is killed", about):
            self.process.is_fork_alone = True
            self.process.kill()
        elif self.faults.strikes(f"{kind} is paused", about):
            self.process.pause(self.faults.seconds(PAUSE))
        elif kind == "worker" and self.faults.strikes("worker is asked to end", about):
            self.process.ask_to_end()
        elif kind == "worker" and self.faults.strikes("host is lost", about):
            self.process.kill_host()
        elif self.faults.strikes("everything is killed", about):
            self.process.kill_all()


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
    """One for all. offset: by how much its clock is wrong."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self.offset = 0.0
        self.records = MemoryRecords(self.clock)

    def clock(self) -> float:
        return 1_000_000.0 + self._time.now + self.offset


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
    """An `EventLog`. Reading takes no time: nobody else goes on while a plan is held."""

    append, scan = EventLog.append, EventLog.scan

    def __init__(self, log: EventLog, records: WorldRecords) -> None:
        self._log, self._records = log, records

    def write(self, append: Append) -> list[StoredEvent]:
        kinds = ", ".join(type(event).__name__ for event in append.events) or "decision"
        self._records.ask(f"append of {kinds}")
        if self._records.effects.faults.strikes("race is lost", kinds):
            raise VersionConflict("The transaction lost against another one.")
        recorded = self._log.write(append)
        self._records.answer(f"append of {kinds}")
        return recorded

    def __getattr__(self, name: str) -> Any:
        self._records.check_away(self._records.effects.process.name)
        return getattr(self._log, name)


class WorldObjects(Server):
    """What lies in the store. damaged: what is not what it was. copies: those on the disk of each
    machine, which has room for a few."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self.objects: dict[str, bytes] = {}
        self.seen_from: dict[str, float] = {}
        self.damaged = set[str]()
        self.copies: dict[int, dict[str, bytes]] = {}


MOST_COPIES = 2


class WorldStore:
    """The store as one process sees it. host: the machine on whose disk it has copies; None for on none."""

    prefix = ""

    def __init__(self, objects: WorldObjects, effects: Effects, host: int | None = None) -> None:
        self._all, self._effects = objects, effects
        self._copies = None if host is None else objects.copies.setdefault(host, {})

    def cache(self, key: str, parts: Iterable[memoryview]) -> bool:
        if self._copies is None:
            return False
        self._copies[key] = b"".join(bytes(part) for part in parts)
        while len(self._copies) > MOST_COPIES:
            del self._copies[next(iter(self._copies))]
        self._effects.moment("after a copy")
        return True

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        whole = b"".join(bytes(part) for part in parts)
        self._ask("store write", key)
        faults = self._effects.faults
        if faults.strikes("object is damaged", key):
            self._all.damaged.add(key)
            half = len(whole) // 2
            whole = whole[:half] + bytes(each ^ 1 for each in whole[half:])
        if faults.strikes("object is not seen yet", key):
            self._all.seen_from[key] = self._effects.process.time.now + faults.seconds(4.0)
        self._all.objects[key] = whole
        self._answer("store write", key)

    def read(self, key: str) -> Iterator[bytes]:
        if self._copies is not None and key in self._copies:
            yield self._copies[key]
            return
        self._ask("store read", key)
        if key not in self._all.objects or self._all.seen_from.get(key, 0.0) > self._effects.process.time.now:
            raise FileNotFoundError(key)
        yield self._all.objects[key]

    def distrust(self, key: str) -> bool:
        return False

    def open(self, key: str) -> int | None:
        return None

    def delete(self, key: str) -> None:
        self._ask("store delete", key)
        self._all.objects.pop(key, None)
        self._answer("store delete", key)

    def all_keys(self) -> Iterator[str]:
        self._ask("store list", "")
        yield from list(self._all.objects)

    def written(self, key: str) -> Written:
        return Written(len(self._all.objects[key]), 0.0)

    def _ask(self, what: str, key: str) -> None:
        self._effects.moment(f"before {what}")
        faults, me = self._effects.faults, self._effects.process.name
        if faults.strikes("store is away", what):
            self._all.leave("", faults.seconds(90.0))
        if self._all.is_away(me) or faults.strikes("store fails", f"{me}, {what} of {key}"):
            raise ConnectionError("The store is away.")

    def _answer(self, what: str, key: str) -> None:
        self._effects.moment(f"after {what}")
        if self._effects.faults.strikes("store's answer is lost", f"{self._effects.process.name}, {what} of {key}"):
            raise ConnectionError("The connection was lost.")


class WorldBroker(Server):
    """Messages on their way: each queue is a process's to take from."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self._queues: dict[str, deque[tuple[Any, ...]]] = {}
        self._flags: dict[str, Any] = {}

    def serve(self, queue: str, flag: Any) -> None:
        """Whoever takes from a queue now waits for that flag."""
        self._flags[queue] = flag
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
        flag = self._flags[queue]
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
        if (flag := self._flags.get(queue)) is not None:
            flag.set()


def chosen(chance: Random) -> list[str]:
    """Half of the faults, more or less: with all of them at once, one hides the other (swarm testing). In every fourth
    history only those that must cost nothing."""
    share, some = chance.random(), RATES if chance.random() < 0.75 else FREE
    return [name for name in RATES if name in some and chance.random() < share]
