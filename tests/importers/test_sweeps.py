"""Sweeps of W&B, by the shapes of public files: each is written anew, with the space that it must become."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from stagetree import StudySpec
from stagetree.importers import NotImported, from_wandb, import_study

Json = dict[str, Any]
ASHA = {"kind": "asha", "type": "stopping"}
LOSS = "metric: {name: val_loss, goal: minimize}"

SHAPES: dict[str, tuple[str, Json, Json, Json]] = {
    "of the manual": (
        f"""
        program: train.py
        method: random
        {LOSS}
        parameters:
          batch_size: {{distribution: q_uniform, max: 256, min: 32, q: 8}}
          dropout: {{values: [0.3, 0.4, 0.5]}}
          epochs: {{value: 1}}
          fc: {{values: [128, 256, 512]}}
          lr: {{distribution: uniform, max: 0.1, min: 0}}
          optimizer: {{values: ["adam", "sgd"]}}
        """,
        {"num_trials": 5},
        {
            "batch_size": {"randint": [32, 256], "step": 8},
            "dropout": [0.3, 0.4, 0.5],
            "fc": [128, 256, 512],
            "lr": {"uniform": [0, 0.1]},
            "optimizer": ["adam", "sgd"],
        },
        {"kind": "random", "num_trials": 5, "max_steps": 1},
    ),
    "hyperband beside epochs": (
        """
        method: bayes
        run_cap: 12
        metric: {name: val/hmean, goal: maximize}
        parameters:
          lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-2}
          epochs: {value: 100}
        early_terminate: {type: hyperband, min_iter: 15}
        """,
        {},
        {"lr": {"loguniform": [1e-5, 1e-2]}},
        {**ASHA, "sampler": "tpe", "num_trials": 12, "min_steps": 15, "max_steps": 100, "reduction_factor": 3},
    ),
    "hyperband by max_iter": (
        f"""
        method: random
        run_cap: 30
        {LOSS}
        early_terminate: {{type: hyperband, max_iter: 27, s: 2, eta: 3, strict: true}}
        parameters: {{hidden: {{min: 8, max: 64}}, wd: {{min: 0.0, max: 0.1}}}}
        """,
        {},
        {"hidden": {"randint": [8, 64]}, "wd": {"uniform": [0, 0.1]}},
        {**ASHA, "sampler": "random", "num_trials": 30, "min_steps": 3, "max_steps": 27, "reduction_factor": 3},
    ),
    "searched epochs": (
        f"""
        method: random
        {LOSS}
        parameters: {{num-epochs: {{values: [10, 20, 40]}}, width: {{min: 1, max: 3}}}}
        """,
        {"num_trials": 4},
        {"max_steps": [10, 20, 40], "width": {"randint": [1, 3]}},
        {"kind": "random", "num_trials": 4},
    ),
    "searched range of epochs in a grid of ranges": (
        f"""
        method: grid
        {LOSS}
        parameters:
          trainer.n_epochs: {{distribution: int_uniform, min: 2, max: 4}}
          depth: {{min: 1, max: 3}}
        """,
        {},
        {"max_steps": [2, 3, 4], "depth": [1, 2, 3]},
        {"kind": "grid"},
    ),
    "booleans of YAML 1.1": (
        f"""
        method: grid
        {LOSS}
        parameters:
          augment: {{values: [yes, no]}}
          norm: {{values: [on, off]}}
          max_epochs: {{value: 3}}
          word: {{value: 'no'}}
        """,
        {},
        {"augment": [True, False], "norm": [True, False], "word": "no"},
        {"kind": "grid", "max_steps": 3},
    ),
    "constants that are lists": (
        f"""
        method: grid
        {LOSS}
        parameters:
          layers: {{value: [64, 64]}}
          filters: {{values: [[55, 110, 220], [32, 96, 256]]}}
          none: {{value: null}}
          n_epochs: {{value: 7}}
        """,
        {},
        {"layers": [[64, 64]], "filters": [[55, 110, 220], [32, 96, 256]], "none": None},
        {"kind": "grid", "max_steps": 7},
    ),
    "nested parameters and a goal to reach": (
        """
        method: random
        metric: {name: acc, goal: maximize, target: 0.97}
        parameters:
          model:
            parameters:
              arch: {values: [unet, manet]}
              head: {parameters: {dropout: {min: 0.0, max: 0.5}}}
          optim.max_epoch: {value: 9}
        run_cap: 10
        """,
        {},
        {"model.arch": ["unet", "manet"], "model.head.dropout": {"uniform": [0, 0.5]}},
        {"kind": "random", "num_trials": 10, "max_steps": 9},
    ),
    "a grid with a cap": (
        f"""
        method: grid
        run_cap: 2
        {LOSS}
        parameters: {{seed_of_data: {{values: [1, 2, 3]}}, epoch: {{value: 4}}}}
        """,
        {},
        {"seed_of_data": [1, 2, 3]},
        {"kind": "asha", "sampler": "grid", "num_trials": 2, "min_steps": 4, "max_steps": 4},
    ),
    "a grid with early termination": (
        f"""
        method: grid
        {LOSS}
        parameters: {{lr: {{values: [0.1, 0.01]}}, bs: {{values: [16, 32]}}, epochs: {{value: 20}}}}
        early_terminate: {{type: hyperband, min_iter: 5, eta: 2}}
        """,
        {},
        {"lr": [0.1, 0.01], "bs": [16, 32]},
        {**ASHA, "sampler": "grid", "num_trials": 4, "min_steps": 5, "max_steps": 20, "reduction_factor": 2},
    ),
    "probabilities": (
        f"""
        method: random
        {LOSS}
        parameters:
          depth: {{values: [null, 2, 3], probabilities: [0.7, 0.2, 0.1]}}
          split: {{distribution: categorical_w_probabilities, values: [a, b], probabilities: [0.9, 0.1]}}
        """,
        {"num_trials": 3, "max_steps": 2},
        {
            "depth": {"choice": [None, 2, 3], "weights": [0.7, 0.2, 0.1]},
            "split": {"choice": ["a", "b"], "weights": [0.9, 0.1]},
        },
        {"kind": "random", "num_trials": 3, "max_steps": 2},
    ),
    "exponents of e": (
        f"""
        method: bayes
        {LOSS}
        parameters:
          lr: {{distribution: log_uniform, min: -9.21, max: -2.3}}
          a: {{distribution: inv_log_uniform, min: 1, max: 2}}
        """,
        {"num_trials": 3, "max_steps": 2},
        {"lr": {"loguniform": [math.exp(-9.21), math.exp(-2.3)]}, "a": {"loguniform": [math.exp(-2), math.exp(-1)]}},
        {"kind": "asha", "sampler": "tpe", "num_trials": 3, "min_steps": 2, "max_steps": 2},
    ),
    "normal, and steps that are fractions": (
        f"""
        method: random
        {LOSS}
        parameters:
          x: {{distribution: normal, mu: 2, sigma: 3}}
          y: {{distribution: q_normal, mu: 2, q: 0.5}}
          z: {{distribution: q_uniform, min: 0, max: 1, q: 0.25}}
          v: {{distribution: inv_log_uniform_values, min: 1e-3, max: 1}}
        """,
        {"num_trials": 3, "max_steps": 2},
        {
            "x": {"normal": [2, 3]},
            "y": {"normal": [2, 1], "step": 0.5},
            "z": {"uniform": [0, 1], "step": 0.25},
            "v": {"loguniform": [1e-3, 1]},
        },
        {"kind": "random", "num_trials": 3, "max_steps": 2},
    ),
    "whole numbers between halves": (
        f"""
        method: random
        {LOSS}
        parameters:
          trees: {{distribution: q_log_uniform_values, min: 9.5, max: 3000.5}}
          freq: {{distribution: int_uniform, min: 4.0, max: 10.0}}
        """,
        {"num_trials": 3, "max_steps": 2},
        {"trees": {"lograndint": [10, 3000]}, "freq": {"randint": [4, 10]}},
        {"kind": "random", "num_trials": 3, "max_steps": 2},
    ),
    "fields of a project, and a command": (
        f"""
        program: src/train.py
        project: seg
        entity: lab
        name: sweep one
        description: for the paper
        method: grid
        {LOSS}
        command:
          - ${{env}}
          - python
          - src.train
          - ${{args_no_hyphens}}
        parameters: {{opt/lr: {{values: [!!float 1e-3]}}, data.batch_size: {{values: [8, 16]}}}}
        """,
        {"max_steps": 3},
        {"opt/lr": [0.001], "data.batch_size": [8, 16]},
        {"kind": "grid", "max_steps": 3},
    ),
    "steps passed beside epochs": (
        f"""
        method: bayes
        {LOSS}
        parameters: {{epochs: {{values: [5, 10]}}, lr: {{values: [0.1]}}, none: {{values: [None, 'null', 1_000]}}}}
        """,
        {"max_steps": 50, "num_trials": 4},
        {"lr": [0.1], "none": ["None", "null", 1000]},
        {"kind": "asha", "sampler": "tpe", "num_trials": 4, "min_steps": 50, "max_steps": 50},
    ),
    "a goal that is left out": (
        "{method: grid, metric: {name: loss}, parameters: {a: {values: [1, 2]}, epochs: {value: 2}}}",
        {},
        {"a": [1, 2]},
        {"kind": "grid", "max_steps": 2},
    ),
    "a sweep without a metric": (
        "{method: grid, parameters: {a: {values: [16:9, b]}, ratio: {value: '16:9'}, steps: {values: [12]}}}",
        {"metric": "loss", "mode": "min"},
        {"a": [969, "b"], "ratio": ["16:9"]},
        {"kind": "grid", "max_steps": 12},
    ),
}


def imported_study(tmp_path: Path, text: str, **given: Any) -> Json:
    path = tmp_path / "sweep.yaml"
    path.write_text(text)
    answer = import_study(path, **{"trainer": "digits", **given})
    (tmp_path / "study.yaml").write_text(answer.to_yaml())
    assert StudySpec.from_file(tmp_path / "study.yaml") == StudySpec(**answer.study)
    return answer.study


@pytest.mark.parametrize("name", SHAPES)
def test_shapes(name: str, tmp_path: Path) -> None:
    text, given, space, tuner = SHAPES[name]
    study = imported_study(tmp_path, text, **given)
    assert study["space"] == space
    assert study["tuner"] == tuner


def test_multiples_keep_their_chances(tmp_path: Path) -> None:
    """`{q: 8, min: 32, max: 256}`, as in W&B's manual: whole numbers, each as likely as numbers that round to it."""
    bs = "{distribution: q_log_uniform_values, q: 8, min: 32, max: 256}"
    text = f"{{method: random, run_cap: 3, metric: {{name: x}}, parameters: {{bs: {bs}}}}}"
    entry = imported_study(tmp_path, text, max_steps=3)["space"]["bs"]
    assert entry["choice"] == list(range(32, 257, 8))
    assert math.fsum(entry["weights"]) == pytest.approx(math.log(256 / 32), rel=1e-5)
    assert entry["weights"][1] == pytest.approx(math.log(44 / 36), rel=1e-5)


