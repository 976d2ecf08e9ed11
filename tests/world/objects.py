"""The store of a simulated world, and the disks of its machines, as its processes see them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from app.storage.object_store import ObjectStat
from tests.world.fault_alphabet import Effects
from tests.world.fibers import Time
from tests.world.servers import Server


class WorldObjects(Server):
    """The objects in the store. damaged: keys with changed bytes. deleted: when each was. copies: the objects on the
    disk of each machine, which has room for a few."""

    def __init__(self, time: Time) -> None:
        super().__init__(time)
        self.objects: dict[str, bytes] = {}
        self.seen_from: dict[str, float] = {}
        self.damaged, self.deleted = set[str](), dict[str, float]()
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
        if self._all.objects.pop(key, None) is not None:
            self._all.deleted[key] = self._effects.process.time.now
        self._answer("store delete", key)

    def all_keys(self) -> Iterator[str]:
        self._ask("store list", "")
        yield from list(self._all.objects)

    def stat(self, key: str) -> ObjectStat:
        return ObjectStat(len(self._all.objects[key]), 0.0)

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
