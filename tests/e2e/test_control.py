"""Pause, resume and cancel: running work stops soon, finished work is kept, and nothing is trained twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stacks import Service, wait_for
from toys import curves, grid, switch, trained_steps, trials

from stagetree.client import Conflict, NotFound

ENDLESS = 20_000
"""Steps that take ten minutes; no test waits that long."""


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Path]:
    """While this file exists, the studies of `slowly` take seconds to continue."""
    file = tmp_path / "slow"
    file.touch()
    yield file
    file.unlink(missing_ok=True)


def slowly(study: dict[str, Any], slow: Path) -> dict[str, Any]:
    """The study, with steps that take a fifth of a second while that file is there."""
    return study | {"trainer_args": {**study["trainer_args"], "seconds": 0.2, "slow_while": str(slow)}}


def test_a_paused_study_resumes_at_its_last_step(stack: Service, slow: Path) -> None:
    study = stack.submit(slowly(grid("pause"), slow))
    stack.wait_for_step(study, 3)
    assert stack.client.pause(study)["state"] == "paused"
    idle(stack, study)
    steps = trained_steps(stack, study)
    assert 0 < steps < 56
    time.sleep(0.3)
    assert trained_steps(stack, study) == steps
    slow.unlink()
    assert stack.client.resume(study)["state"] == "running"
    assert stack.wait(study)["steps"]["executed"] == 56
    undisturbed = stack.run(grid("pause-not"))["study"]
    assert curves(stack, study) == curves(stack, undisturbed)


def test_pausing_one_study_keeps_shared_work_for_the_other(stack: Service, slow: Path) -> None:
    shared = slowly(trials("pause-one", ({}, 30)), slow)
    first = stack.submit(shared)
    stack.wait_for_step(first, 2)
    second = stack.submit(shared)
    wait_for("the second study's trial", lambda: list(stack.client.trials(second)))
    stack.client.pause(first)
    slow.unlink()
    assert stack.wait(second)["state"] == "completed"
    assert trained_steps(stack, first, second) == 30
    stack.client.resume(first)
    assert stack.wait(first)["trials"][0]["state"] == "completed"
    assert trained_steps(stack, first, second) == 30


def test_a_cancelled_study_stops_soon_and_keeps_its_results(stack: Service) -> None:
    study = stack.submit(trials("cancel", ({}, 5), ({}, ENDLESS), seconds=0.03))
    stack.wait_for_step(study, 8)
    stack.client.cancel(study)
    idle(stack, study)
    found = stack.client.study(study)
    assert (found["state"], found["best"]["trial"]) == ("cancelled", 0)
    assert [trial["state"] for trial in found["trials"]] == ["completed", "cancelled"]
    assert stack.client.cancel(study)["state"] == "cancelled"  # twice does no harm
    with pytest.raises(Conflict):
        stack.client.resume(study)
    kept = [fact["step"] for fact in stack.facts(study, "CheckpointKept")]
    again = stack.run(trials("cancel", ({}, max(kept) + 2), seconds=0.0))
    assert again["state"] == "completed"


def test_steps_of_a_cancelled_study_serve_the_next(stack: Service) -> None:
    first = stack.submit(trials("heir", ({}, ENDLESS), seconds=0.03))
    stack.wait_for_step(first, 8)
    stack.client.cancel(first)
    idle(stack, first)
    done = trained_steps(stack, first)
    second = stack.run(trials("heir", ({}, done + 5), seconds=0.03))
    assert second["steps"]["executed"] == 5


def test_a_cancelled_trial_stops_and_its_siblings_continue(stack: Service) -> None:
    long = ({"lr": switch(0.1, 0.3, 4)}, ENDLESS)
    study = stack.submit(trials("cancel-trial", ({}, 12), long, seconds=0.03))
    stack.wait_for_step(study, 7)
    stack.client.cancel_trial(study, 1)
    stack.client.cancel_trial(study, 1)  # twice does no harm
    found = stack.wait(study)
    assert [trial["state"] for trial in found["trials"]] == ["completed", "cancelled"]
    with pytest.raises(Conflict):
        stack.client.cancel_trial(study, 0)
    with pytest.raises(NotFound):
        stack.client.cancel_trial(study, 7)


def test_a_trial_that_is_added_while_the_study_runs(stack: Service) -> None:
    study = stack.submit(trials("add", ({}, 40), seconds=0.1))  # it is heard of seconds before they part
    stack.wait_for_step(study, 2)
    stack.client.add_trial(study, {"lr": switch(0.1, 0.3, 38)}, 43)
    found = stack.wait(study)
    assert [trial["state"] for trial in found["trials"]] == ["completed", "completed"]
    assert found["steps"] == {"requested": 83, "unique": 45, "executed": 45}


def idle(stack: Service, study: str) -> None:
    """Until no slot does anything for the study."""
    wait_for(f"the end of all stages of {study}", lambda: not stack.running(study))
