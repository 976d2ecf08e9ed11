"""Studies on one plan: whoever comes later trains only what nobody has trained, or is training."""

from __future__ import annotations

from stacks import Cluster, Service
from toys import curves, executed, grid, switch, trials


def test_a_study_that_comes_while_another_runs_shares_the_stage_under_way(stack: Service) -> None:
    first = stack.submit(trials("meet", ({}, 60), seconds=0.1))
    stack.wait_for_step(first, 3)
    branching = ({"lr": switch(0.1, 0.01, 40)}, 50)
    second = stack.submit(trials("meet", ({}, 45), branching, seconds=0.1))
    assert stack.wait(first)["state"] == stack.wait(second)["state"] == "completed"
    assert stack.client.study(second)["steps"]["executed"] == 10  # from 40 to 50: the rest was under way
    assert executed(stack, first, second) == 70
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
    events = [event["data"] for event in stack.client.events(first) if event["type"] == "CheckpointKept"]
    inside = sorted(event["step"] for event in events if event["intermediate"])
    branch = inside[len(inside) // 2] + 1  # how many there are, and where, depends on how fast they were stored
    second = stack.run(trials("later", ({"lr": switch(0.1, 0.01, branch)}, 40), seconds=0.02, eval_every=None))
    begun = max(step for step in inside if step <= branch)
    assert second["steps"] == {"requested": 40, "unique": 40, "executed": 40 - begun}


def test_two_studies_at_once_on_a_cluster_train_their_union_once(cluster: Cluster) -> None:
    first = cluster.submit(grid("union", seconds=0.01))
    second = cluster.submit(grid("union", seconds=0.01, tuner={"kind": "grid", "max_steps": 14}))
    assert cluster.wait(first)["state"] == cluster.wait(second)["state"] == "completed"
    longest = cluster.client.study(second)
    assert executed(cluster, first, second) == longest["steps"]["unique"]
