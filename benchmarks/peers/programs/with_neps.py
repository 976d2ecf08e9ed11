"""The tasks with NePS: two processes on one folder, its grid search, and its ASHA, which promotes from checkpoints."""

from __future__ import annotations

import logging
import random
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import neps
import numpy
import torch

from benchmarks.peers.model import Model
from benchmarks.peers.tasks import ETA, LEAST_STEPS, MOST_STEPS, SLOTS, TARGET, TASKS, Task

RUNGS = 4


class Drawn(neps.PipelineSpace):
    lr = neps.Float(0.0003, 1.0, log=True)
    momentum = neps.Float(0.0, 0.98)
    weight_decay = neps.Float(1e-5, 1e-2, log=True)
    steps = neps.IntegerFidelity(LEAST_STEPS, MOST_STEPS)


def space(task: Task) -> neps.PipelineSpace:
    if not task.choices:
        return Drawn()
    # By their places: a worker that comes second finds a space of strings unlike its own.
    choices = {name: neps.Categorical(tuple(range(len(values)))) for name, values in task.choices.items()}
    return type("Grid", (neps.PipelineSpace,), choices)()


def train(
    task: Task, folder: Path, pipeline_directory: Path, previous_pipeline_directory: Path | None = None, **config: Any
) -> float:
    model, loss = Model(), float("inf")
    config |= {name: values[config[name]] for name, values in task.choices.items()}
    steps = config.pop("steps", None) or task.steps(config)
    if previous_pipeline_directory is not None:  # promoted: its state is there
        model.load_state_dict(torch.load(previous_pipeline_directory / "state.pt"))
    while model.step < steps:
        model.train(task.values(config, model.step))
        if model.step % task.every == 0:
            loss = model.evaluate()
            if task.name == "asha" and loss <= TARGET:
                (folder / "reached").touch()
    torch.save(model.state_dict(), pipeline_directory / "state.pt")
    return loss


def work(task: Task, folder: Path, seed: int) -> None:
    """One of the processes."""
    random.seed(seed), numpy.random.seed(seed), torch.manual_seed(seed)
    trainings = len(task.configurations(seed))
    if task.name == "asha":
        trainings *= RUNGS  # a promotion is a training, too, and all but two of a rung are promoted in the end
    neps.run(
        partial(train, task, folder),
        space(task),
        root_directory=folder / "neps",
        total_evaluations_to_spend=trainings,
        optimizer=("asha", {"eta": ETA}) if task.name == "asha" else "grid_search",
    )


def main() -> None:
    name, folder, seed, *role = sys.argv[1:]
    logging.getLogger().setLevel(logging.WARNING)
    if role:
        work(TASKS[name], Path(folder), int(seed))
        return
    command = [sys.executable, __file__, *sys.argv[1:], "work"]
    processes = [subprocess.Popen(command) for _ in range(SLOTS)]
    reached = Path(folder, "reached")
    while any(process.poll() is None for process in processes) and not reached.exists():
        time.sleep(0.1)
    if reached.exists():  # NePS has no target to stop at
        for process in processes:
            process.terminate()
    codes = [process.wait() for process in processes]
    if any(codes) and not reached.exists():
        raise SystemExit("a worker of NePS failed")


if __name__ == "__main__":
    main()
