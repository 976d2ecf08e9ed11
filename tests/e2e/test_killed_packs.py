"""A pack on real processes, of which some lanes are done when its slot is killed."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import BRANCH, DONE, LANES, LONG, SHORT, busy_slots, check, check_log, siblings
from stacks import Cluster, Json, Service, wait_for
from toys import curves, switch, trials


@pytest.fixture
def one_slot(cluster: Cluster, whole: Cluster) -> Iterator[Cluster]:
    """The cluster with one slot, which so has all lanes of a pack."""
    cluster.kill("gpu1", signal.SIGTERM)
    yield cluster
    cluster.start("gpu1")


def wasted_steps(cluster: Cluster, study: str) -> int:
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
        chains = one_slot.facts(study, "ChainEnded")
        inside = [run for run in one_slot.running(study) if SHORT < run["step"] < LONG]
        return (len(chains), len(inside)) == (1 + DONE, LANES - DONE)  # the beginning that they share is one

    wait_for("three lanes of eight to be done", are_inside)
    one_slot.kill("gpu0")  # and its child with it
    one_slot.start("gpu0")
    check(one_slot, study, expected)
    steps = one_slot.client.study(study)["steps"]
    assert steps["unique"] == BRANCH + DONE * (SHORT - BRANCH) + (LANES - DONE) * (LONG - BRANCH)
    assert steps["executed"] == steps["unique"] + wasted_steps(one_slot, study)
    outcomes = [event["data"].get("outcome") for event in one_slot.client.events(study)]
    assert outcomes.count("lost") == LANES - DONE
    assert one_slot.client.replay(study)["identical"]


def packed_trials(tag: str, *numbers: int, seconds: float = 0.0) -> Json:
    """Some of three trials in packs of four: two are one until step 5, and then each has a lane beside the third."""
    rates = [switch(0.1, 0.2, LONG), switch(0.3, 0.02, SHORT), switch(0.3, 0.5, SHORT)]
    listed = (({"lr": rates[number], "bs": 4}, LONG) for number in numbers)
    return trials(tag, *listed, trainer="packable", metric="val_loss", mode="min", packing=4, seconds=seconds)


@pytest.mark.slow
def test_lanes_that_siblings_have_filled_are_killed_and_end_as_each_in_packs_of_its_own(
    one_slot: Cluster, stack: Service
) -> None:
    alone = [curves(stack, stack.run(packed_trials(f"only-{number}", number))["study"])[0] for number in range(3)]
    expected = [{**each, "trial": number} for number, each in enumerate(alone)]
    study = one_slot.submit(packed_trials("filled", 0, 1, 2, seconds=0.1))
    wait_for("three lanes after step 5", lambda: sum(run["step"] > SHORT for run in one_slot.running(study)) == 3)
    assert len(busy_slots(one_slot, study)) == 3
    one_slot.kill("gpu0")
    one_slot.start("gpu0")
    check(one_slot, study, expected)
    steps = one_slot.client.study(study)["steps"]
    assert steps["unique"] == LONG + SHORT + 2 * (LONG - SHORT)
    assert steps["executed"] == steps["unique"] + wasted_steps(one_slot, study)


# A slot that ends while a script of its own processes is inside of a grant of many steps.


KEPT, AT, END = 200, 450, 700
"""Steps: whose state is kept; after which the slot ends, some hundred of which are one grant by then; and the last."""


def study(folder: Path, name: str) -> Json:
    hp = {"lr": {"family": "linear", "init": 0.1, "slope": -0.0001}}
    spec = trials("granted", (hp, END), trainer="granted", eval_every=100, keep_at=[KEPT])
    return spec | {"trainer_args": {"journal": str(folder / name), "seconds": 0.004}}


def steps_by_process(journal: Path) -> dict[int, list[int]]:
    """The steps that each process has begun, in their order."""
    steps = dict[int, list[int]]()
    for line in journal.read_text().splitlines() if journal.exists() else ():
        pid, step = map(int, line.split())
        steps.setdefault(pid, []).append(step)
    return steps


def kept_steps(cluster: Cluster, study: str) -> set[int]:
    """The steps whose states are on record."""
    return {fact["step"] for fact in cluster.facts(study, "CheckpointKept")}


def logged_steps(cluster: Cluster, study: str) -> list[int]:
    return [point["step"] for point in cluster.client.logged(study, 0)]


@pytest.mark.slow
@pytest.mark.usefixtures("whole")
def test_a_slot_that_ends_within_a_grant_loses_no_more_than_it_must(cluster: Cluster, tmp_path: Path) -> None:
    calm = cluster.run(study(tmp_path, "calm"))
    assert calm["state"] == "completed"
    for number in (signal.SIGTERM, signal.SIGKILL):
        journal = tmp_path / number.name
        name = cluster.submit(study(tmp_path, number.name))
        wait_for("steps", lambda journal=journal: any(AT in steps for steps in steps_by_process(journal).values()))
        assert KEPT in (before := kept_steps(cluster, name))
        [chain] = cluster.running(name)
        cluster.kill(chain["slot"], number)
        cluster.start(chain["slot"])
        assert cluster.wait(name)["state"] == "completed"
        assert curves(cluster, name) == curves(cluster, calm["study"])
        first, second = steps_by_process(journal).values()
        assert first == [*range(first[-1] + 1)] and AT <= first[-1] < END
        assert second == [*range(second[0], END)]
        check_log(cluster, name)
        if number is signal.SIGTERM:
            assert second[0] == first[-1] + 1, "it stopped between two steps, and its state was kept"
            assert cluster.client.study(name)["steps"]["executed"] == END
        else:
            assert second[0] == max(before), "all since the last state is trained again"
        wait_for("the last row of the log", lambda name=name: END in logged_steps(cluster, name))
        assert logged_steps(cluster, name) == sorted({*logged_steps(cluster, name)})
