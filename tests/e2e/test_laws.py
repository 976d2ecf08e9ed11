"""What must hold of every run without faults: nothing is trained twice, and sharing never changes a result."""

from __future__ import annotations

import pytest
from stacks import Cluster, Service
from toys import curves, grid, switch, trials

EXAMPLES = {
    "digits": {
        "trainer_args": {"width": 4},
        "metric": "val_accuracy",
        "space": {
            "lr": [0.1, {"family": "multistep", "init": 0.1, "milestones": [2], "gamma": 0.1}],
            "bs": [64, switch(64, 128, 3)],
            "momentum": 0.9,
            "weight_decay": 0.0005,
        },
        "tuner": {"kind": "grid", "max_steps": 4},
    },
    "charlm": {
        "trainer_args": {"layers": 1, "width": 16, "context": 16, "batches_per_step": 2},
        "metric": "val_loss",
        "mode": "min",
        "space": {
            "lr": [
                {"family": "wsd", "peak": 0.01, "warmup": 2, "stable_until": end, "decay": 6 - end, "shape": "sqrt"}
                for end in (3, 4)
            ],
            "bs": 32,
            "weight_decay": 0.1,
        },
        "tuner": {"kind": "grid", "max_steps": 6},
    },
    "mixes": {
        "trainer": "charlm",
        "trainer_args": {"layers": 1, "width": 16, "context": 16, "batches_per_step": 2, "streams": True},
        "metric": "val_loss",
        "mode": "min",
        "space": {
            "lr": {"family": "wsd", "peak": 0.01, "warmup": 1, "stable_until": 4, "decay": 2},
            "data": switch("prose", {"choice": [{"mix": {"prose": 1, "speech": weight}} for weight in (0, 1, 3)]}, 4),
            "bs": 32,
        },
        "tuner": {"kind": "grid", "max_steps": 6},
    },
    "script": {
        "trainer_args": {"width": 8, "block": 8},
        "metric": "val_loss",
        "mode": "min",
        "space": {
            "max_steps": [4, 6, 8],
            "lr": {"family": "wsd", "peak": 0.01, "warmup": 1, "decay": {"ratio": 0.25}},
        },
        "tuner": {"kind": "grid"},
    },
    "walk": {
        "metric": "where",
        "space": {"max_steps": [4, 6, 8], "lr": {"family": "wsd", "peak": 0.01, "warmup": 1, "decay": {"ratio": 0.25}}},
        "tuner": {"kind": "grid"},
    },
}


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


def test_a_ladder_is_the_list_of_its_trials(stack: Service) -> None:
    """Four models of 8 to 20 steps with a decay at the end of each, on one trunk; the list trains nothing more."""
    lr = {"family": "wsd", "peak": 0.1, "warmup": 2}
    ladder = stack.run(
        grid(
            "ladder",
            space={"max_steps": [8, 12, 16, 20], "lr": {**lr, "decay": 4}, "momentum": 0.5},
            tuner={"kind": "grid"},
        )
    )
    hp = [({"lr": {**lr, "stable_until": steps - 4, "decay": 4}, "momentum": 0.5}, steps) for steps in (8, 12, 16, 20)]
    listed = stack.run(trials("ladder", *hp))
    assert ladder["steps"] == {"requested": 56, "unique": 29, "executed": 29}
    assert listed["steps"] == {"requested": 56, "unique": 29, "executed": 0}
    assert curves(stack, ladder["study"]) == curves(stack, listed["study"])
    alone = stack.run(trials("ladder", *hp, merge=False))
    assert curves(stack, alone["study"]) == curves(stack, ladder["study"])


@pytest.mark.slow
@pytest.mark.parametrize("example", EXAMPLES)
def test_sharing_changes_no_bit_of_real_models_either(stack: Service, cluster: Cluster, example: str) -> None:
    spec = {"name": example, "trainer": example, "mode": "max", "eval_every": 2, **EXAMPLES[example]}
    alone, shared = stack.submit(spec | {"merge": False}), stack.submit(spec)
    through_s3 = cluster.submit(spec)
    assert stack.wait(shared)["steps"]["executed"] < stack.wait(alone)["steps"]["executed"]
    cluster.wait(through_s3)
    assert curves(stack, alone) == curves(stack, shared) == curves(cluster, through_s3)


def test_the_cluster_gives_what_the_embedded_stack_gives(stack: Service, cluster: Cluster) -> None:
    here, there = stack.submit(grid("anywhere")), cluster.submit(grid("anywhere"))
    assert stack.wait(here)["state"] == cluster.wait(there)["state"] == "completed"
    assert curves(stack, here) == curves(cluster, there)
