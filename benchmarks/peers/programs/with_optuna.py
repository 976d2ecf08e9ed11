"""The tasks with Optuna: two processes on one journal, configurations that are enqueued, and a pruner.

A pruned trial is gone, and no trial starts from another's state: Optuna keeps no checkpoints. The grid is enqueued,
since `GridSampler` gives a point to two processes now and then.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import optuna
from optuna.pruners import NopPruner, SuccessiveHalvingPruner
from optuna.storages.journal import JournalFileBackend, JournalStorage
from optuna.study import MaxTrialsCallback
from optuna.trial import TrialState

from benchmarks.peers.model import Model
from benchmarks.peers.tasks import ETA, LEAST_STEPS, SLOTS, TARGET, TASKS, Config, Task


def suggest(trial: optuna.Trial, task: Task) -> Config:
    if task.choices:
        return {name: trial.suggest_categorical(name, values) for name, values in task.choices.items()}
    return {
        "lr": trial.suggest_float("lr", 0.0003, 1.0, log=True),
        "momentum": trial.suggest_float("momentum", 0.0, 0.98),
        "weight_decay": trial.suggest_float("weight_decay", 1e-5, 1e-2, log=True),
    }


def objective(trial: optuna.Trial, task: Task) -> float:
    config, model, loss = suggest(trial, task), Model(), float("inf")
    for step in range(1, task.steps(config) + 1):
        model.train(task.values(config, step - 1))
        if step % task.every == 0:
            loss = model.evaluate()
            trial.report(loss, step)
            if task.name == "asha" and loss <= TARGET:
                trial.study.set_user_attr("reached", True)
                return loss
            if trial.should_prune() or trial.study.user_attrs.get("reached"):
                raise optuna.TrialPruned
    return loss


def stop_at_target(study: optuna.Study, trial: optuna.trial.FrozenTrial) -> None:
    if study.user_attrs.get("reached"):
        study.stop()


def main() -> None:
    name, folder, seed, *role = sys.argv[1:]
    task = TASKS[name]
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=name,
        storage=JournalStorage(JournalFileBackend(str(Path(folder, "journal.log")))),
        sampler=optuna.samplers.RandomSampler(seed=int(seed)),
        pruner=SuccessiveHalvingPruner(LEAST_STEPS, ETA) if name == "asha" else NopPruner(),
        load_if_exists=True,
    )
    configurations = task.configurations(int(seed))
    if role:
        begun = (TrialState.RUNNING, TrialState.COMPLETE, TrialState.PRUNED)
        enough = MaxTrialsCallback(len(configurations), states=begun)
        study.optimize(lambda trial: objective(trial, task), callbacks=[enough, stop_at_target])
        return
    for config in configurations:
        study.enqueue_trial(config)
    processes = [subprocess.Popen([sys.executable, __file__, *sys.argv[1:], "work"]) for _ in range(SLOTS)]
    codes = [process.wait() for process in processes]
    if any(codes):
        raise SystemExit("a worker of Optuna failed")
    print(study.best_value, study.best_params)


if __name__ == "__main__":
    main()
