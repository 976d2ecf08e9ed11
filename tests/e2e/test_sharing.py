"""Studies on one plan: a later study trains only steps that no other study has trained or is training."""

from __future__ import annotations

from typing import Any

import pytest
from stacks import Cluster, Service, wait_for
from toys import curves, grid, switch, trained_steps, trials


def test_a_study_that_comes_while_another_runs_shares_the_stage_under_way(stack: Service) -> None:
    first = stack.submit(trials("meet", ({}, 60), seconds=0.1))
    stack.wait_for_step(first, 3)
    branching = ({"lr": switch(0.1, 0.01, 40)}, 50)
    second = stack.submit(trials("meet", ({}, 45), branching, seconds=0.1))
    assert stack.wait(first)["state"] == stack.wait(second)["state"] == "completed"
    assert stack.client.study(second)["steps"]["executed"] == 10  # from 40 to 50: the rest was under way
    assert trained_steps(stack, first, second) == 70
    alone = stack.submit(trials("meet", ({}, 45), branching, seconds=0.0, merge=False, eval_every=None))
    stack.wait(alone)
    values = [[trial["value"] for trial in stack.client.trials(study)] for study in (second, alone)]
    assert values[0] == values[1]


def test_a_study_that_comes_later_finds_everything(stack: Service) -> None:
    first = stack.run(grid("again"))["study"]
    second = stack.run(grid("again"))
    assert second["steps"] == {"requested": 96, "unique": 56, "executed": 0}
    assert curves(stack, first) == curves(stack, second["study"])


def test_a_study_may_branch_inside_a_stage_that_is_long_over(stack: Service) -> None:
    first = stack.run(trials("later", ({}, 40), seconds=0.02, eval_every=None))["study"]
    inside = sorted(fact["step"] for fact in stack.facts(first, "CheckpointKept") if fact["intermediate"])
    branch = inside[len(inside) // 2] + 1  # how many there are, and where, depends on how fast they were stored
    second = stack.run(trials("later", ({"lr": switch(0.1, 0.01, branch)}, 40), seconds=0.02, eval_every=None))
    begun = max(step for step in inside if step <= branch)
    assert second["steps"] == {"requested": 40, "unique": 40, "executed": 40 - begun}


def test_two_studies_at_once_on_a_cluster_train_their_union_once(cluster: Cluster) -> None:
    first = cluster.submit(grid("union", seconds=0.01))
    second = cluster.submit(grid("union", seconds=0.01, tuner={"kind": "grid", "max_steps": 14}))
    assert cluster.wait(first)["state"] == cluster.wait(second)["state"] == "completed"
    longest = cluster.client.study(second)
    assert trained_steps(cluster, first, second) == longest["steps"]["unique"]


# Decays that come late on a trunk under way, real processes: the idle slot begins at the trunk's last checkpoint.


TRUNK = 7000
"""Steps: more than two minutes, so that nothing here waits for its end."""

PARTS = 46
"""Where a decay from step 45 on differs from the trunk: at its own first step it has the peak yet."""


def decay(stable_until: int) -> dict[str, Any]:
    """Warm-up, stable, and ten steps of decay."""
    return {"lr": {"family": "wsd", "peak": 0.1, "warmup": 5, "stable_until": stable_until, "decay": 10}}


def kept_steps(stack: Service, study: str, most: int) -> list[int]:
    """The steps up to `most` at which a state is on record by now."""
    return [fact["step"] for fact in stack.facts(study, "CheckpointKept") if fact["step"] <= most]


@pytest.mark.slow
def test_a_late_decay_costs_the_steps_from_the_last_checkpoint(stack: Service) -> None:
    trunk = stack.submit(trials("late", (decay(TRUNK), TRUNK + 10), seconds=0.02, eval_every=5))
    stack.wait_for_step(trunk, 60)
    last = max(wait_for("a state of the trunk", lambda: kept_steps(stack, trunk, PARTS)))
    late = stack.submit(trials("late", (decay(45), 55), seconds=0.02, eval_every=None))
    found = stack.wait(late)
    assert stack.client.study(trunk, trials=False)["state"] == "running", "the other slot did it meanwhile"
    stack.client.cancel(trunk)
    chains = stack.facts(late, "ChainAssigned")
    begun = min(chain["stages"][0]["start"] for chain in chains if chain["stages"][0]["study"] == late)
    assert found["state"] == "completed"
    assert last <= begun <= PARTS and found["steps"]["executed"] == 55 - begun


# A study that comes later gets a slot of one that has them all, and nothing is lost by it: on real workers.


@pytest.mark.slow
def test_a_small_study_does_not_wait_for_the_long_chains_of_another(stack: Service) -> None:
    long = [({"momentum": 0.1 * number}, 7000) for number in range(2)]
    large = stack.submit(trials("room-large", *long, seconds=0.02))
    wait_for(
        "both slots to be inside the large study", lambda: [r["step"] > 0 for r in stack.running(large)] == [True] * 2
    )
    small = stack.wait(stack.submit(trials("room-small", ({}, 20), seconds=0.02)))
    assert small["state"] == "completed"
    assert small["steps"]["executed"] == small["steps"]["unique"] == 20
    again = wait_for("the other slot to go back", lambda: _third_chain(stack, large))
    (ended,) = stack.facts(large, "ChainEnded")
    assert ended["outcome"] == "stopped"
    assert again["stages"][0]["start"] == ended["steps"] > 0, "it resumes at its last step"
    assert stack.client.study(large)["state"] == "running"
    stack.client.cancel(large)


def _third_chain(stack: Service, study: str) -> dict | None:
    """What the large study was given after its first two chains."""
    chains = stack.facts(study, "ChainAssigned")
    return chains[2] if len(chains) > 2 else None
