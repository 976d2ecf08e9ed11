"""A study that comes later gets a slot of one that has them all, and nothing is lost by it: on real workers."""

from __future__ import annotations

import pytest
from stacks import Service, wait_for
from toys import trials


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
    events = [event for event in stack.client.events(large) if event["type"] == "ChainEnded"]
    assert [event["data"]["outcome"] for event in events] == ["stopped"]
    assert again["stages"][0]["start"] == events[0]["data"]["steps"] > 0, "it goes on where it was"
    assert stack.client.study(large)["state"] == "running"
    stack.client.cancel(large)


def _third_chain(stack: Service, study: str) -> dict | None:
    """What the large study was given after its first two chains."""
    chains = [event["data"] for event in stack.client.events(study) if event["type"] == "ChainAssigned"]
    return chains[2] if len(chains) > 2 else None
