from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from cluster import LANES, Cluster

from app.events.database import Database
from app.registry import TrainerSource
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import Warm


@pytest.fixture
def bucket_url(bucket: dict[str, str]) -> str:
    return f"s3://checkpoints/{uuid4().hex}"


@pytest.fixture
def cluster(database: Database, tmp_path: Path) -> Iterator[Cluster]:
    """One slot, on each kind of database."""
    made = Cluster(database, tmp_path)
    yield made
    made.close()


@pytest.fixture
def pair(database: Database, tmp_path: Path) -> Iterator[Cluster]:
    """Two slots, on each kind of database."""
    made = Cluster(database, tmp_path, slots=2)
    yield made
    made.close()


@pytest.fixture
def packing_cluster(sqlite_url: str, tmp_path: Path, warm: Warm) -> Iterator[Cluster]:
    """One slot that trains the models of tests/packing in processes of its own."""
    made = Cluster(Database(sqlite_url), tmp_path, start=lambda: TrainerProcess.start(warm), silence=60.0)
    for name in ("tiny", "moody", "delicate", "greedy", "unpackable", "turned"):
        made.sources[name] = TrainerSource(LANES, "1")
    yield made
    made.close()
