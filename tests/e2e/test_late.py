"""Decays that come late on a trunk under way, real processes: the idle slot begins at the trunk's last checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
from stacks import Service, wait_for
from toys import trials

TRUNK = 7000
"""Steps: more than two minutes, so that nothing here waits for its end."""

PARTS = 46
"""Where a decay from step 45 on differs from the trunk: at its own first step it has the peak yet."""


def decay(stable_until: int) -> dict[str, Any]:
    """Warm-up, stable, and ten steps of decay."""
    return {"lr": {"family": "wsd", "peak": 0.1, "warmup": 5, "stable_until": stable_until, "decay": 10}}


def kept(stack: Service, study: str, most: int) -> list[int]:
    """The steps up to `most` at which a state is on record by now."""
    events = (event["data"] for event in stack.client.events(study) if event["type"] == "CheckpointKept")
    return [event["step"] for event in events if event["step"] <= most]


@pytest.mark.slow
def test_a_late_decay_costs_the_steps_from_the_last_checkpoint(stack: Service) -> None:
    trunk = stack.submit(trials("late", (decay(TRUNK), TRUNK + 10), seconds=0.02, eval_every=5))
    stack.wait_for_step(trunk, 60)
    last = max(wait_for("a state of the trunk", lambda: kept(stack, trunk, PARTS)))
    late = stack.submit(trials("late", (decay(45), 55), seconds=0.02, eval_every=None))
    found = stack.wait(late)
    assert stack.client.study(trunk, trials=False)["state"] == "running", "the other slot did it meanwhile"
    stack.client.cancel(trunk)
    chains = [event["data"] for event in stack.client.events(late) if event["type"] == "ChainAssigned"]
    begun = min(chain["stages"][0]["start"] for chain in chains if chain["stages"][0]["study"] == late)
    assert found["state"] == "completed"
    assert last <= begun <= PARTS and found["steps"]["executed"] == 55 - begun
