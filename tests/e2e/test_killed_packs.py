"""A pack on real processes, of which some lanes are done when its slot is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from typing import Any

import pytest
from faults import BRANCH, DONE, LANES, LONG, SHORT, at_work, check, siblings
from stacks import Cluster, Service, wait_for
from toys import curves, switch, trials

Json = dict[str, Any]


@pytest.fixture
def one_slot(cluster: Cluster, whole: Cluster) -> Iterator[Cluster]:
    """The cluster with one slot, which so has all lanes of a pack."""
    cluster.kill("gpu1", signal.SIGTERM)
    yield cluster
    cluster.start("gpu1")


def wasted(cluster: Cluster, study: str) -> int:
    """Steps of chains that were lost or interrupted, after the last state of each that had been kept."""
    begun: dict[str, Json] = {}
    kept: dict[str, int] = {}
    steps = 0
    for event in cluster.client.events(study):
        data = event["data"]
        if event["type"] == "ChainAssigned":
            begun[data["chain"]] = data["stages"][0]
        elif event["type"] == "CheckpointKept":
            kept[data["node"]] = data["step"]
        elif event["type"] == "ChainEnded" and data["outcome"] in ("lost", "interrupted"):
            stage = begun[data["chain"]]
            steps += stage["start"] + data["steps"] - max(stage["start"], kept.get(stage["node"], 0))
    return steps


@pytest.mark.slow
def test_a_kill_with_three_of_eight_lanes_done_loses_nothing(one_slot: Cluster, stack: Service) -> None:
    expected = curves(stack, stack.run(siblings("undisturbed"))["study"])
    study = one_slot.submit(siblings("killed", seconds=0.1))

    def are_inside() -> bool:
        chains = [event["data"] for event in one_slot.client.events(study) if event["type"] == "ChainEnded"]
        inside = [run for run in one_slot.running(study) if SHORT < run["step"] < LONG]
        return (len(chains), len(inside)) == (1 + DONE, LANES - DONE)  # the beginning that they share is one

    wait_for("three lanes of eight to be done", are_inside)
    one_slot.kill("gpu0")  # and its child with it
    one_slot.start("gpu0")
    check(one_slot, study, expected)
    steps = one_slot.client.study(study)["steps"]
    assert steps["unique"] == BRANCH + DONE * (SHORT - BRANCH) + (LANES - DONE) * (LONG - BRANCH)
    assert steps["executed"] == steps["unique"] + wasted(one_slot, study)
    outcomes = [event["data"].get("outcome") for event in one_slot.client.events(study)]
    assert outcomes.count("lost") == LANES - DONE
    assert one_slot.client.replay(study)["identical"]


def filled(tag: str, *numbers: int, seconds: float = 0.0) -> Json:
    """Some of three trials in packs of four: two are one until step 5, and then each has a lane beside the third."""
    rates = [switch(0.1, 0.2, LONG), switch(0.3, 0.02, SHORT), switch(0.3, 0.5, SHORT)]
    listed = (({"lr": rates[number], "bs": 4}, LONG) for number in numbers)
    return trials(tag, *listed, trainer="packable", metric="val_loss", mode="min", packing=4, seconds=seconds)


@pytest.mark.slow
def test_lanes_that_siblings_have_filled_are_killed_and_end_as_each_in_packs_of_its_own(
    one_slot: Cluster, stack: Service
) -> None:
    alone = [curves(stack, stack.run(filled(f"only-{number}", number))["study"])[0] for number in range(3)]
    expected = [{**each, "trial": number} for number, each in enumerate(alone)]
    study = one_slot.submit(filled("filled", 0, 1, 2, seconds=0.1))
    wait_for("three lanes after step 5", lambda: sum(run["step"] > SHORT for run in one_slot.running(study)) == 3)
    assert len(at_work(one_slot, study)) == 3
    one_slot.kill("gpu0")
    one_slot.start("gpu0")
    check(one_slot, study, expected)
    steps = one_slot.client.study(study)["steps"]
    assert steps["unique"] == LONG + SHORT + 2 * (LONG - SHORT)
    assert steps["executed"] == steps["unique"] + wasted(one_slot, study)
