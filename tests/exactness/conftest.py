from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "workers"))

from alone import Alone

from app.events.database import Database


@pytest.fixture(autouse=True, scope="module")
def with_proofs() -> Iterator[None]:
    """Stacks that start here have trainers proven, as a user's have."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("STAGETREE_PROOFS", "1")
        yield


@pytest.fixture
def database(sqlite_url: str) -> Iterator[Database]:
    opened = Database(sqlite_url)
    yield opened
    opened.dispose()


@pytest.fixture(scope="session")
def alone() -> Iterator[Alone]:
    made = Alone()
    yield made
    made.close()
