"""The store of one installation: its objects are apart from the objects of others, and no other database deletes them.

Keys of new objects begin with the name of the installation. Under that name lies an object that says which database
it is in: a copy of the database, such as a backup that was restored, has the same name, and knows of none of the
objects that the other one writes from then on. Before each write and each deletion it is read.

Orphans are objects that no event names: a worker wrote them, and was killed before it said so. Apache Iceberg's
`remove_orphan_files` tells them from what is about to be named by their age alone. Here only the chain that wrote an
object can name it, and no longer once it is over: its fence is refused. So an object is an orphan if the log does not
name it, and it is older than every chain of its plan that is under way. Age is asked for besides, since stores,
databases and machines have clocks of their own.
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
from app.storage.object_store import LOG, ObjectStore, StoreUnavailable, Written, open_store

OWNER = "owner.json"
NAME = re.compile("[0-9a-f]{12}")
"""Of an installation."""

SURE_SECONDS = 60.0
"""How long the owner is taken for what it was."""


class NotOurs(StoreUnavailable):
    """The objects belong to another database; the message says to which, and what can be done."""


class OwnedStore:
    """An `ObjectStore` in which only one database writes and deletes under the name of its installation.

    Both raise `NotOurs`, and what `identify` raises. What has the name of another installation is never deleted:
    that one does it.
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
        """What keys of new objects begin with."""
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

    def written(self, key: str) -> Written:
        return self._store.written(key)

    def adopt(self) -> None:
        """Take over from the database that had the objects so far."""
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
        """None where no database has written anything yet."""
        try:
            owner = json.loads(b"".join(self._store.read(self._owner_key)))
        except (FileNotFoundError, NotADirectoryError):
            return None
        return str(owner["database"])


def open_owned(records: Records, root: str) -> OwnedStore:
    """The store of the installation that these records are of. root: as in `open_store`.

    A folder beside its own log is copied and moved together with it, and so belongs to no other.
    """
    is_beside_log = "://" not in root and (Path(root).parent / LOG).is_file()

    def identify() -> Installation:
        with records.read() as rows:
            installation = rows.installation()
        return Installation(installation.name, None) if is_beside_log else installation

    return OwnedStore(open_store(root), identify, place=f" in {root}")


def is_paused(records: Records) -> bool:
    """Whether nothing may be deleted now, since a backup is made that names it."""
    with records.read() as rows:
        return (rows.installation().paused_until or 0.0) > rows.now()


logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Orphan:
    """size: in bytes."""

    key: str
    size: int


def find_orphans(records: Records, plans: Plans, store: ObjectStore, age: float) -> Iterator[Orphan]:
    """Those that were written more than `age` seconds ago. What belongs to no plan of this log is left alone.

    Raises `StoreUnavailable`, `DatabaseUnavailable`.
    """
    listed = _listed(store)  # before the log is read: what is written from here on is not looked at
    for stream in sorted(listed.keys() & records.log.versions().keys()):
        before = _oldest_under_way(records, stream) - age  # before the plan: a chain that is over has said all
        for key in _unnamed(plans, stream, listed[stream]):
            written = _written(store, key)
            if written is not None and written.at < before:
                yield Orphan(key, written.size)


def _listed(store: ObjectStore) -> Mapping[str, Sequence[str]]:
    """The keys in the store, by plan."""
    listed = defaultdict[str, list[str]](list)
    try:
        for key in store.all_keys():
            listed[key.removeprefix(store.prefix).partition("/")[0]].append(key)
    except Exception as error:  # whatever the client of the store raises
        raise StoreUnavailable(f"the store cannot be listed: {type(error).__name__}: {error}") from error
    return listed


def _oldest_under_way(records: Records, stream: str) -> float:
    """When the oldest chain of a plan was given to its slot, of those that are not over; now, if all are."""
    with records.read() as rows:
        return min([rows.now(), *(row.dispatched_at for row in rows.chains.live(stream))])


def _unnamed(plans: Plans, stream: str, keys: Sequence[str]) -> list[str]:
    try:
        with plans.holding(stream) as plan:
            named = checkpoint_needs.recorded_keys(plan)
    except PlanUnusable as problem:  # whatever it names stays
        logger.info("%s", problem)
        return []
    return [key for key in keys if key not in named]


def _written(store: ObjectStore, key: str) -> Written | None:
    """None if it has gone since it was listed."""
    try:
        return store.written(key)
    except FileNotFoundError:
        return None
    except Exception as error:
        raise StoreUnavailable(f"{key} cannot be looked at: {type(error).__name__}: {error}") from error
