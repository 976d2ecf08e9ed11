"""The part of a store that belongs to one installation, and its orphans.

Keys of new objects begin with the name of the installation. Under that name lies an object that says which database
owns it. A copy of the database, such as a restored backup, has the same name, but knows none of the objects that the
other database writes later. So the owner is read before each write and each deletion.

Orphans are objects that no event names: a worker wrote them, and was killed before it could record them. Apache
Iceberg's `remove_orphan_files` recognizes them by their age alone. Here only the chain that wrote an object can name
it, and only while the chain's fence holds. So an object is an orphan if the log does not name it and it is older than
every live chain of its plan. A minimum age is required as well, because stores, databases and machines have different
clocks.
"""

from __future__ import annotations

import json
import logging
import re
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from app.domain import checkpoint_needs
from app.events import Installation, Plans, PlanUnusable, Records
from app.storage.object_store import LOG, ObjectStat, ObjectStore, StoreUnavailable, open_store

OWNER = "owner.json"
NAME = re.compile("[0-9a-f]{12}")
"""An installation's name."""

SURE_SECONDS = 60.0
"""How long the owner is cached."""


class NotOurs(StoreUnavailable):
    """The objects belong to another database; the message says to which one, and what to do."""


class OwnedStore:
    """An `ObjectStore` in which only one database writes and deletes under the name of its installation.

    Both raise `NotOurs`, and what `identify` raises. Objects of other installations are never deleted.
    """

    def __init__(
        self,
        store: ObjectStore,
        identify: Callable[[], Installation],
        *,
        place: str = "",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store, self._identify, self._place, self._clock = store, identify, place, clock
        self._known: Installation | None = None
        self._sure_until = float("-inf")

    @property
    def prefix(self) -> str:
        return f"{self._installation.name}/"

    def write(self, key: str, parts: Iterable[memoryview]) -> None:
        if not self._is_sure() and self._owner() is None:
            self.adopt()
        self._check_owner()
        self._store.write(key, parts)

    def cache(self, key: str, parts: Iterable[memoryview]) -> bool:
        return self._store.cache(key, parts)

    def delete(self, key: str) -> None:
        first = key.partition("/")[0]
        if NAME.fullmatch(first) and first != self._installation.name:
            return
        self._check_owner()
        self._store.delete(key)

    def read(self, key: str) -> Iterator[bytes]:
        return self._store.read(key)

    def open(self, key: str) -> int | None:
        return self._store.open(key)

    def distrust(self, key: str) -> bool:
        return self._store.distrust(key)

    def all_keys(self) -> Iterator[str]:
        """The keys of this installation."""
        return (key for key in self._store.all_keys() if key.startswith(self.prefix) and key != self._owner_key)

    def stat(self, key: str) -> ObjectStat:
        return self._store.stat(key)

    def adopt(self) -> None:
        """Take the objects over from another database."""
        database = json.dumps({"database": self._installation.database}).encode()
        self._store.write(self._owner_key, [memoryview(database)])
        self._sure_until = float("-inf")

    @property
    def _installation(self) -> Installation:
        if self._known is None:
            self._known = self._identify()
        return self._known

    @property
    def _owner_key(self) -> str:
        return f"{self.prefix}{OWNER}"

    def _check_owner(self) -> None:
        if self._is_sure():
            return
        ours, owner = self._installation.database, self._owner()
        if owner not in (None, ours):
            raise NotOurs(
                f"the checkpoints{self._place} belong to the database {owner}, and this one, {ours}, is a copy of it: "
                "`stagetree gc --adopt` takes them over where the other is gone, and `stagetree gc --separate` begins "
                "with some of its own where both stay in use"
            )
        self._sure_until = self._clock() + SURE_SECONDS

    def _is_sure(self) -> bool:
        return self._installation.database is None or self._clock() < self._sure_until

    def _owner(self) -> str | None:
        """None if no database has written yet."""
        try:
            owner = json.loads(b"".join(self._store.read(self._owner_key)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return str(owner["database"])


def open_owned(records: Records, root: str) -> OwnedStore:
    """The store of an installation. root: as in `open_store`.

    A folder beside its own log is copied and moved together with it, so it needs no owner.
    """
    is_beside_log = "://" not in root and (Path(root).parent / LOG).is_file()

    def identify() -> Installation:
        with records.read() as rows:
            installation = rows.installation()
        return Installation(installation.name, None) if is_beside_log else installation

    return OwnedStore(open_store(root), identify, place=f" in {root}")


def is_paused(records: Records) -> bool:
    """Whether deletion is paused, because a backup is being made."""
    with records.read() as rows:
        return (rows.installation().paused_until or 0.0) > rows.now()


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orphan:
    """size: in bytes."""

    key: str
    size: int


def find_orphans(records: Records, plans: Plans, store: ObjectStore, age: float) -> Iterator[Orphan]:
    """The orphans that are more than `age` seconds old. Objects of plans that are not in this log are ignored.

    Raises `StoreUnavailable`, `DatabaseUnavailable`.
    """
    listed = _list_by_plan(store)  # before the log is read, so that later objects are ignored
    for stream in sorted(listed.keys() & records.log.versions().keys()):
        before = _oldest_under_way(records, stream) - age  # before the plan: a finished chain has recorded all
        for key in _unreferenced(plans, stream, listed[stream]):
            written = _stat(store, key)
            if written is not None and written.at < before:
                yield Orphan(key, written.size)


def _list_by_plan(store: ObjectStore) -> Mapping[str, Sequence[str]]:
    listed = defaultdict[str, list[str]](list)
    try:
        for key in store.all_keys():
            listed[key.removeprefix(store.prefix).partition("/")[0]].append(key)
    except Exception as error:  # of the store's client library
        raise StoreUnavailable(f"the store cannot be listed: {type(error).__name__}: {error}") from error
    return listed


def _oldest_under_way(records: Records, stream: str) -> float:
    """When the oldest live chain of a plan was assigned; now if there is none."""
    with records.read() as rows:
        return min([rows.now(), *(row.dispatched_at for row in rows.chains.live(stream))])


def _unreferenced(plans: Plans, stream: str, keys: Sequence[str]) -> list[str]:
    try:
        with plans.holding(stream) as plan:
            named = checkpoint_needs.recorded_keys(plan)
    except PlanUnusable as problem:  # it may name any of them
        logger.info("%s", problem)
        return []
    return [key for key in keys if key not in named]


def _stat(store: ObjectStore, key: str) -> ObjectStat | None:
    """None if it was deleted since it was listed."""
    try:
        return store.stat(key)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise StoreUnavailable(f"{key} cannot be looked at: {type(error).__name__}: {error}") from error
