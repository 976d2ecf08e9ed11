"""Two slots and a chain, on each kind of database. The test sets the time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from assignments import WORK
from transactions import TTL, Clock, Transactions

from app.events.database import Database
from app.events.rows import Lease


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def clocked_database(database_url: str, clock: Clock) -> Iterator[Database]:
    database = Database(database_url, clock=clock)
    yield database
    database.dispose()


@pytest.fixture
def rows(clocked_database: Database) -> Transactions:
    """Rows with slots gpu0, anna's, and gpu1, berta's."""
    each = Transactions(clocked_database)
    each.slots.take("gpu0", "anna", instead_of=None, device="cuda:0", host="host", pid=1)
    each.slots.take("gpu1", "berta", instead_of=None, device="cuda:1", host="host", pid=2)
    return each


@pytest.fixture
def lease(rows: Transactions) -> Lease:
    """Chain c is running on gpu0."""
    rows.chains.assign("c", "plan", "gpu0", WORK, TTL)
    return rows.chains.claim("c", "worker", TTL)
