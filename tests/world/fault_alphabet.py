"""What goes wrong in a simulated world, and what a process does to it.

Before and after each effect there is a moment in which its process can be killed or paused: a crash point, named after
the effect. A request to a server can fail before it is done, after it was done, or for a while.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cache
from random import Random

from tests.world.fibers import Process, Time

LATENCY = 0.01
"""Mean seconds that an effect takes."""

PAUSE = 60.0
"""The most seconds that a process stands still."""

STAY = 90.0
"""The most seconds that another machine has a worker of the same slot."""

LAG = 10.0
"""The most seconds of commits that a fail-over loses."""

RATES = {
    "database fails": 0.02,
    "database's answer is lost": 0.02,
    "race is lost": 0.05,
    "database is away": 0.001,
    "database is away for one": 0.002,
    "database's clock jumps": 0.001,
    "database loses its last commits": 0.002,
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
    "worker gets SIGTERM": 0.002,
    "worker is paused": 0.002,
    "slot is claimed twice": 0.002,
    "scheduler is killed": 0.003,
    "scheduler is paused": 0.002,
    "host is lost": 0.0005,
    "everything is killed": 0.0005,
    "trainer dies": 0.01,
    "rank dies": 0.05,
    "pack dies": 0.3,
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
    "database loses its last commits": 2,
    "fork is killed": 2,
    "slot is claimed twice": 3,
    "trainer dies": 1,
    "rank dies": 2,
    "pack dies": 8,
    "lane fails": 2,
    "no room beside others": 12,
    "object is damaged": 4,
    "host is lost": 2,
    "everything is killed": 2,
}
"""The most times that a fault happens: more would count against the trial, rightly, or take for ever."""


class Faults:
    """chosen: names of `RATES`. until: when the last one may happen. share: of the rates, how often they happen.

    told: past faults, and their times. kill_at: the process that passes this crash point first is killed there.
    moments: the crash points that were passed by processes that come back.
    """

    kill_at = ""

    def __init__(self, time: Time, chosen: Iterable[str], until: float, share: float = 1.0) -> None:
        self._time, self._chosen, self.until, self._share = time, frozenset(chosen), until, share
        self.told: list[str] = []
        self.counts = Counter[str]()
        self.crash_points = Counter[str]()
        self.moments = set[str]()

    def may_strike(self, name: str) -> bool:
        """Whether it is one that this history has."""
        return name in self._chosen

    def strikes(self, name: str, about: str, place: str = "") -> bool:
        """Whether it happens. about, place: the line that is noted then; put together only if it does."""
        if name not in self._chosen or self._time.now > self.until or self.counts[name] >= MOST.get(name, 10**9):
            return False
        if self._time.chance.random() >= self._share * RATES[name]:
            return False
        self.tell(f"{name}: {about}{place and ' at '}{place}")
        self.counts[name] += 1
        return True

    def tell(self, text: str) -> None:
        self.told.append(f"{self._time.now:9.3f}  {text}")

    def seconds(self, most: float) -> float:
        """How long something lasts: often short, sometimes as long as that."""
        return most * float(self._time.chance.random()) ** 3


@cache
def crash_point(what: str) -> str:
    """The name of a moment: of events that are appended together, each kind once."""
    kinds = dict.fromkeys(what.split(", "))
    return ", ".join(kinds)


class Effects:
    """What one process does to the world."""

    def __init__(self, process: Process, faults: Faults) -> None:
        self.process, self.faults, self._time = process, faults, process.time
        self._accidents = self._possible()
        self._comes_back = f"{process.name.partition('-')[0]} is killed" in RATES

    def moment(self, what: str) -> None:
        """It takes a moment, in which the process may be killed or paused."""
        self._accident(what)
        self._time.wait(self._time.chance.expovariate(1 / LATENCY))

    def _accident(self, what: str) -> None:
        if self._comes_back:
            self.faults.moments.add(point := crash_point(what))
            if point == self.faults.kill_at:
                self.faults.kill_at = ""
                self.faults.tell(f"{self.process.name} is killed at {point}, as configured")
                self._die(what)
                return
        for name, happens in self._accidents:
            if self.faults.strikes(name, self.process.name, what):
                happens(what)
                return

    def _possible(self) -> list[tuple[str, Callable[[str], None]]]:
        """What may happen to this process, as its history has been chosen, and how it does."""
        kind, process = self.process.name.partition("-")[0], self.process
        accidents: dict[str, Callable[[str], None]] = {f"{kind} is killed": self._die}
        if kind == "worker":
            accidents["fork is killed"] = self._die_alone
        accidents[f"{kind} is paused"] = lambda what: process.pause(self.faults.seconds(PAUSE))
        if kind == "worker":
            accidents["slot is claimed twice"] = lambda what: process.begin_twin(self.faults.seconds(STAY))
            accidents["worker gets SIGTERM"] = lambda what: process.ask_to_end()
            accidents["host is lost"] = lambda what: process.kill_host()
        accidents["everything is killed"] = lambda what: process.kill_all()
        return [(name, happens) for name, happens in accidents.items() if self.faults.may_strike(name)]

    def _die(self, what: str) -> None:
        self.faults.crash_points[crash_point(what)] += 1
        self.process.kill()

    def _die_alone(self, what: str) -> None:
        self.process.is_fork_alone = True
        self.process.kill()


def choose_faults(chance: Random) -> list[str]:
    """Half of the faults, more or less: with all of them at once, one hides the other (swarm testing). In every fourth
    history only the faults that must cost nothing."""
    share, some = chance.random(), RATES if chance.random() < 0.75 else FREE
    return [name for name in RATES if name in some and chance.random() < share]
