"""An average of real trials has the bits of a plain mean, whatever is killed, and is trained on."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from stacks import Service, started, wait_for

from stagetree.study import Study

LRS = (0.3, 0.1, 0.03)


def weights(stack: Service, study: str, trial: int, step: int, folder: Path) -> dict[str, torch.Tensor]:
    return load_file(stack.client.checkpoint(study, folder / f"{trial}", trial=trial, step=step))


def plain(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    return {
        name: (sum(state[name].double() for state in states) / len(states)).to(first.dtype)
        for name, first in states[0].items()
    }


@pytest.mark.slow
def test_an_average_whose_process_is_killed(tmp_path: Path) -> None:
    slow = tmp_path / "slow"
    trials = [{"hp": {"lr": lr}, "steps": steps} for lr, steps in zip(LRS, (4, 6, 6), strict=True)]
    spec: dict[str, Any] = {"name": "averages", "trainer": "blended", "trainer_args": {"slow_while": str(slow)}}
    spec |= {"metric": "val_loss", "mode": "min", "keep_best": 3, "tuner": {"kind": "trials", "trials": trials}}
    with started(tmp_path / "stack") as stack:
        name = stack.run(spec)["study"]
        study = Study.open(name, url=stack.url)
        parts = [weights(stack, name, trial, steps, tmp_path) for trial, steps in enumerate((4, 6, 6))]
        slow.touch()
        made = study.soup([0, 1, 2])
        assert (made.new, made.again, made.trial.trial) == (0, 0, 3)
        pid = int(wait_for("the process that averages", lambda: slow.read_text()))
        slow.unlink()
        os.kill(pid, signal.SIGKILL)
        assert stack.wait(name)["state"] == "completed"
        soup = stack.client.trial(name, 3)
        assert soup.state == "completed" and [each.trial for each in soup.average_of][-1] == 0
        ordered = [parts[each.trial] for each in soup.average_of]
        mean = weights(stack, name, 3, 6, tmp_path)
        assert all(torch.equal(mean[each], expected) for each, expected in plain(ordered).items())
        longer = study.soup(best=2, steps=9)
        assert stack.wait(name)["state"] == "completed" and longer.new == 3
        assert [each["step"] for each in stack.client.trial(name, 4).curve] == [6, 9]
        assert stack.client.replay(name).identical
