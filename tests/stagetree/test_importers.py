"""Studies that were written for other tools."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from stagetree import StudySpec
from stagetree.errors import StagetreeError
from stagetree.importers import configurations_from_optuna, from_wandb, space_from_optuna

SWEEP = """
program: train.py
method: bayes
run_cap: 30
metric: {name: val_loss, goal: minimize}
parameters:
  lr: {distribution: log_uniform_values, min: 1.0e-4, max: 0.1}
  dropout: {min: 0.1, max: 0.5}
  layers: {min: 1, max: 4}
  optimizer:
    parameters:
      name: {values: [adam, sgd]}
      decay: {value: 0.01}
early_terminate: {type: hyperband, min_iter: 3, s: 2, eta: 3}
"""
RANDOM: dict[str, Any] = {
    "method": "random",
    "run_cap": 8,
    "metric": {"name": "acc", "goal": "maximize"},
    "parameters": {"lr": {"distribution": "log_uniform", "min": -7, "max": -1}, "epochs": {"value": 12}},
}


def spec(fields: dict[str, Any]) -> StudySpec:
    return StudySpec(name="x", trainer="x", **fields)


def test_a_sweep_of_a_file(tmp_path: Path) -> None:
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    fields = from_wandb(tmp_path / "sweep.yaml")
    assert fields["space"] == {
        "lr": {"loguniform": [1e-4, 0.1]},
        "dropout": {"uniform": [0.1, 0.5]},
        "layers": {"randint": [1, 4]},
        "optimizer.name": ["adam", "sgd"],
        "optimizer.decay": 0.01,
    }
    assert (fields["metric"], fields["mode"]) == ("val_loss", "min")
    tuner = {"kind": "asha", "type": "stopping", "sampler": "tpe", "num_trials": 30, "reduction_factor": 3}
    assert fields["tuner"] == {**tuner, "min_steps": 3, "max_steps": 27}
    spec(fields)


def test_a_sweep_without_early_termination() -> None:
    fields = from_wandb(RANDOM)
    assert fields["tuner"] == {"kind": "random", "num_trials": 8, "max_steps": 12}
    assert fields["mode"] == "max" and list(fields["space"]) == ["lr"]
    spec(fields)
    spec(from_wandb({**RANDOM, "method": "bayes"}))
    grid = {**RANDOM, "method": "grid", "parameters": {"lr": {"values": [1, 2]}, "epochs": {"value": 3}}}
    assert from_wandb(grid)["tuner"] == {"kind": "grid", "max_steps": 3}


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"method": "annealing"}, "method: must be one of grid, random, bayes, got 'annealing'"),
        ({"metric": {}}, "metric.name: is missing"),
        ({"run_cap": None}, "run_cap: is missing"),
        ({"parameters": {"lr": {"min": 1}}}, "parameters.lr: must have value, values, or min and max"),
        ({"parameters": {"lr": {"min": 1, "max": 2, "distribution": "beta"}}}, "parameters.lr.distribution: must"),
        ({"parameters": {"lr": {"mu": 1, "q": 3, "distribution": "q_normal"}}}, "parameters.lr.q: must divide 1, from"),
        ({"parameters": {"lr": {"values": [1]}}}, "parameters.epochs.value: is missing"),
        ({"early_terminate": {"type": "envelope"}}, "early_terminate.type: must be hyperband, got 'envelope'"),
    ],
)
def test_what_has_no_counterpart(change: dict[str, Any], problem: str) -> None:
    changed = {name: value for name, value in {**RANDOM, **change}.items() if value is not None}
    with pytest.raises(StagetreeError) as refused:
        from_wandb(changed)
    assert str(refused.value).startswith(problem)


@pytest.mark.parametrize(
    ("written", "kept"),
    [
        ({"values": [1, 2], "probabilities": [0.9, 0.1]}, {"choice": [1, 2], "weights": [0.9, 0.1]}),
        ({"distribution": "q_uniform", "min": 0, "max": 1, "q": 0.25}, {"uniform": [0, 1], "step": 0.25}),
        ({"distribution": "normal", "mu": 2, "sigma": 3}, {"normal": [2, 3]}),
        ({"distribution": "q_normal", "mu": 2, "q": 0.5}, {"normal": [2, 1], "step": 0.5}),
        ({"min": 1, "max": 3}, {"randint": [1, 3]}),
    ],
)
def test_distributions_of_a_sweep(written: dict[str, Any], kept: dict[str, Any]) -> None:
    sweep = {**RANDOM, "parameters": {**RANDOM["parameters"], "x": written}}
    assert from_wandb(sweep)["space"]["x"] == kept


def test_an_optuna_study() -> None:
    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
        bs, layers = trial.suggest_categorical("bs", [32, 64]), trial.suggest_int("layers", 1, 3)
        return lr * bs * layers + trial.suggest_float("dropout", 0, 0.5, step=0.25)

    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=6)
    space = space_from_optuna(study)
    assert space == {
        "lr": {"loguniform": [1e-4, 0.1]},
        "bs": {"choice": [32, 64]},
        "layers": {"randint": [1, 3]},
        "dropout": {"uniform": [0.0, 0.5], "step": 0.25},
    }
    best = configurations_from_optuna(study, best=2)
    assert best[0] == study.best_params and len(best) == 2
    tuner = {"kind": "random", "num_trials": 4, "max_steps": 2, "first": best}
    hp = next(spec({"space": space, "metric": "x", "mode": "max", "tuner": tuner}).configurations())
    assert {name: value.at(0) for name, value in hp.items()} == study.best_params


def test_an_optuna_study_without_trials() -> None:
    with pytest.raises(StagetreeError, match="has no trials yet"):
        space_from_optuna(optuna.create_study())
