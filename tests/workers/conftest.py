from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from cluster import Cluster

from app.events.database import Database


@pytest.fixture
def bucket_url(bucket: dict[str, str]) -> str:
    return f"s3://checkpoints/{uuid4().hex}"


@pytest.fixture
def cluster(database: Database, tmp_path: Path) -> Iterator[Cluster]:
    """One slot, on each kind of database."""
    made = Cluster(database, tmp_path)
    yield made
    made.close()
