"""Further shapes of public files, which played no part in writing the importers: they import, or give a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import optuna
import pytest

from stagetree import StudySpec
from stagetree.importers import NotImported, import_study

Json = dict[str, Any]
GIVEN: Json = {"trainer": "t", "metric": "m", "mode": "min", "num_trials": 5, "max_steps": 9}

RIGHT: dict[str, tuple[str, Json, Json]] = {
    "W&B: a language model": (
        """
        program: train.py
        name: gpt
        method: bayes
        metric: {goal: minimize, name: val/loss}
        run_cap: 40
        parameters:
          learning_rate: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}
          weight_decay: {distribution: uniform, min: 0, max: 0.1}
          max_iters: {value: 5000}
          dtype: {value: bfloat16}
          compile: {value: true}
          dropout: {values: [0, 0.1, 0.2]}
        early_terminate: {type: hyperband, min_iter: 500, eta: 2}
        """,
        {
            "learning_rate": {"loguniform": [1e-5, 1e-2]},
            "weight_decay": {"uniform": [0, 0.1]},
            "dtype": "bfloat16",
            "compile": True,
            "dropout": [0, 0.1, 0.2],
        },
        {"kind": "asha", "type": "stopping", "sampler": "tpe", "num_trials": 40, "min_steps": 500, "max_steps": 5000}
        | {"reduction_factor": 2},
    ),
    "W&B: a grid over a classifier of texts": (
        """
        method: grid
        metric: {name: eval/accuracy, goal: maximize}
        parameters:
          num_train_epochs: {values: [2, 3, 4]}
          per_device_train_batch_size: {values: [16, 32]}
          learning_rate: {values: [2e-5, 3e-5, 5e-5]}
          model_name_or_path: {value: bert-base-uncased}
          fp16: {value: yes}
        """,
        {
            "max_steps": [2, 3, 4],
            "per_device_train_batch_size": [16, 32],
            "learning_rate": [2e-5, 3e-5, 5e-5],
            "model_name_or_path": "bert-base-uncased",
            "fp16": True,
        },
        {"kind": "grid"},
    ),
    "W&B: a classifier of pictures": (
        """
        program: train.py
        method: random
        metric: {name: eval_top1, goal: maximize}
        parameters:
          epochs: {value: 300}
          opt: {values: [adamw, lamb]}
          drop-path: {min: 0.0, max: 0.3}
          mixup: {distribution: q_uniform, q: 0.1, min: 0.0, max: 1.0}
          aa: {values: [rand-m9-mstd0.5, null]}
          batch-size: {distribution: int_uniform, min: 64, max: 256}
        command: ["${env}", torchrun, "--nproc_per_node=4", "${program}", "${args_no_boolean_flags}"]
        """,
        {
            "opt": ["adamw", "lamb"],
            "drop-path": {"uniform": [0, 0.3]},
            "mixup": {"uniform": [0, 1], "step": 0.1},
            "aa": ["rand-m9-mstd0.5", None],
            "batch-size": {"randint": [64, 256]},
        },
        {"kind": "random", "num_trials": 5, "max_steps": 300},
    ),
    "W&B: reinforcement learning, whose time steps are no steps of training": (
        """
        program: ppo.py
        method: bayes
        run_cap: 25
        metric: {name: rollout/ep_rew_mean, goal: maximize, target: 475}
        parameters:
          total_timesteps: {value: 100000}
          gamma: {values: [0.9, 0.99]}
          ent_coef: {distribution: log_uniform_values, min: 1.0e-8, max: 0.1}
          clip_range: {distribution: q_uniform, q: 0.05, min: 0.1, max: 0.4}
        """,
        {
            "total_timesteps": 100000,
            "gamma": [0.9, 0.99],
            "ent_coef": {"loguniform": [1e-8, 0.1]},
            "clip_range": {"uniform": [0.1, 0.4], "step": 0.05},
        },
        {"kind": "asha", "sampler": "tpe", "num_trials": 25, "min_steps": 9, "max_steps": 9},
    ),
    "W&B: nested groups with probabilities": (
        """
        description: GCN on Cora
        method: random
        run_cap: 60
        metric: {name: best_val_acc, goal: maximize}
        parameters:
          model:
            parameters:
              hidden: {distribution: categorical, values: [16, 32, 64]}
              conv: {values: [gcn, gat], probabilities: [0.7, 0.3]}
          optimizer: {parameters: {wd: {distribution: constant, value: 5e-4}}}
          n_epochs: {value: 200}
        """,
        {
            "model.hidden": [16, 32, 64],
            "model.conv": {"choice": ["gcn", "gat"], "weights": [0.7, 0.3]},
            "optimizer.wd": 5e-4,
        },
        {"kind": "random", "num_trials": 60, "max_steps": 200},
    ),
    "W&B: logarithms of the inverse, which are as even": (
        """
        {controller: {type: local}, method: random, run_cap: 3, metric: {name: loss, goal: minimize}, parameters: {
          beta: {distribution: inv_log_uniform_values, min: 0.9, max: 0.999}, nepoch: {value: 10}}}
        """,
        {"beta": {"loguniform": [0.9, 0.999]}},
        {"kind": "random", "num_trials": 3, "max_steps": 10},
    ),
    "W&B: seeds": (
        """
        method: grid
        metric: {name: test_loss, goal: minimize}
        parameters: {seed: {values: [1, 2, 3]}, lr: {value: 0.001}, trainer.max_epochs: {value: 50}}
        """,
        {"seed": [1, 2, 3], "lr": 0.001},
        {"kind": "grid", "max_steps": 50},
    ),
    "Hydra: Ax": (
        """
        defaults: [override hydra/sweeper: ax]
        hydra:
          sweeper:
            ax_config:
              max_trials: 20
              early_stop: {minimize: true, max_epochs_without_improvement: 5}
              experiment: {minimize: false}
              params:
                lr: {type: range, bounds: [0.0001, 0.1], log_scale: true}
                layers: {type: range, bounds: [1, 4]}
                opt: {type: choice, values: [adam, sgd]}
                wd: {type: fixed, value: 0.0}
        """,
        {"lr": {"loguniform": [1e-4, 0.1]}, "layers": {"randint": [1, 4]}, "opt": ["adam", "sgd"], "wd": 0.0},
        {"kind": "asha", "sampler": "gp", "num_trials": 20, "min_steps": 9, "max_steps": 9},
    ),
    "Hydra: Nevergrad": (
        """
        defaults: [override hydra/sweeper: nevergrad]
        hydra:
          sweeper:
            optim: {optimizer: OnePlusOne, budget: 100, num_workers: 10, maximize: false}
            parametrization:
              db: [mnist, cifar]
              lr: {init: 0.02, lower: 0.001, upper: 0.2, log: true}
              dropout: {lower: 0.0, upper: 1.0}
              batch_size: {lower: 4, upper: 16, integer: true}
        """,
        {
            "db": ["mnist", "cifar"],
            "lr": {"loguniform": [0.001, 0.2]},
            "dropout": {"uniform": [0, 1]},
            "batch_size": {"randint": [4, 16]},
        },
        {"kind": "random", "num_trials": 100, "max_steps": 9},
    ),
    "Determined: adaptive ASHA over pictures": (
        """
        name: cifar10
        hyperparameters:
          global_batch_size: 32
          learning_rate: {type: log, minval: -5.0, maxval: 1.0, base: 10}
          dropout: {type: double, minval: 0.2, maxval: 0.8}
          layer: {type: const, val: relu}
        searcher: {name: adaptive_asha, metric: validation_error, smaller_is_better: true, max_trials: 500, divisor: 4}
        entrypoint: model_def:CIFARTrial
        """.replace("divisor: 4", "divisor: 4, mode: aggressive, max_length: {epochs: 32}"),
        {"global_batch_size": 32, "learning_rate": {"loguniform": [1e-5, 10]}, "dropout": {"uniform": [0.2, 0.8]}}
        | {"layer": "relu"},
        {"kind": "asha", "type": "promotion", "sampler": "random", "num_trials": 500, "min_steps": 1, "max_steps": 32}
        | {"reduction_factor": 4},
    ),
    "Determined: nested, by batches": (
        """
        name: bert
        hyperparameters:
          optimizer: {type: categorical, vals: [adam, lamb]}
          model: {num_layers: {type: int, minval: 2, maxval: 12}, hidden: 768}
        searcher: {name: random, metric: f1, smaller_is_better: false, max_trials: 12, max_length: {batches: 2000}}
        min_validation_period: {batches: 500}
        """,
        {"optimizer": ["adam", "lamb"], "model.num_layers": {"randint": [2, 12]}, "model.hidden": 768},
        {"kind": "random", "num_trials": 12, "max_steps": 2000},
    ),
    "Katib: logarithms, and numbers as texts": (
        """
        apiVersion: kubeflow.org/v1beta1
        kind: Experiment
        metadata: {name: tpe}
        spec:
          objective: {type: minimize, objectiveMetricName: loss}
          algorithm: {algorithmName: tpe}
          maxTrialCount: 20
          parameters:
            - {name: lr, parameterType: double, feasibleSpace: {min: "0.0001", max: "0.1", distribution: logUniform}}
            - {name: layers, parameterType: discrete, feasibleSpace: {list: ["2", "4", "8"]}}
        """,
        {"lr": {"loguniform": [1e-4, 0.1]}, "layers": [2, 4, 8]},
        {"kind": "asha", "sampler": "tpe", "num_trials": 20, "min_steps": 9, "max_steps": 9},
    ),
    "Katib: Hyperband, whose resource is a parameter": (
        """
        apiVersion: kubeflow.org/v1beta1
        kind: Experiment
        metadata: {name: hb}
        spec:
          objective: {type: maximize, objectiveMetricName: acc}
          algorithm:
            algorithmName: hyperband
            algorithmSettings:
              - {name: resource_name, value: num-epochs}
              - {name: eta, value: "3"}
              - {name: r_l, value: "9"}
          maxTrialCount: 9
          parameters:
            - {name: lr, parameterType: double, feasibleSpace: {min: "0.01", max: "0.03"}}
            - {name: num-epochs, parameterType: int, feasibleSpace: {min: "1", max: "9"}}
        """,
        {"lr": {"uniform": [0.01, 0.03]}},
        {"kind": "hyperband", "max_steps": 9, "reduction_factor": 3},
    ),
    "NNI: a search space alone": (
        """
        {"dropout_rate": {"_type": "uniform", "_value": [0.5, 0.9]}, "conv_size": {"_type": "choice", "_value": [2, 3]},
         "lr": {"_type": "qloguniform", "_value": [0.0001, 0.1, 0.0001]}, "init": {"_type": "normal", "_value": [0, 1]},
         "epochs": {"_type": "randint", "_value": [5, 10]}}
        """,
        {
            "max_steps": {"randint": [5, 9]},
            "dropout_rate": {"uniform": [0.5, 0.9]},
            "conv_size": [2, 3],
            "lr": {"loguniform": [1e-4, 0.1], "step": 1e-4},
            "init": {"normal": [0, 1]},
        },
        {"kind": "random", "num_trials": 5},
    ),
    "NNI: with the median rule": (
        """
        experimentName: x
        searchSpace: {lr: {_type: loguniform, _value: [0.001, 1]}, k: {_type: randint, _value: [1, 10]}}
        trialCommand: python x.py
        maxTrialNumber: 30
        tuner: {name: TPE, classArgs: {optimize_mode: minimize}}
        assessor: {name: Medianstop, classArgs: {optimize_mode: minimize, start_step: 3}}
        """,
        {"lr": {"loguniform": [0.001, 1]}, "k": {"randint": [1, 9]}},
        {"kind": "median", "sampler": "tpe", "num_trials": 30, "min_steps": 3, "interval": 1, "max_steps": 9},
    ),
}

REFUSED: dict[str, tuple[str, str]] = {
    "NNI: an assessor that predicts": (
        "{searchSpace: {a: {_type: choice, _value: [1]}}, trialCommand: x, tuner: {name: TPE}, "
        "assessor: {name: Curvefitting}}",
        "assessor.name: must be Medianstop, got 'Curvefitting': write the tuner early_term or median by hand",
    ),
    "Hydra: files that a pattern names": (
        "hydra: {mode: MULTIRUN, sweeper: {params: {experiment: glob(*), model: 'a,b', trainer.max_epochs: '10,20'}}}",
        "hydra.sweeper.params.experiment: has the function glob, which is not known here: write the values that it st",
    ),
}


def study_of_objective(objective: Any) -> Json:
    study = optuna.create_study(direction="maximize", sampler=optuna.samplers.RandomSampler(seed=0))
    study.optimize(objective, n_trials=40)
    return import_study(study, trainer="t", metric="m", max_steps=9, num_trials=30).study["space"]  # type: ignore[no-any-return]


@pytest.mark.parametrize("name", RIGHT)
def test_each_shape_imports_to_its_space(name: str, tmp_path: Path) -> None:
    text, space, tuner = RIGHT[name]
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(NotImported) as asked:
        import_study(path)
    given = {field: GIVEN[field] for field in {each.field for each in asked.value.problems} & GIVEN.keys()}
    study = import_study(path, **given).study
    assert study["space"] == space and study["tuner"] == tuner
    StudySpec(**study)


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_gives_its_reason(name: str, tmp_path: Path) -> None:
    text, sentence = REFUSED[name]
    (tmp_path / "file.yaml").write_text(text)
    with pytest.raises(NotImported) as refused:
        import_study(tmp_path / "file.yaml", **GIVEN)
    assert any(f": {sentence}" in f": {line}" for line in str(refused.value).splitlines()), refused.value


def test_layers_of_optunas_first_example() -> None:
    def objective(trial: optuna.Trial) -> float:
        for number in range(trial.suggest_int("n_layers", 1, 3)):
            trial.suggest_int(f"n_units_l{number}", 4, 128, log=True)
        return trial.suggest_float("lr", 1e-5, 1e-1, log=True)

    assert study_of_objective(objective) == {
        "n_layers": {"randint": [1, 3]},
        "n_units_l0": {"lograndint": [4, 128]},
        "n_units_l1": {"value": {"lograndint": [4, 128]}, "when": {"n_layers": [2, 3]}},
        "n_units_l2": {"value": {"lograndint": [4, 128]}, "when": {"n_layers": 3}},
        "lr": {"loguniform": [1e-5, 1e-1]},
    }


def test_boosters_of_optunas_examples() -> None:
    def objective(trial: optuna.Trial) -> float:
        booster = trial.suggest_categorical("booster", ["gbtree", "gblinear", "dart"])
        if booster != "gblinear":
            trial.suggest_int("max_depth", 1, 9)
        if booster == "dart":
            trial.suggest_categorical("sample_type", ["uniform", "weighted"])
        return 1.0

    assert study_of_objective(objective) == {
        "booster": ["gbtree", "gblinear", "dart"],
        "max_depth": {"value": {"randint": [1, 9]}, "when": {"booster": ["gbtree", "dart"]}},
        "sample_type": {"value": {"choice": ["uniform", "weighted"]}, "when": {"booster": "dart"}},
    }


def test_a_range_that_follows_another_value_is_refused() -> None:
    def objective(trial: optuna.Trial) -> float:
        return float(trial.suggest_int("b", trial.suggest_int("a", 1, 5), 10))

    with pytest.raises(NotImported, match="b: has another range in some trials"):
        study_of_objective(objective)