def test_a_goal_a_target_and_strictness(tmp_path: Path) -> None:
    study = imported_study(tmp_path, SHAPES["nested parameters and a goal to reach"][0])
    assert (study["mode"], study["target"]) == ("max", 0.97)
    assert imported_study(tmp_path, SHAPES["hyperband by max_iter"][0])["value"] == "last"


def test_ignored_fields_are_named(tmp_path: Path) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(SHAPES["fields of a project, and a command"][0])
    notes = import_study(path, trainer="x", max_steps=3).notes
    places = [note.partition(":")[0] for note in notes]
    assert places == ["program", "project", "entity", "description", "command"]
    assert "src.train" in notes[-1] and "wandb:seg" in notes[1]
    path.write_text(SHAPES["steps passed beside epochs"][0])
    answer = import_study(path, trainer="x", max_steps=50, num_trials=4)
    assert answer.notes == ["parameters.epochs: is left out, since max_steps is passed: 50"]
    path.write_text(
        "{method: random, parameters: {lr: {distribution: log_uniform, min: 1e-5, max: 0.01}}, metric: {name: x}}"
    )
    (note,) = import_study(path, trainer="x", max_steps=2, num_trials=2).notes
    assert note.startswith("parameters.lr: draws from 1.00001 to 1.01005: log_uniform has exponents")


