"""What must hold of every run without faults: nothing is trained twice, and sharing never changes a result."""

from __future__ import annotations

from typing import Any

from stacks import Cluster, Service
from studies import curves, grid

Json = dict[str, Any]


def test_each_different_step_is_trained_once(stack: Service) -> None:
    study = stack.run(grid("once"))
    assert study["state"] == "completed"
    assert study["steps"] == {"requested": 96, "unique": 56, "executed": 56}
    assert [trial["state"] for trial in study["trials"]] == ["completed"] * 8


def test_sharing_changes_no_bit_of_any_result(stack: Service) -> None:
    shared, alone = stack.submit(grid("bits")), stack.submit(grid("bits", merge=False))
    assert stack.wait(alone)["steps"] == {"requested": 96, "unique": 96, "executed": 96}
    stack.wait(shared)
    assert curves(stack, alone) == curves(stack, shared)


def test_the_cluster_gives_what_the_embedded_stack_gives(stack: Service, cluster: Cluster) -> None:
    here, there = stack.submit(grid("anywhere")), cluster.submit(grid("anywhere"))
    assert stack.wait(here)["state"] == cluster.wait(there)["state"] == "completed"
    assert curves(stack, here) == curves(cluster, there)
