"""The tasks with Syne Tune: its local backend, which starts a process for each trial, and its ASHA, which stops."""

from __future__ import annotations

import json
import logging
import sys

from syne_tune import Reporter, StoppingCriterion, Tuner
from syne_tune.backend import LocalBackend
from syne_tune.config_space import choice, loguniform, uniform
from syne_tune.optimizer.baselines import ASHA, RandomSearch

from benchmarks.peers.model import Model
from benchmarks.peers.tasks import ETA, LEAST_STEPS, MOST_STEPS, SLOTS, TARGET, TASKS


def train(config: dict[str, object]) -> None:
    """A trial, in a process of its own, from its first step to the last, or until the tuner ends it."""
    task, model, report = TASKS[str(config.pop("task"))], Model(), Reporter()
    for step in range(1, task.steps(config) + 1):
        model.train(task.values(config, step - 1))
        if step % task.every == 0:
            report(steps=step, val_loss=model.evaluate())


def main() -> None:
    name, _, seed = sys.argv[1:]
    logging.getLogger().setLevel(logging.WARNING)
    task = TASKS[name]
    chosen = task.configurations(int(seed))
    space = {name: choice(values) for name, values in task.choices.items()} or {
        "lr": loguniform(0.0003, 1.0),
        "momentum": uniform(0.0, 0.98),
        "weight_decay": loguniform(1e-5, 1e-2),
    }
    common = {"config_space": {**space, "task": name}, "random_seed": int(seed), "points_to_evaluate": chosen}
    if name == "asha":
        rungs = {"max_t": MOST_STEPS, "grace_period": LEAST_STEPS, "reduction_factor": ETA}
        scheduler = ASHA(metric="val_loss", time_attr="steps", **rungs, **common)
        stop = StoppingCriterion(max_num_trials_finished=len(chosen) - 1, min_metric_value={"val_loss": TARGET})
    else:
        scheduler = RandomSearch(metrics=["val_loss"], **common)
        stop = StoppingCriterion(max_num_trials_started=len(chosen) - 1)  # it stops at one more
    tuner = Tuner(
        trial_backend=LocalBackend(__file__, pass_args_as_json=True),
        scheduler=scheduler,
        stop_criterion=stop,
        n_workers=SLOTS,
        sleep_time=0.1,
        wait_trial_completion_when_stopping=name != "asha",
    )
    tuner.run()


if __name__ == "__main__":
    if sys.argv[1].startswith("--"):
        with open(sys.argv[sys.argv.index("--st_config_json_filename") + 1]) as file:
            train(json.load(file))
    else:
        main()
