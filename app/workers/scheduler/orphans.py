"""Runs on: any process that cleans up: `stagetree gc`.

Objects that no event names: what a worker wrote and was killed before it said so.

Apache Iceberg's `remove_orphan_files` tells them from what is about to be named by their age alone. Here only the chain
that wrote an object can name it, and no longer once it is over: its fence is refused. So an object is an orphan if the
log does not name it, and it is older than every chain of its plan that is under way. Age is asked for besides, since
stores, databases and machines have clocks of their own.
"""

from __future__ import annotations

import logging
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from app.domain import keeping
from app.events.plans import Plans, PlanUnusable
from app.events.records import Records
from app.object_store import ObjectStore, StoreUnavailable, Written

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
            named = keeping.named(plan)
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
