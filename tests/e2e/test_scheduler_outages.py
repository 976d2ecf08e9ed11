"""What is away from the scheduler fails no study, and costs nobody his lease."""

from __future__ import annotations

import time
from typing import Any

import pytest
from faults import begin, check
from stacks import Cluster

Json = dict[str, Any]
pytestmark = pytest.mark.usefixtures("whole")

LONG = 9.0
"""More than two of the cluster's leases."""


@pytest.mark.parametrize("kind", ["refuse", "freeze"])
def test_a_database_that_is_away_for_long_costs_no_step(cluster: Cluster, expected: list[Json], kind: str) -> None:
    study, _ = begin(cluster, f"long-{kind}")
    with cluster.fault("database", kind):
        time.sleep(LONG)
    check(cluster, study, expected)
    steps = cluster.client.study(study)["steps"]
    assert steps["executed"] == steps["unique"]


def test_resets_of_the_schedulers_connections_fail_no_study(cluster: Cluster, expected: list[Json]) -> None:
    study, _ = begin(cluster, "resets")
    for _ in range(24):
        cluster.networks["scheduler"]["database"].reset()
        cluster.nudge()
        time.sleep(0.15)
    check(cluster, study, expected)