BASE: Json = {
    "method": "random",
    "run_cap": 8,
    "metric": {"name": "acc", "goal": "maximize"},
    "parameters": {"lr": {"min": 0.1, "max": 0.2}, "epochs": {"value": 12}},
}


def parameter(**fields: Any) -> Json:
    return {"parameters": {"lr": fields, "epochs": {"value": 12}}}


REFUSED: list[tuple[Json, str]] = [
    ({"method": "annealing"}, "method: must be one of grid, random, bayes, got 'annealing'"),
    ({"method": "Random"}, "method: must be one of grid, random, bayes, got 'Random'; did you mean random?"),
    ({"metric": {"name": "a", "goal": "maximise"}}, "metric.goal: must be minimize or maximize, got 'maximise'; did"),
    ({"metric": {"name": "a", "goal": "Maximize"}}, "metric.goal: must be minimize or maximize, got 'Maximize'; did"),
    ({"metric": {"name": "a", "goal": "max"}}, "metric.goal: must be minimize or maximize, got 'max'; did you mean ma"),
    ({"metric": "loss"}, "metric: must be an object, got 'loss': write metric: {name: loss, goal: minimize}"),
    ({"metric": {"name": "a", "gaol": "maximize"}}, "metric.gaol: is no field of this format; did you mean goal?"),
    (
        {"metric": None},
        "metric: is missing: the name of the metric that the trainer returns; pass metric=..., or --met",
    ),
    ({"metric": {"goal": "minimize"}}, "metric: is missing"),
    ({"run_cap": None}, "num_trials: is missing: how many configurations are tried; pass num_trials=..., or --num-tri"),
    ({"run_cap": "8"}, "run_cap: must be a whole number, got '8'"),
    ({"runcap": 3}, "runcap: is no field of this format; did you mean run_cap?"),
    ({"parameters": {"lr": {"values": [1]}}}, "max_steps: is missing: for how many steps a trial is trained"),
    ({"parameters": {"lr": None, "epochs": {"value": 3}}}, "parameters.lr: must have value, values, or min and max"),
    (
        {"parameters": {"lr": 0.1, "epochs": {"value": 3}}},
        "parameters.lr: must have value, values, or min and max, got",
    ),
    (
        {"parameters": {"epochs": {"value": 1e1}}},
        "parameters.epochs: must be a whole number of steps, got 10.0: write 10",
    ),
    (
        {"parameters": {"epochs": {"value": 3}, "steps": {"value": 9}}},
        "parameters.epochs: may be the length of a trial",
    ),
    ({"parameters": {"epochs": {"min": 0.5, "max": 3}, "a": {"value": 1}}}, "parameters.epochs: must be whole numbers"),
    (parameter(min=1), "parameters.lr: must have value, values, or min and max"),
    (parameter(min=1, max=2, distribution="beta"), "parameters.lr.min: does not go with beta, which has a, b"),
    (parameter(a=1, b=2, distribution="beta"), "parameters.lr.distribution: beta has no counterpart: write {uniform"),
    (parameter(mu=1, distribution="log_normal"), "parameters.lr.distribution: log_normal has no counterpart: write"),
    (
        parameter(min=1, max=2, distribution="unifrom"),
        "parameters.lr.distribution: must be one of constant, categorical",
    ),
    (parameter(mu=1.1, q=0.3, distribution="q_normal"), "parameters.lr.q: must divide 1.1, from which steps"),
    (parameter(mu=1, q=3, distribution="q_normal"), "parameters.lr.q: gives whole numbers, and normal gives floats"),
    (parameter(values=[1], value=2), "parameters.lr.values: does not go with constant, which has value"),
    (parameter(values=[1], distribution="uniform"), "parameters.lr.min: is missing: uniform needs min and max"),
    (parameter(vlaues=[1]), "parameters.lr: must have value, values, or min and max"),
    (parameter(min=1, max=2, mim=3), "parameters.lr.mim: does not go with int_uniform, which has min, max"),
    (parameter(min="1", max=2), "parameters.lr.min: must be a number, got '1'"),
    (parameter(value={"a": 1}), "parameters.lr.value: is an object (a): give each of its fields a hyper-parameter"),
    (parameter(values=[{"a": 1}]), "parameters.lr.values[0]: is an object (a)"),
    (parameter(min=3, max=2), "parameters.lr: must be [lowest, highest], but 3 is more than 2"),
    (parameter(min=0.0, max=2, distribution="log_uniform_values"), "parameters.lr: must have bounds above 0"),
    (parameter(min=1, max=900, distribution="log_uniform"), "parameters.lr.max: is an exponent of e, got 900"),
    ({"early_terminate": {"type": "envelope"}}, "early_terminate.type: must be hyperband, got 'envelope'"),
    ({"early_terminate": {"type": "hyperband"}}, "early_terminate.min_iter: is missing"),
    ({"early_terminate": {"type": "hyperband", "min_iter": 3, "etta": 2}}, "early_terminate.etta: is no field of this"),
    ({"early_terminate": {"type": "hyperband", "min_iter": 2.5}}, "early_terminate.min_iter: must be a whole number"),
    (
        {"method": "bayes", "parameters": {"epochs": {"values": [1, 2]}}},
        "parameters.epochs: is searched, and asha decid",
    ),
]


@pytest.mark.parametrize(("change", "problem"), REFUSED)
def test_refused_files(change: Json, problem: str) -> None:
    changed = {name: value for name, value in {**BASE, **change}.items() if value is not None}
    with pytest.raises(NotImported) as refused:
        import_study(changed, "wandb", trainer="x")
    assert any(line.startswith(problem) for line in str(refused.value).splitlines()), refused.value


def test_all_problems_at_once() -> None:
    with pytest.raises(NotImported) as refused:
        import_study({"method": "random", "parameters": {"lr": None}})
    places = [each.field for each in refused.value.problems]
    assert places == ["parameters.lr", "max_steps", "num_trials", "metric", "mode", "trainer"]


def test_the_fields_alone() -> None:
    with pytest.warns(UserWarning, match="epochs: is max_steps here, 12"):
        fields = from_wandb(BASE)
    assert fields == {
        "metric": "acc",
        "mode": "max",
        "space": {"lr": {"uniform": [0.1, 0.2]}},
        "tuner": {"kind": "random", "num_trials": 8, "max_steps": 12},
    }
    StudySpec(name="x", trainer="x", **fields)
