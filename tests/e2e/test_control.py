"""Pause, resume and cancel: running work stops soon, finished work is kept, and nothing is trained twice."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from stacks import Service, wait_for
from toys import curves, grid, trained_steps, trials

from stagetree.client import Conflict

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


def idle(stack: Service, study: str) -> None:
    """Until no slot does anything for the study."""
    wait_for(f"the end of all stages of {study}", lambda: not stack.running(study))
