"""The processes of a simulated world."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.world.fault_alphabet import Effects
from tests.world.fibers import Fibers, Process
from tests.world.objects import WorldStore
from tests.world.servers import WorldRecords

if TYPE_CHECKING:
    from tests.world.system import World

RACE_SECONDS = 0.1


class Member(Process):
    """A process of this world."""

    def __init__(self, name: str, world: World) -> None:
        super().__init__(name, world.time)
        self._world, self.is_to_end, self.is_away_with_its_host, self.is_busy = world, False, False, False
        self.is_refused = False
        self.on_end: Callable[[], None] = lambda: None
        self.following: tuple[str, int, int] | None = None
        self.fibers_of = Fibers(self)
        self.effects = Effects(self, world.faults)
        self.records = WorldRecords(world.database, self.effects)
        has_copies = world.setting.copies and name.startswith("worker")
        self.store = WorldStore(world.objects, self.effects, world.host_of(name) if has_copies else None)

    def kill(self) -> None:
        super().kill()
        self._world.note_death(self)

    def kill_all(self) -> None:
        self._world.kill_all()

    def kill_host(self) -> None:
        self._world.kill_host(self.name)

    def begin_twin(self, seconds: float) -> None:
        """For some seconds, another machine runs a worker of this slot, too."""
        self._world.begin_twin(self, seconds)

    def lose_commits(self, seconds: float) -> None:
        """The database fails over to a replica that lacks the commits of the last `seconds`."""
        self._world.lose_commits(seconds)

    def ask_to_end(self) -> None:
        """As SIGTERM."""
        self.is_to_end = True
        self.on_end()

    def later(self, seconds: float, do: Callable[[], None]) -> None:
        self._world.later(seconds, do)

    def wait(self, seconds: float) -> None:
        self.time.wait(seconds)

    def rest(self, seconds: float) -> None:
        """Out of the way of others for about this long. The chance in `seconds` is not of this world."""
        self.time.wait(float(self.time.chance.expovariate(1 / RACE_SECONDS)))

    @property
    def is_at_rest(self) -> bool:
        """Alive, and with nothing under way."""
        return not self.is_dead and not self.is_busy and self.paused_until <= self.time.now


class Lock:
    """The lock of a slot on its machine, like `SlotLock`: its owner knows that the previous one is dead."""

    def __init__(self, worker: str) -> None:
        self.id = f"lock-of-{worker}"
