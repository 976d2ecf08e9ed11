import json
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from toys import SMALLEST

from stagetree.sequences import Constant, MultiStep
from stagetree.space import Space
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.tuners import AshaTuner, GridTuner, RandomTuner, TrialsTuner
from tests.strategies import configurations

STEPPED = {"family": "multistep", "init": 0.1, "milestones": [20, 30], "gamma": 0.1}
GRID = {
    "name": "digits-grid",
    "trainer": "digits",
    "trainer_args": {"width": 32},
    "metric": "val_accuracy",
    "mode": "max",
    "space": {"lr": [STEPPED, 0.1], "bs": [64, 128]},
    "tuner": {"kind": "grid", "max_steps": 40},
}
RANDOM = {"kind": "random", "num_trials": 3, "max_steps": 40}
PBT = {"kind": "pbt", "population_size": 4, "ready_steps": 10, "max_steps": 40}
SHA = {"kind": "sha", "num_trials": 8, "min_steps": 1, "max_steps": 9, "eta": 2}


def trials(*listed: Any) -> dict[str, Any]:
    study = GRID | {"tuner": {"kind": "trials", "trials": list(listed)}}
    del study["space"]
    return study


@pytest.mark.parametrize("tuner", [GridTuner(max_steps=1), AshaTuner(**SHA | {"kind": "asha"}, sampler="grid")])
def test_a_grid_of_which_nothing_is_wanted_is_not_made_to_its_end(
    tuner: GridTuner | AshaTuner, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("stagetree.space.space.MAX_TESTED", 100)
    asked: list[Any] = []

    def is_never_wanted(configuration: Any) -> bool:
        asked.append(configuration)
        assert len(asked) <= 100
        return False

    space = Space.parse({f"p{number}": list(range(10)) for number in range(20)}, is_never_wanted)
    tuner.check(SimpleNamespace(search_space=space))  # type: ignore[arg-type]
    assert len(asked) == 100


def curve_study(kind: str, **fields: Any) -> dict[str, Any]:
    return GRID | {"tuner": {"kind": kind, "num_trials": 9, "max_steps": 40, **fields}}


def omit(name: str) -> dict[str, Any]:
    return {field: value for field, value in GRID.items() if field != name}


def test_a_study_has_its_defaults() -> None:
    spec = StudySpec.from_dict(GRID)
    assert (spec.seed, spec.eval_every, spec.priority, spec.merge, spec.where) == (0, None, 1, True, None)
    assert spec.tuner == GridTuner(max_steps=40)


def test_json_is_canonical_and_read_back() -> None:
    spec = StudySpec.from_dict(GRID | {"where": "bs == 64", "eval_every": 10})
    assert list(spec.to_json()) == [name for name in StudySpec.model_fields if name in spec.to_json()]
    assert StudySpec.from_dict(json.loads(json.dumps(spec.to_json()))) == spec
    assert StudySpec.from_dict(spec.to_json()).to_json() == spec.to_json()
    assert spec.to_json()["merge"] is True


@given(st.lists(st.tuples(configurations("ab"), st.integers(1, 99)), min_size=1, max_size=3))
def test_trials_of_any_family_are_read_back(listed: list[Any]) -> None:
    spec = StudySpec.from_dict(trials(*({"hp": hp, "steps": steps} for hp, steps in listed)))
    assert list(spec.configurations()) == [hp for hp, _ in listed]
    assert StudySpec.from_dict(json.loads(json.dumps(spec.to_json()))) == spec


def test_configurations_of_each_kind() -> None:
    grid = StudySpec.from_dict(GRID | {"where": "bs == 64"})
    assert list(grid.configurations()) == [
        {"lr": MultiStep(0.1, [20, 30], 0.1), "bs": Constant(64)},
        {"lr": Constant(0.1), "bs": Constant(64)},
    ]
    repeating = RANDOM | {"distinct": False}
    drawn = StudySpec.from_dict(GRID | {"tuner": repeating, "seed": 5})
    assert list(drawn.configurations()) == [drawn.search_space.sample(5, number) for number in range(3)]
    other = StudySpec.from_dict(GRID | {"tuner": repeating | {"seed": 6}, "seed": 5})
    assert list(other.configurations()) == [drawn.search_space.sample(6, number) for number in range(3)]


def test_a_study_in_python() -> None:
    spec = StudySpec(
        **omit("space") | {"tuner": RandomTuner(num_trials=2, max_steps=3), "space": {"lr": MultiStep(1, (2, 3), 0.5)}}
    )
    assert StudySpec.from_dict(spec.to_json()) == spec
    with pytest.raises(Exception, match="frozen"):
        spec.seed = 3  # type: ignore[misc]


@pytest.mark.parametrize("tuner", [{"kind": "grid", "max_steps": 40}, RANDOM])
def test_a_function_for_where_is_sent_as_the_trials_it_lets_through(tuner: Any) -> None:
    spec = StudySpec.from_dict(GRID | {"where": lambda hp: hp["bs"].at(0) == 64, "tuner": tuner})
    sent = StudySpec.from_dict(spec.to_json())
    assert isinstance(sent.tuner, TrialsTuner)
    assert list(sent.configurations()) == list(spec.configurations())
    assert {trial.steps for trial in sent.tuner.trials} == {40}


@pytest.mark.parametrize("other", ["max_t", "max_resource"])
def test_other_names_are_accepted(other: str) -> None:
    spec = StudySpec.from_dict(GRID | {"tuner": {"kind": "random", "num_samples": 3, other: 40}})
    assert spec.tuner == RandomTuner(num_trials=3, max_steps=40)
    assert spec.to_json()["tuner"] == RANDOM | {"distinct": True}


LR = {"lr": 0.1}
LINEAR = {"family": "linear", "init": 0.1, "slope": -0.01}


@pytest.mark.parametrize(
    ("study", "field", "problem"),
    [
        (omit("name"), "name", "is missing: a name for the study, of at most 200 characters"),
        (omit("tuner"), "tuner", "is missing: an object with a kind, which is one of grid, random, trials"),
        (omit("space"), "space", "is missing: an object from hyper-parameter to values"),
        (GRID | {"name": ""}, "name", "must be a name for the study, of at most 200 characters, got ''"),
        (GRID | {"name": " "}, "name", "must be a name for the study, of at most 200 characters, got ' '"),
        (GRID | {"sampler": "tpe"}, "sampler", "is no field of a study; did you mean tuner.sampler?"),
        (GRID | {"tuner": {"kind": "tpe"}}, "tuner.kind", "tpe is a sampler: {kind: asha, sampler: tpe}"),
        (GRID | {"space": {"lr": LINEAR, "max_steps": {"end": "lr"}}}, "tuner.max_steps",
         "must be left out: the space says max_steps, for each trial"),
        (GRID | {"trainer": 3}, "trainer", "must be the name of a trainer that is registered on the server, got 3"),
        (GRID | {"trainer_args": [1]}, "trainer_args",
         "must be an object of JSON values, the trainer's arguments, got [1]"),
        (GRID | {"trainer_args": {"a": [float("nan")]}}, "trainer_args.a[0]", "must be a finite number, a string"),
        (GRID | {"trainer_args": {"a": {1: 2}}}, "trainer_args.a", "must have strings for keys, got 1"),
        (GRID | {"trainer_args": {1: 2}}, "trainer_args[1]", "must be a string, as all keys, got 1"),
        (GRID | {"seed": "0"}, "seed", "must be a whole number from 0 to 4294967295, got '0'"),
        (GRID | {"seed": 1.5}, "seed", "must be a whole number from 0 to 4294967295, got 1.5"),
        (GRID | {"seed": True}, "seed", "must be a whole number from 0 to 4294967295, got True"),
        (GRID | {"seed": -1}, "seed", "must be a whole number from 0 to 4294967295, got -1"),
        (GRID | {"metric": None}, "metric",
         "must be the name of a metric that the trainer's evaluate returns, got None"),
        (GRID | {"mode": "maximum"}, "mode", "must be max or min: whether more or less of the metric is better, got"),
        (GRID | {"eval_every": 0}, "eval_every", "must be the number of steps between evaluations, at least 1, got 0"),
        (GRID | {"priority": -1}, "priority", "must be a number, 0 or more, got -1"),
        (GRID | {"priority": float("inf")}, "priority", "must be a number, 0 or more, got inf"),
        (GRID | {"ranks": 2}, "shards", "is missing: a power of two, and at least the ranks, 2"),
        (GRID | {"ranks": {"most": 4}, "parallel": "ddp"}, "ranks", "must be one number with parallel: ddp, whose"),
        (GRID | {"ranks": {"most": 4}, "parallel": "fsdp"}, "ranks", "must be one number with parallel: fsdp without"),
        (GRID | {"ranks": 2, "parallel": "ddp", "shards": 4}, "shards", "must be left out with parallel: ddp, where"),
        (GRID | {"parallel": "ddp"}, "ranks", "must be 2, 4, 8, ... with parallel: ddp, got 1"),
        (GRID | {"ranks": 2, "parallel": "ddp", "packing": 4}, "packing", "must be left out where several devices"),
        (GRID | {"merge": "no"}, "merge", "must be true, or false to train every trial alone from step 0, got 'no'"),
        (GRID | {"metrics": "x"}, "metrics", "must be a list of at most 10 objects with name and mode"),
        (GRID | {"space": []}, "space", "must be an object from hyper-parameter to values, got []"),
        (GRID | {"space": {}}, "space", "must name at least one hyper-parameter"),
        (GRID | {"space": {3: 4}}, "space[3]", "must be a string, as all keys, got 3"),
        (GRID | {"space": {"lr": {"uniform": [0, 1]}}}, "space.lr", "must be listed for a grid: uniform has no list"),
        (GRID | {"space": {"lr": [1, {"family": "multi"}]}}, "space.lr[1].family", "did you mean multistep?"),
        (GRID | {"space": {"lr": object()}}, "space.lr", "must be a finite number, a string, true, false, null"),
        (GRID | {"where": 3}, "where", "must be an expression over the space's hyper-parameters, in a string, got 3"),
        (GRID | {"where": "b == 64"}, "where",
         "at column 1, b is not a hyper-parameter: there are lr, bs; did you mean bs?"),
        (GRID | {"where": "bs == 32"}, "where", "must let at least one combination of the space through, got none"),
        (GRID | {"where": "bs == 32", "tuner": RANDOM}, "space", "must contain valid configurations: 1000 were"),
        (GRID | {"tuner": "grid"}, "tuner", "must be an object with a kind, which is one of grid, random, trials"),
        (GRID | {"tuner": {}}, "tuner.kind", "is missing: one of grid, random, trials"),
        (GRID | {"tuner": {"kind": "gird"}}, "tuner.kind", "got 'gird'; did you mean grid?"),
        (GRID | {"tuner": {"kind": "unheard-of"}}, "tuner.kind", "got 'unheard-of'"),
        (curve_study("pop", target="0.7"), "tuner.target", "must be a number, or a list of at least one num"),
        (curve_study("pop", target=[0.8, 0.7]), "tuner.target", "must be harder one after the other, got 0.8, 0.7"),
        (curve_study("pop", target=77, bounds=[0, 1]), "tuner.target",
         "must lie within tuner.bounds, [0.0, 1.0], got 77"),
        (curve_study("pop", target=[0.5, -1], bounds=[0, None]) | {"mode": "min"}, "tuner.target",
         "must lie within tuner.bounds, [0.0, None], got -1"),
        (curve_study("pop", max_time=0), "tuner.max_time", "must be a number of seconds above 0"),
        (curve_study("early_term", bounds=[1, 0]), "tuner.bounds", "must begin with the lesser one, got 1 and 0"),
        (curve_study("early_term", delta=2), "tuner.delta", "must be a number from 0 to 1: less likely trials end"),
        (GRID | {"tuner": {"kind": "median", "num_trials": 9, "max_t": 9}}, "tuner.interval", "or give eval_every"),
        (GRID | {"tuner": PBT | {"ready_steps": 41}}, "tuner.ready_steps", "must not be more than max_steps, 40,"),
        (GRID | {"tuner": PBT | {"fixed": ["lrr"]}}, "tuner.fixed[0]", "must be one of lr, bs, got 'lrr'; did you"),
        (GRID | {"tuner": PBT | {"quantile": 0.6}}, "tuner.quantile", "up to 0.5: the share that is replaced, got 0.6"),
        (GRID | {"tuner": SHA | {"eta": 3}}, "tuner.num_trials", "must be at least 9, so that one is trained for max_"),
        (GRID | {"tuner": {"kind": "external"}}, "space", "must be left out: the tuner external has no space"),
        (GRID | {"tuner": {"kind": "grid"}}, "tuner.max_steps",
         "is missing: the number of steps to train each trial for"),
        (GRID | {"tuner": {"kind": "grid", "max_steps": 0}}, "tuner.max_steps", "at least 1, got 0"),
        (GRID | {"tuner": {"kind": "grid", "max_t": -3}}, "tuner.max_t", "at least 1, got -3"),
        (GRID | {"tuner": {"kind": "grid", "max_steps": 4.5}}, "tuner.max_steps", "at least 1, got 4.5"),
        (GRID | {"tuner": RANDOM | {"max_t": 3}}, "tuner.max_t",
         "is another name for max_steps, which is there already"),
        (GRID | {"tuner": RANDOM | {"num_trial": 3}}, "tuner.num_trial", "did you mean num_trials?"),
        (trials(), "tuner.trials", "must be a list of at least one {hp: {...}, steps: n}, got []"),
        (trials(3), "tuner.trials[0]", "must be an object with hp and steps, got 3"),
        (trials({"hp": LR, "steps": 0}), "tuner.trials[0].steps",
         "must be the number of steps to train for, at least 1, got 0"),
        (trials({"hp": {}, "steps": 1}), "tuner.trials[0].hp", "must name at least one hyper-parameter"),
        (trials({"hp": 3, "steps": 1}), "tuner.trials[0].hp",
         "must be an object from hyper-parameter to sequence, got 3"),
        (trials({"hp": {"lr": [{}]}, "steps": 1}), "tuner.trials[0].hp.lr[0]", "must be a number, a string"),
        (trials({"hp": {"lr": {"family": "cos"}}, "steps": 1}), "tuner.trials[0].hp.lr.family", "did you mean cosine?"),
        (trials({"hp": LR, "steps": 1, "stps": 1}), "tuner.trials[0].stps", "did you mean steps?"),
        (trials({"hp": LR, "steps": 1}) | {"space": LR}, "space", "must be left out: the tuner trials has no space"),
        (trials({"hp": LR, "steps": 1}) | {"where": "lr == 1"}, "where",
         "must be left out: the tuner trials has no space"),
        *(
            (
                GRID | {"space": LR | {"max_steps": length}, "tuner": tuner},
                "space.max_steps",
                f"left out: {tuner['kind']} ",
            )
            for length in ([100, 150], {"end": "lr"}, 100)
            for tuner in (SHA, PBT, {"kind": "median", "num_trials": 3})
        ),
        ([GRID], "", "must be an object with the fields of a study, got [{"),
        (None, "", "must be an object with the fields of a study, got None"),
    ],
)  # fmt: skip
def test_errors_name_the_field_and_say_what_would_be_right(study: Any, field: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict(study)
    [found] = caught.value.problems
    assert found.field == field
    assert problem in found.problem
    assert "\n" not in found.problem


@pytest.mark.parametrize("tuner", [GRID["tuner"], RANDOM])
@pytest.mark.parametrize(
    ("sequence", "hint"),
    [
        (STEPPED | {"init": [0.1, 0.01]}, "{choice: [0.1, 0.01]}"),
        ({"family": "wsd", "peak": 0.1, "warmup": [5, 10], "stable_until": 30, "decay": 3}, "{choice: [5, 10]}"),
        ({"family": "one_cycle", "max": 0.1, "up": 5, "down": 5, "shape": ["linear"]}, "{choice: ['linear']}"),
        ({"family": "warmup", "steps": 5, "then": [0.1, 0.2]}, "{choice: [0.1, 0.2]}"),
    ],
)
def test_a_list_inside_a_sequence_is_answered_with_a_choice(tuner: Any, sequence: Any, hint: str) -> None:
    """The message spoke of a missing number; a list of shapes ended in a TypeError."""
    with pytest.raises(SpecError, match=re.escape(f"inside a sequence a choice is written {hint}")):
        StudySpec.from_dict(GRID | {"space": {"lr": sequence}, "tuner": tuner})


def test_all_problems_are_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict(GRID | {"seed": -1, "space": {"lr": [], "bs": {"family": "x"}}, "tuner": {"kind": "grid"}})
    assert [problem.field for problem in caught.value.problems] == [
        "seed",
        "space.lr",
        "space.bs.family",
        "tuner.max_steps",
    ]
    assert str(caught.value).splitlines() == [str(problem) for problem in caught.value.problems]


YAML = """
name: no
trainer: digits
metric: val_accuracy
mode: max
space:
  lr: [1e-4, 2E-3, .5, -1.5e+2, 010, 0x10]
  other: [yes, true, ~, 1:30, 2024-01-01, "1e-4"]
tuner: &t {kind: grid, max_steps: 40}
"""


def write(folder: Path, text: str, name: str = "study.yaml") -> Path:
    path = folder / name
    path.write_text(text)
    return path


def test_plain_yaml_values_mean_what_they_look_like(tmp_path: Path) -> None:
    spec = StudySpec.from_file(write(tmp_path, YAML))
    assert spec.name == "no"
    assert spec.space == {
        "lr": [1e-4, 2e-3, 0.5, -150.0, 10, 16],
        "other": ["yes", True, None, "1:30", "2024-01-01", "1e-4"],
    }


def test_a_file_in_json(tmp_path: Path) -> None:
    path = write(tmp_path, json.dumps(GRID, indent="\t"), "study.json")
    assert StudySpec.from_file(str(path)) == StudySpec.from_dict(GRID)


@pytest.mark.parametrize(
    ("text", "name", "line", "problem"),
    [
        ("a: 1\nname: [b", "s.yaml", ":2", "the [ that is opened here is not closed, or a comma is missing: ] ends it"),
        ("a: {b: [1],\nc: 2\nd: 3\n", "s.yaml", ":1", "the { that is opened here is not closed, or a comma is missing"),
        ("a: 'b\nc: 1\n", "s.yaml", ":1", "the quote that is opened here is not closed"),
        ("a: 1\nb\nc: 2\n", "s.yaml", ":2", "there is no colon behind this word: fields are written as name: value"),
        ("a: 1\nb: @", "s.yaml", ":2", "a value cannot begin with '@': put it in quotes"),
        ("a:\n\tb: 1\n", "s.yaml", ":2", "there is a tab here: YAML wants spaces"),
        ("a: b: c\n", "s.yaml", ":1", "a colon is not expected here: put a text with a colon in quotes"),
        ("a:\n  b: 1\n c: 2\n", "s.yaml", ":3", "this line has another indentation than its siblings"),
        ("a: 1\n- b\n", "s.yaml", ":2", "this line has another indentation than its siblings"),
        ("a: - b\n", "s.yaml", ":1", "a list cannot begin behind a field's name in this way: write [a, b]"),
        ("a: [1, 2]]\n", "s.yaml", ":1", "the value ends before this: a text with quotes, brackets or commas"),
        ("a: b\n---\nc: d\n", "s.yaml", ":2", "a second document begins here: a study file has one"),
        ("tuner: {kind:grid}\n", "s.yaml", ":1", "write kind: grid, with a space behind the colon"),
        (YAML + "name: again\n", "s.yaml", ":10", "the key 'name' is written twice"),
        (YAML + "seed: .nan\n", "s.yaml", ":10", "numbers must be finite, got .nan"),
        (YAML + "priority: -.inf\n", "s.yaml", ":10", "numbers must be finite, got -.inf"),
        (YAML + "3: 4\n", "s.yaml", ":10", "keys must be strings, got '3'"),
        ("a: !!python/object/apply:os.getcwd []", "s.yaml", ":1", "values have no tags such as !!python or !name"),
        ("a: \0", "s.yaml", "", "unacceptable character #x0000"),
        (YAML + "trainer_args: &a {a: *a}", "s.yaml", "", "must not be nested deeper than 50 levels"),
        ("[" * 5000, "s.yaml", "", "must not be nested this deeply"),
        ("- a\n- b", "s.yaml", "", "must be an object with the fields of a study, got ['a', 'b']"),
        ("", "s.yaml", "", "is empty: a study has at least name, trainer, metric and mode"),
        ('{"name": 3,\n "x" 3}', "s.json", ":2", "is not JSON: Expecting ':' delimiter"),
        ('{"name": 3, "name": 3}', "s.json", "", "the key 'name' is written twice"),
        ('{"name": NaN}', "s.json", "", "numbers must be finite, got NaN"),
    ],
)
def test_wrong_files_say_where(tmp_path: Path, text: str, name: str, line: str, problem: str) -> None:
    path = write(tmp_path, text, name)
    with pytest.raises(SpecError) as caught:
        StudySpec.from_file(path)
    assert str(caught.value).startswith(f"{path}{line}: ")
    assert problem in caught.value.problems[0].problem


def test_a_missing_study_file(tmp_path: Path) -> None:
    for path, problem in [
        (tmp_path / "none.yaml", "cannot be read: No such file or directory"),
        (tmp_path, "cannot be read: Is a directory"),
    ]:
        with pytest.raises(SpecError) as caught:
            StudySpec.from_file(path)
        assert caught.value.problems == [Problem("", problem)]
    (tmp_path / "latin.yaml").write_bytes(b"name: \xe9")
    with pytest.raises(SpecError, match="cannot be read: it is not UTF-8 text"):
        StudySpec.from_file(tmp_path / "latin.yaml")


def test_runtime_arguments_are_kept_beside_those_that_change_results() -> None:
    spec = StudySpec.from_dict({**SMALLEST, "runtime_args": {"data": "/mnt/data", "workers": 4}})
    assert StudySpec.from_dict(spec.to_json()) == spec
    assert spec.to_json()["runtime_args"] == {"data": "/mnt/data", "workers": 4}
    assert "runtime_args" not in StudySpec.from_dict(SMALLEST).to_json()


@pytest.mark.parametrize(
    ("fields", "field", "problem"),
    [
        ({"trainer_args": {"a": 1}, "runtime_args": {"a": 2}}, "runtime_args.a", "must be in one of trainer_args and"),
        ({"trainer_args": {"seed": 3}}, "trainer_args.seed", "must be left out: the trainer is given it by the worker"),
        ({"runtime_args": {"device": "cpu"}}, "runtime_args.device", "must be left out"),
    ],
)
def test_an_argument_has_one_place(fields: dict, field: str, problem: str) -> None:
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict({**SMALLEST, **fields})
    [found] = caught.value.problems
    assert (found.field, found.problem.startswith(problem)) == (field, True)


@pytest.mark.parametrize("fields", [{"metric": "a", "directions": ["maximize", "minimize"]}, {"metric": ["a", "b"]}])
def test_several_metrics_as_others_write_them_are_answered_with_ours(fields: dict[str, Any]) -> None:
    study = {"name": "x", "trainer": "t", "space": {"lr": [0.1]}, "tuner": {"kind": "grid", "max_steps": 3}}
    with pytest.raises(SpecError) as wrong:
        StudySpec.from_dict(study | fields)
    assert str(wrong.value).endswith("write metrics: [{name: val_acc, mode: max}, {name: seconds, mode: min}]")


STEPS = "must be the number of steps to train each trial for, at least 1"


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"parameters": {"lr": 0.1}}, "parameters: is not a field here: its name is space"),
        ({"method": "bayes"}, "method: is not a field here: its name is tuner"),
        ({"tuner": {"kind": "grid", "max_steps": 1e4}}, f"tuner.max_steps: {STEPS}, got 10000.0: write 10000"),
        (
            {"tuner": {"kind": "grid", "max_steps": 4.5}},
            f"tuner.max_steps: {STEPS}, got 4.5: it must be a whole number",
        ),
        ({"epochs": 9}, "epochs: is not a field here: max_steps of the tuner is meant for that"),
        ({"tuner": {**GRID["tuner"], "epochs": 9}}, "tuner.epochs: is not a field here: its name is max_steps"),
        ({"metrik": "loss"}, "metrik: is not a field here; did you mean metric?"),
    ],
)
def test_a_similar_field_is_suggested(changes: dict[str, Any], problem: str) -> None:
    """For `method` it asked whether mode was meant, and listed 45 fields."""
    with pytest.raises(SpecError) as caught:
        StudySpec.from_dict({**GRID, **changes})
    assert str(caught.value).splitlines()[-1] == problem


@pytest.mark.parametrize("field", ["trainer_args", "runtime_args"])
@pytest.mark.parametrize("nested", [lambda data: data, lambda data: [data], lambda data: {"a": data}])
def test_a_tensor_is_no_argument(field: str, nested: Any) -> None:
    """It became a list of numbers, in the study file."""
    for data in (torch.zeros(2), np.zeros((2, 2))):
        with pytest.raises(SpecError) as caught:
            StudySpec(**SMALLEST | {field: {"X": nested(data)}})
        [found] = caught.value.problems
        assert found.field.startswith(f"{field}.X")
        kind = type(data).__name__
        assert found.problem.startswith(
            f"must be JSON, got an object of type {kind}: data come by a file: torch.save(X"
        )
        assert 'runtime_args={"X": path}, inputs=[path]' in found.problem
    numbers = {"X": nested(np.float32(0.5)), "Y": nested(torch.tensor(3))}
    assert getattr(StudySpec(**SMALLEST | {field: numbers}), field) == {"X": nested(0.5), "Y": nested(3)}
