from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from house import House

from app.events.database import Database
from app.workers import memory, saver


@pytest.fixture
def house(database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    """One slot, on each kind of database; storage that fails is tried again without a pause."""
    for module in (memory, saver):
        monkeypatch.setattr(module, "RETRY_SECONDS", (0.0, 0.0))
    made = House(database, str(tmp_path / "checkpoints"))
    yield made
    made.close()
