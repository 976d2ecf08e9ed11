"""Studies of Optuna and spaces of Ray Tune: Python objects, not files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import optuna
import pytest

from stagetree import StudySpec
from stagetree.errors import StagetreeError
from stagetree.importers import NotImported, configurations_from_optuna, import_study, space_from_optuna

Json = dict[str, Any]
optuna.logging.set_verbosity(optuna.logging.ERROR)


def optimize(objective: Callable[[optuna.Trial], float], trials: int = 30, **options: Any) -> optuna.Study:
    study = optuna.create_study(**{"sampler": optuna.samplers.RandomSampler(seed=0), **options})
    study.optimize(objective, n_trials=trials)
    return study


def plain_space(trial: optuna.Trial) -> float:
    lr = trial.suggest_float("lr", 1e-4, 1e-1, log=True)
    bs, layers = trial.suggest_categorical("bs", [32, 64]), trial.suggest_int("layers", 1, 3)
    units = trial.suggest_int("units", 8, 64, log=True) * trial.suggest_int("stride", 2, 8, step=2)
    return lr * bs * layers * units + trial.suggest_float("dropout", 0, 0.5, step=0.25)


def test_a_plain_space() -> None:
    study = optimize(plain_space, direction="maximize")
    space = space_from_optuna(study)
    assert space == {
        "lr": {"loguniform": [1e-4, 0.1]},
        "bs": [32, 64],
        "layers": {"randint": [1, 3]},
        "units": {"lograndint": [8, 64]},
        "stride": {"randint": [2, 8], "step": 2},
        "dropout": {"uniform": [0.0, 0.5], "step": 0.25},
    }
    best = configurations_from_optuna(study, best=2)
    assert best[0] == study.best_params and len(best) == 2
    answer = import_study(study, trainer="t", metric="x", num_trials=4, max_steps=2)
    fields = {**answer.study, "tuner": {**answer.study["tuner"], "first": best}}
    hp = next(StudySpec(**fields).configurations())
    assert {name: value.at(0) for name, value in hp.items()} == study.best_params
    assert answer.study["mode"] == "max" and answer.study["tuner"]["kind"] == "random"


def optimizer_space(trial: optuna.Trial) -> float:
    name = trial.suggest_categorical("optimizer", ["adam", "sgd", "nesterov"])
    rate = trial.suggest_float("lr", 1e-3, 1.0)
    return rate if name == "adam" else rate * trial.suggest_float("momentum", 0.8, 0.99)


def depth_space(trial: optuna.Trial) -> float:
    depth = trial.suggest_int("depth", 1, 3)
    return float(sum(trial.suggest_int(f"width{number}", 4, 8) for number in range(depth)))


def kernel_space(trial: optuna.Trial) -> float:
    if trial.suggest_categorical("model", ["svm", "forest"]) == "forest":
        return float(trial.suggest_int("trees", 2, 9))
    if trial.suggest_categorical("kernel", ["rbf", "poly"]) == "poly":
        return float(trial.suggest_int("degree", 2, 4))
    return trial.suggest_categorical("gamma", ["scale", "auto"]) == "scale"


def conditional(entry: Any, **condition: Any) -> Json:
    return {"value": entry, "when": condition}


@pytest.mark.parametrize(
    ("objective", "expected"),
    [
        (optimizer_space, {"momentum": conditional({"uniform": [0.8, 0.99]}, optimizer=["nesterov", "sgd"])}),
        (
            depth_space,
            {
                "width0": {"randint": [4, 8]},
                "width1": conditional({"randint": [4, 8]}, depth=[2, 3]),
                "width2": conditional({"randint": [4, 8]}, depth=3),
            },
        ),
        (
            kernel_space,
            {
                "trees": conditional({"randint": [2, 9]}, model="forest"),
                "kernel": conditional({"choice": ["rbf", "poly"]}, model="svm"),
                "degree": conditional({"randint": [2, 4]}, kernel="poly"),
                "gamma": conditional({"choice": ["scale", "auto"]}, kernel="rbf"),
            },
        ),
    ],
)
def test_conditions(objective: Callable[[optuna.Trial], float], expected: Json) -> None:
    space = space_from_optuna(optimize(objective))
    for name, entry in expected.items():
        given = space[name]
        if isinstance(given, dict) and isinstance(given.get("when"), dict):
            given = {
                **given,
                "when": {key: sorted(each) if isinstance(each, list) else each for key, each in given["when"].items()},
            }
        assert given == entry
    assert import_study(optimize(objective), trainer="t", metric="x", num_trials=9, max_steps=2)


def value_dependent_range(trial: optuna.Trial) -> float:
    name = trial.suggest_categorical("optimizer", ["adam", "sgd"])
    return trial.suggest_float("lr", 1e-5, 1e-3 if name == "adam" else 1.0)


def ambiguous_condition(trial: optuna.Trial) -> float:
    is_sgd = trial.number % 2 == 0
    trial.suggest_categorical("a", [is_sgd] if trial.number < 0 else [True, False])
    return trial.suggest_float("x", 0, 1) if trial.number % 3 else 0.0


def test_a_range_that_changes_is_refused() -> None:
    problem = (
        r"lr: has another range in some trials \(\{'uniform': .*\} and .*\): give each a name of its own, such as lr_a"
    )
    with pytest.raises(NotImported, match=problem):
        space_from_optuna(optimize(value_dependent_range))
    with pytest.raises(NotImported, match="x: exists in some trials only, and no other parameter alone explains which"):
        space_from_optuna(optimize(ambiguous_condition))


def test_a_value_that_was_never_tried_is_no_condition() -> None:
    study = optuna.create_study()
    options = optuna.distributions.CategoricalDistribution(["adam", "sgd", "lion"])
    unit = optuna.distributions.FloatDistribution(0, 1)
    for name, others in (("adam", {}), ("sgd", {"momentum": 0.5})):
        distributions = {"optimizer": options, **dict.fromkeys(others, unit)}
        study.add_trial(
            optuna.create_trial(params={"optimizer": name, **others}, distributions=distributions, value=1.0)
        )
    with pytest.raises(
        NotImported, match="momentum: exists in some trials only, and no trial has tried optimizer 'lion'"
    ):
        space_from_optuna(study)


def test_a_study_without_trials() -> None:
    with pytest.raises(StagetreeError, match="has no trials yet"):
        space_from_optuna(optuna.create_study())


def test_a_storage(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/o.db"
    optimize(plain_space, 3, storage=url, study_name="first", sampler=None)
    answer = import_study(url, trainer="t", metric="x", num_trials=4, max_steps=2)
    assert answer.study["name"] == "first" and answer.study["tuner"]["sampler"] == "tpe"
    optimize(plain_space, 1, storage=url, study_name="second")
    with pytest.raises(StagetreeError, match="must have one study, and has first, second: in Python, import_study"):
        import_study(url)
    with pytest.raises(StagetreeError, match="the storage cannot be read"):
        import_study(f"sqlite:///{tmp_path}/no/o.db")


def test_several_directions() -> None:
    study = optuna.create_study(directions=["maximize", "minimize"])
    study.optimize(lambda trial: (trial.suggest_float("x", 0, 1), 1.0), n_trials=2)
    with pytest.raises(NotImported, match="directions: are several without names"):
        import_study(study, trainer="t", num_trials=4, max_steps=2)
    study.set_metric_names(["acc", "seconds"])
    metrics = import_study(study, trainer="t", num_trials=4, max_steps=2).study["metrics"]
    assert metrics == [{"name": "acc", "mode": "max"}, {"name": "seconds", "mode": "min"}]


# ------------------------------------------------------------------------------------------------------------ Ray Tune


class Sampler:
    def __init__(self, q: Any = None, inner: Any = None, mean: float = 0, sd: float = 1) -> None:
        self.q, self._inner, self.mean, self.sd = q, inner, mean, sd

    def get_sampler(self) -> Any:
        return self._inner


def sampler(name: str, **fields: Any) -> Any:
    return type(name, (Sampler,), {})(**fields)


def domain(kind: str, name: str = "_Uniform", q: Any = None, **fields: Any) -> Any:
    """A stand-in for a domain of Ray, which is not installed here."""
    inner = sampler(name, **{key: fields.pop(key) for key in ("mean", "sd") if key in fields})
    chosen = inner if q is None else sampler("Quantized", q=q, inner=inner)
    members = {"__module__": "ray.tune.search.sample", "get_sampler": lambda self: chosen, **fields}
    return type(kind, (), members)()


def uniform(low: float, high: float, **options: Any) -> Any:
    return domain("Float", lower=low, upper=high, **options)


def test_a_sampled_space() -> None:
    space = {
        "lr": uniform(1e-4, 1e-1, name="_LogUniform"),
        "wd": uniform(0, 1),
        "drop": uniform(0, 1, q=0.1),
        "bs": domain("Categorical", categories=[16, 32]),
        "n": domain("Integer", lower=1, upper=5),
        "m": domain("Integer", lower=8, upper=64, q=8),
        "k": domain("Integer", "_LogUniform", lower=1, upper=100),
        "z": domain("Float", "_Normal", lower=None, upper=None, mean=1, sd=2),
        "net": {"act": domain("Categorical", categories=["relu", [1, 2]]), "bias": True},
        "layers": [8, 8],
        "epochs": 10,
    }
    study = import_study(space, trainer="t", metric="x", mode="min", num_trials=4).study
    assert study["space"] == {
        "lr": {"loguniform": [1e-4, 1e-1]},
        "wd": {"uniform": [0, 1]},
        "drop": {"uniform": [0, 1], "step": 0.1},
        "bs": [16, 32],
        "n": {"randint": [1, 4]},
        "m": {"randint": [8, 64], "step": 8},
        "k": {"lograndint": [1, 99]},
        "z": {"normal": [1, 2]},
        "net.act": ["relu", [1, 2]],
        "net.bias": True,
        "layers": [[8, 8]],
    }
    assert study["tuner"] == {"kind": "random", "num_trials": 4, "max_steps": 10}


def test_a_grid() -> None:
    space = {"lr": {"grid_search": [0.1, 0.2]}, "opt": {"name": {"grid_search": ["adam", "sgd"]}}, "b": 3}
    study = import_study(space, trainer="t", metric="x", mode="min", max_steps=4).study
    assert study["space"] == {"lr": [0.1, 0.2], "opt.name": ["adam", "sgd"], "b": 3}
    assert study["tuner"] == {"kind": "grid", "max_steps": 4}


def test_parts_of_ray_that_no_study_has_are_refused() -> None:
    given: Json = {"trainer": "t", "metric": "x", "mode": "min", "num_trials": 2, "max_steps": 4}
    with pytest.raises(NotImported, match="f: is sample_from, a function: write when"):
        import_study({"f": domain("Function"), "x": uniform(0, 1)}, **given)
    with pytest.raises(NotImported, match="crosses grid_search with draws"):
        import_study({"f": {"grid_search": [1, 2]}, "x": uniform(0, 1)}, **given)
