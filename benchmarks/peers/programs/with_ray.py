"""The tasks with Ray Tune: a trainable whose actors are used again, and its ASHA, which stops and never promotes."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import ray
import torch
from ray import tune
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler
from ray.tune.search.basic_variant import BasicVariantGenerator

from benchmarks.peers.model import Model
from benchmarks.peers.tasks import ETA, LEAST_STEPS, MOST_STEPS, SLOTS, TARGET, TASKS


class Trained(tune.Trainable):
    """An iteration is as many steps as lie between two evaluations."""

    def setup(self, config: dict[str, Any]) -> None:
        self.task, self.chosen, self.model = TASKS[config["task"]], config["chosen"], Model()

    def reset_config(self, config: dict[str, Any]) -> bool:
        self.setup(config)
        return True

    def step(self) -> dict[str, Any]:
        for _ in range(self.task.every):
            self.model.train(self.task.values(self.chosen, self.model.step))
        loss = self.model.evaluate()
        return {"val_loss": loss, "steps": self.model.step, "done": self.model.step >= self.task.steps(self.chosen)}

    def save_checkpoint(self, folder: str) -> None:
        torch.save(self.model.state_dict(), Path(folder, "state.pt"))

    def load_checkpoint(self, folder: str) -> None:
        self.model.load_state_dict(torch.load(Path(folder, "state.pt")))


class AtTarget(tune.Stopper):
    """Ends the whole search where the target is reached."""

    reached = False

    def __call__(self, trial_id: str, result: dict[str, Any]) -> bool:
        self.reached = self.reached or result["val_loss"] <= TARGET
        return self.reached

    def stop_all(self) -> bool:
        return self.reached


def main() -> None:
    name, folder, seed = sys.argv[1:]
    asha = ASHAScheduler("steps", grace_period=LEAST_STEPS, max_t=MOST_STEPS, reduction_factor=ETA)
    chosen = TASKS[name].configurations(int(seed))
    ray.init(num_cpus=SLOTS, include_dashboard=False, log_to_driver=False)
    tuner = tune.Tuner(
        tune.with_resources(Trained, {"cpu": 1}),
        param_space={"task": name, "chosen": tune.grid_search(chosen)},
        tune_config=tune.TuneConfig(
            metric="val_loss",
            mode="min",
            scheduler=asha if name == "asha" else FIFOScheduler(),
            search_alg=BasicVariantGenerator(),
            reuse_actors=True,
        ),
        run_config=tune.RunConfig(
            storage_path=folder,
            stop=AtTarget() if name == "asha" else None,
            verbose=0,
            checkpoint_config=tune.CheckpointConfig(num_to_keep=1, checkpoint_at_end=True),
        ),
    )
    best = tuner.fit().get_best_result()
    print(best.metrics["val_loss"], best.config["chosen"])


if __name__ == "__main__":
    main()
