"""Files of Hydra, Determined, Katib and NNI, by the shapes of public ones: each is written anew."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from stagetree import StudySpec
from stagetree.errors import StagetreeError
from stagetree.importers import NotImported, import_study
from stagetree.spec import SpecError

Json = dict[str, Any]
GIVEN: Json = {"trainer": "t", "metric": "m", "mode": "max", "num_trials": 5, "max_steps": 9}

HYDRA: dict[str, tuple[str, str, Json, Json]] = {
    "the basic sweeper": (
        """
        defaults: [base]
        hydra:
          mode: MULTIRUN
          sweeper:
            params:
              model: d10, d30
              optim.lr: 1e-3,1e-4
              +seed_of_data: range(1,4)
              data.bs: choice(16, 32)
        """,
        "metric mode max_steps",
        {"model": ["d10", "d30"], "optim.lr": [1e-3, 1e-4], "seed_of_data": [1, 2, 3], "data.bs": [16, 32]},
        {"kind": "grid", "max_steps": 9},
    ),
    "a template for Lightning": (
        """
        # @package _global_
        defaults: [override /hydra/sweeper: optuna]
        optimized_metric: val/acc_best
        trainer: {max_epochs: 12, devices: 1}
        hydra:
          mode: MULTIRUN
          sweeper:
            _target_: hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper
            storage: null
            study_name: null
            n_jobs: 1
            direction: maximize
            n_trials: 20
            sampler: {_target_: optuna.samplers.TPESampler, seed: 1234, n_startup_trials: 10}
            params:
              model.optimizer.lr: interval(0.0001, 0.1)
              data.batch_size: choice(32, 64, 128)
              model.wd: tag(log, interval(1e-6, 1e-2))
              model.depth: range(2, 8)
              model.drop: range(0.0, 0.5, step=0.1)
              model.heads: int(interval(1, 4))
        """,
        "",
        {
            "model.optimizer.lr": {"uniform": [0.0001, 0.1]},
            "data.batch_size": [32, 64, 128],
            "model.wd": {"loguniform": [1e-6, 1e-2]},
            "model.depth": {"randint": [2, 8]},
            "model.drop": {"uniform": [0.0, 0.5], "step": 0.1},
            "model.heads": {"randint": [1, 4]},
        },
        {"kind": "asha", "sampler": "tpe", "num_trials": 20, "sampling_seed": 1234, "min_steps": 12, "max_steps": 12},
    ),
    "the older notation": (
        """
        defaults: [override hydra/sweeper: optuna, override hydra/sweeper/sampler: random]
        lr: 3.e-4
        hydra:
          sweeper:
            sampler: {_target_: optuna.samplers.RandomSampler, seed: ${seed}}
            direction: minimize
            study_name: first
            n_trials: 10
            search_space:
              lr: {type: float, low: 1e-4, high: 1e-3, log: True}
              opt: {type: categorical, choices: [SGD, Adam]}
              dims: {type: categorical, choices: [[512, 256], [64]]}
              depth: {type: int, low: 2, high: 8, step: 2}
        """.replace("${seed}", "'${seed}'"),
        "metric max_steps",
        {
            "lr": {"loguniform": [1e-4, 1e-3]},
            "opt": ["SGD", "Adam"],
            "dims": [[512, 256], [64]],
            "depth": {"randint": [2, 8], "step": 2},
        },
        {"kind": "random", "num_trials": 10, "max_steps": 9},
    ),
    "a sweeper's own file": (
        """
        _target_: hydra_plugins.hydra_optuna_sweeper.optuna_sweeper.OptunaSweeper
        direction: minimize
        n_trials: 7
        params:
          a.lr: tag(log, int(interval(1, 64)))
          a.size: shuffle(range(1, 4))
          a.act: "'relu', gelu"
        """,
        "metric max_steps",
        {"a.lr": {"lograndint": [1, 64]}, "a.size": [1, 2, 3], "a.act": ["relu", "gelu"]},
        {"kind": "asha", "sampler": "tpe", "num_trials": 7, "min_steps": 9, "max_steps": 9},
    ),
    "overrides of a command line": (
        """
        - lr=0.1,0.01
        - +epochs=5,10
        - net=choice([8, 8],[4])
        - use_bias=true,false
        """,
        "metric mode",
        {"max_steps": [5, 10], "lr": [0.1, 0.01], "net": [[8, 8], [4]], "use_bias": [True, False]},
        {"kind": "grid"},
    ),
}

DETERMINED: dict[str, tuple[str, str, Json, Json]] = {
    "adaptive asha": (
        """
        name: mnist
        entrypoint: model_def:Trial
        hyperparameters:
          global_batch_size: 64
          lr: {type: log, base: 10, minval: -5.0, maxval: -1.0}
          momentum: {type: categorical, vals: [0.9, 0.99]}
          filters: {type: int, minval: 8, maxval: 64}
          optimizer: {dropout: {type: double, minval: 0.2, maxval: 0.8}, name: {type: const, val: adam}}
        searcher:
          name: adaptive_asha
          metric: validation_loss
          smaller_is_better: true
          max_length: {batches: 1024}
          max_trials: 16
          mode: aggressive
        max_restarts: 0
        reproducibility: {experiment_seed: 7}
        """,
        "",
        {
            "global_batch_size": 64,
            "lr": {"loguniform": [1e-5, 0.1]},
            "momentum": [0.9, 0.99],
            "filters": {"randint": [8, 64]},
            "optimizer.dropout": {"uniform": [0.2, 0.8]},
            "optimizer.name": "adam",
        },
        {"kind": "asha", "num_trials": 16, "reduction_factor": 4, "type": "promotion", "sampler": "random"}
        | {"min_steps": 4, "max_steps": 1024},
    ),
    "a grid": (
        """
        hyperparameters:
          lr: {type: log, minval: -3, maxval: -1, count: 3}
          depth: {type: int, minval: 1, maxval: 3}
          drop: {type: double, minval: 0.0, maxval: 0.5, count: 2}
        searcher: {name: grid, metric: acc, smaller_is_better: false, max_length: {epochs: 6}}
        min_validation_period: {epochs: 2}
        """,
        "",
        {"lr": [0.001, 0.01, 0.1], "depth": [1, 2, 3], "drop": [0.0, 0.5]},
        {"kind": "grid", "max_steps": 6},
    ),
    "one trial": (
        """
        hyperparameters: {lr: 0.1, layers: [64, 32]}
        searcher: {name: single, metric: acc, max_length: 50}
        """,
        "",
        {"lr": 0.1, "layers": [[64, 32]]},
        {"kind": "random", "num_trials": 1, "max_steps": 50},
    ),
    "without a length": (
        """
        resources: {slots_per_trial: 8}
        hyperparameters: {lr: {type: double, minval: .0001, maxval: 1.0}}
        searcher:
          {name: adaptive_asha, metric: x, max_trials: 9, max_rungs: 3, divisor: 3, bracket_rungs: [], stop_once: true}
        """,
        "max_steps",
        {"lr": {"uniform": [0.0001, 1.0]}},
        {"kind": "asha", "num_trials": 9, "reduction_factor": 3, "type": "stopping", "sampler": "random"}
        | {"min_steps": 1, "max_steps": 9},
    ),
}

KATIB: dict[str, tuple[str, str, Json, Json]] = {
    "bayesian": (
        """
        apiVersion: kubeflow.org/v1beta1
        kind: Experiment
        metadata: {name: hpo, namespace: kubeflow}
        spec:
          objective: {type: maximize, goal: 0.95, objectiveMetricName: accuracy, additionalMetricNames: [loss]}
          algorithm: {algorithmName: bayesianoptimization, algorithmSettings: [{name: random_state, value: "10"}]}
          parallelTrialCount: 3
          maxTrialCount: 20
          maxFailedTrialCount: 3
          parameters:
            - {name: --lr, parameterType: double, feasibleSpace: {min: "0.0001", max: "0.01", distribution: logUniform}}
            - {name: batch-size, parameterType: categorical, feasibleSpace: {list: ["16", "32"]}}
            - {name: num-layers, parameterType: int, feasibleSpace: {min: "2", max: "8"}}
            - {name: width, parameterType: discrete, feasibleSpace: {list: ["8", "16"]}}
            - {name: units, parameterType: int, feasibleSpace: {min: "16", max: "64", step: "16"}}
          trialTemplate: {primaryContainerName: training}
        """,
        "max_steps",
        {
            "lr": {"loguniform": [0.0001, 0.01]},
            "batch-size": ["16", "32"],
            "num-layers": {"randint": [2, 8]},
            "width": [8, 16],
            "units": {"randint": [16, 64], "step": 16},
        },
        {"kind": "asha", "sampler": "gp", "num_trials": 20, "sampling_seed": 10, "min_steps": 9, "max_steps": 9},
    ),
    "a grid": (
        """
        kind: Experiment
        spec:
          objective: {type: minimize, objectiveMetricName: loss}
          algorithm: {algorithmName: grid}
          parameters:
            - {name: lr, parameterType: double, feasibleSpace: {min: "0.01", max: "0.03", step: "0.01"}}
            - {name: epochs, parameterType: int, feasibleSpace: {min: "2", max: "3"}}
        """,
        "",
        {"max_steps": [2, 3], "lr": [0.01, 0.02, 0.03]},
        {"kind": "grid"},
    ),
    "with the median rule": (
        """
        kind: Experiment
        spec:
          objective: {type: minimize, objectiveMetricName: loss}
          algorithm: {algorithmName: random}
          earlyStopping:
            algorithmName: medianstop
            algorithmSettings: [{name: min_trials_required, value: "3"}, {name: start_step, value: "5"}]
          maxTrialCount: 8
          parameters: [{name: lr, parameterType: double, feasibleSpace: {min: "0.01", max: "0.03"}}]
        """,
        "max_steps",
        {"lr": {"uniform": [0.01, 0.03]}},
        {"kind": "median", "sampler": "random", "num_trials": 8, "interval": 1, "min_trials": 3}
        | {"min_steps": 5, "max_steps": 9},
    ),
}

NNI: dict[str, tuple[str, str, Json, Json]] = {
    "a search space": (
        json.dumps(
            {
                "dropout_rate": {"_type": "uniform", "_value": [0.5, 0.9]},
                "conv_size": {"_type": "choice", "_value": [2, 3, 5, 7]},
                "hidden": {"_type": "randint", "_value": [64, 129]},
                "lr": {"_type": "loguniform", "_value": [0.0001, 0.1]},
                "momentum": {"_type": "quniform", "_value": [0, 1, 0.1]},
                "noise": {"_type": "normal", "_value": [0, 1]},
            }
        ),
        "metric mode max_steps num_trials",
        {
            "dropout_rate": {"uniform": [0.5, 0.9]},
            "conv_size": [2, 3, 5, 7],
            "hidden": {"randint": [64, 128]},
            "lr": {"loguniform": [0.0001, 0.1]},
            "momentum": {"uniform": [0, 1], "step": 0.1},
            "noise": {"normal": [0, 1]},
        },
        {"kind": "random", "num_trials": 5, "max_steps": 9},
    ),
    "choices inside choices": (
        json.dumps(
            {
                "layer0": {
                    "_type": "choice",
                    "_value": [
                        {"_name": "Empty"},
                        {"_name": "Conv", "kernel": {"_type": "choice", "_value": [1, 2, 3]}},
                        {"_name": "Pool", "size": {"_type": "randint", "_value": [1, 4]}},
                    ],
                }
            }
        ),
        "metric mode max_steps num_trials",
        {
            "layer0": ["Empty", "Conv", "Pool"],
            "layer0.Conv.kernel": {"value": [1, 2, 3], "when": {"layer0": "Conv"}},
            "layer0.Pool.size": {"value": {"randint": [1, 3]}, "when": {"layer0": "Pool"}},
        },
        {"kind": "random", "num_trials": 5, "max_steps": 9},
    ),
    "an experiment": (
        """
        experimentName: mnist
        searchSpace:
          lr: {_type: loguniform, _value: [0.0001, 0.1]}
          epochs: {_type: choice, _value: [10]}
        trialCommand: python3 mnist.py
        trialConcurrency: 2
        maxTrialNumber: 10
        maxExperimentDuration: 1h
        tuner: {name: TPE, classArgs: {optimize_mode: maximize, seed: 3}}
        trainingService: {platform: local}
        """,
        "metric",
        {"lr": {"loguniform": [0.0001, 0.1]}},
        {"kind": "asha", "sampler": "tpe", "num_trials": 10, "sampling_seed": 3, "min_steps": 10, "max_steps": 10},
    ),
}

ALL = {
    f"{tool}: {name}": (tool, shape)
    for tool, shapes in (("hydra", HYDRA), ("determined", DETERMINED), ("katib", KATIB), ("nni", NNI))
    for name, shape in shapes.items()
}


@pytest.mark.parametrize("name", ALL)
def test_shapes(name: str, tmp_path: Path) -> None:
    """Each format is recognised by its shape, and missing values are requested by name."""
    _, (text, missing, space, tuner) = ALL[name]
    path = tmp_path / "file.yaml"
    path.write_text(text)
    with pytest.raises(NotImported) as asked:
        import_study(path)
    asked_for = {each.field for each in asked.value.problems}
    assert asked_for == {"trainer", *missing.split()}
    answer = import_study(path, **{given: GIVEN[given] for given in asked_for})
    assert answer.study["space"] == space
    assert answer.study["tuner"] == tuner
    (tmp_path / "study.yaml").write_text(answer.to_yaml())
    assert StudySpec.from_file(tmp_path / "study.yaml") == StudySpec(**answer.study)


def test_other_fields_become_fields_of_the_study(tmp_path: Path) -> None:
    fields = {}
    for name in ("determined: adaptive asha", "determined: a grid", "katib: bayesian", "nni: an experiment"):
        path = tmp_path / "file.yaml"
        path.write_text(ALL[name][1][0])
        missing = ALL[name][1][1].split()
        fields[name] = import_study(path, trainer="t", **{each: GIVEN[each] for each in missing}).study
    first, grid, katib, nni = fields.values()
    assert (first["metric"], first["mode"], first["max_restarts"], first["seed"]) == ("validation_loss", "min", 0, 7)
    assert (grid["mode"], grid["eval_every"]) == ("max", 2)
    assert (katib["target"], katib["max_failures"], katib["max_slots"], katib["name"]) == (0.95, 3, 3, "hpo")
    assert (nni["mode"], nni["max_slots"], nni["max_time"]) == ("max", 2, 3600)


def hydra(**params: str) -> Json:
    return {"hydra": {"sweeper": {"params": params}}}


def nni(kind: str, *values: Any) -> Json:
    return {"x": {"_type": kind, "_value": list(values)}}


def determined(x: Any = 1, **searcher: Any) -> Json:
    return {"hyperparameters": {"x": x}, "searcher": {"name": "random", "metric": "a", "max_length": 3, **searcher}}


def katib(algorithm: str = "random", **space: Any) -> Json:
    parameter = {"name": "x", "parameterType": "double", "feasibleSpace": space}
    objective = {"type": "minimize", "objectiveMetricName": "a"}
    return {
        "kind": "Experiment",
        "spec": {"objective": objective, "algorithm": {"algorithmName": algorithm}, "parameters": [parameter]},
    }


REFUSED: list[tuple[Json, str]] = [
    (
        hydra(x="interval(0, 1)"),
        "hydra.sweeper.params.x: is an interval, which a grid cannot cross: write choice or range",
    ),
    (hydra(x="glob(*)"), "hydra.sweeper.params.x: has the function glob, which is not known here: write the values"),
    (
        hydra(x="chioce(1,2)"),
        "hydra.sweeper.params.x: has the function chioce, which is not known here; did you mean choi",
    ),
    (hydra(x="${y}"), "hydra.sweeper.params.x: refers to another value: write the value, in '${y}'"),
    (hydra(x="choice(1,2"), "hydra.sweeper.params.x: must have a ), in 'choice(1,2'"),
    (hydra(x="{a: 1}"), "hydra.sweeper.params.x: has an object: give each of its fields an override of its own"),
    (hydra(**{"~x": "1"}), "hydra.sweeper.params.~x: removes a value of the config"),
    (
        {"hydra": {"sweeper": {"ax_config": {"params": {"x": {"type": "rnge", "bounds": [1, 2]}}}}}},
        "hydra.sweeper.ax_config.params.x.type: must be range, choice or fixed, got 'rnge'",
    ),
    (
        {"hydra": {"sweeper": {"ax_config": {"experiment": {"minimise": True}}}}},
        "hydra.sweeper.ax_config.experiment.minimise: is no field of this format",
    ),
    (
        {"hydra": {"sweeper": {"parametrization": {"lr": {"init": 0.02, "step": 2.0, "log": True}}}}},
        "hydra.sweeper.parametrization.lr: has no bounds: give it lower and upper",
    ),
    (
        {"hydra": {"sweeper": {"parametrization": {"n": {"lower": 1.5, "upper": 4, "integer": True}}}}},
        "hydra.sweeper.parametrization.n: must be a whole number, got 1.5",
    ),
    (
        {"hydra": {"sweeper": {"n_trials": 3, "direction": "max", "params": {"x": "1,2"}}}},
        "hydra.sweeper.direction: must be",
    ),
    (
        {"hydra": {"sweeper": {"n_trails": 3, "params": {"x": "1,2"}}}},
        "hydra.sweeper.n_trails: is no field of this format",
    ),
    (nni("lognormal", 0, 1), "x._type: lognormal has no counterpart: write loguniform"),
    (
        nni("unifrom", 0, 1),
        "x._type: must be one of choice, randint, uniform, quniform, loguniform, qloguniform, normal, got",
    ),
    (nni("uniform", 0), "x._value: must be 2 numbers for uniform, got [0]"),
    (nni("quniform", 1, 9, 2), "x._value[2]: must divide 1, from which steps are counted here, got 2.0"),
    (nni("mutable_layer"), "x._type: mutable_layer has no counterpart"),
    (
        {"searchSpacePath": "space.json", "tuner": {"name": "TPE"}},
        "searchSpace: is missing: import the file of the search",
    ),
    (
        determined({"type": "dbl", "minval": 1, "maxval": 2}),
        "hyperparameters.x.type: must be one of const, categorical, int",
    ),
    (determined({"type": "int", "minval": 1}), "hyperparameters.x.maxval: must be a number, got None"),
    (determined(max_length={"records": 900}), "searcher.max_length: must be a number of batches or epochs, got"),
    (determined(name="pbt"), "searcher.name: must be single, random, grid or adaptive_asha, got 'pbt'"),
    (
        determined(smaler_is_better=True),
        "searcher.smaler_is_better: is no field of this format; did you mean smaller_is_be",
    ),
    (
        katib("darts", min="1", max="2"),
        "spec.algorithm.algorithmName: must be one of random, grid, hyperband, bayesianoptimization",
    ),
    (katib(min="a", max="2"), "spec.parameters[0].feasibleSpace.min: must be a number, got 'a'"),
    (
        katib(min="1", max="2", distribution="logNormal"),
        "spec.parameters[0].feasibleSpace.distribution: logNormal of double",
    ),
]


@pytest.mark.parametrize(("content", "problem"), REFUSED)
def test_refused_files(content: Json, problem: str) -> None:
    with pytest.raises(NotImported) as refused:
        import_study(content, trainer="t", metric="a", mode="min", num_trials=3, max_steps=3)
    assert any(line.startswith(problem) for line in str(refused.value).splitlines()), refused.value


def test_ignored_fields_are_named() -> None:
    answer = import_study(
        {**determined(resources={}), "resources": {"slots_per_trial": 2}, "labels": ["a"]}
        | {"searcher": {"name": "adaptive_asha", "metric": "a", "max_length": {"batches": 64}, "max_trials": 4}},
        trainer="t",
    )
    assert [note.partition(":")[0] for note in answer.notes] == [
        "resources",
        "labels",
        "searcher.max_length",
        "searcher.mode",
    ]


def test_a_file_of_no_format() -> None:
    with pytest.raises(
        StagetreeError, match=r"is none of an experiment of Katib, .* it has a, b; say which with format"
    ):
        import_study({"a": 1, "b": 2})
    with pytest.raises(StagetreeError, match=r"format: must be one of .*, got 'wand'; did you mean wandb"):
        import_study({"a": 1}, "wand")


def places(content: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths to all parts of a content."""
    yield path
    for name in content if isinstance(content, dict) else range(len(content)) if isinstance(content, list) else ():
        yield from places(content[name], (*path, name))


def replace_at(content: Any, path: tuple[Any, ...], value: Any) -> Any:
    if not path:
        return value
    copy = content.copy()
    copy[path[0]] = replace_at(content[path[0]], path[1:], value)
    return copy


@pytest.mark.parametrize("name", ALL)
def test_any_part_of_another_type_is_answered(name: str) -> None:
    tool, (text, *_) = ALL[name]
    content = yaml.safe_load(text)
    for path in places(content):
        for value in (None, 3, "x", [], {}, [1], {"a": 1}, True):
            with contextlib.suppress(StagetreeError, SpecError):
                import_study(replace_at(content, path, value), tool, trainer="t", max_steps=3)
