"""Search over trunks and their branches: the regret after equal numbers of steps that were trained.

    python benchmarks/trunk_search.py [--seeds 20] [--first 1000] [--jobs 2] [--only NAME] [--methods NAME,...]
        [--most 20]

Schedules are warm-up, stable, decay; what differs early must be trained anew, what differs late is a branch. Tasks are
synthetic, by two laws of annealing (`benchmarks/laws.py`; the optimum of each seed is elsewhere), and recorded: the
values in `benchmarks/data/charlm_trunks.json`, which `--record` makes from `examples/charlm` in some twenty minutes.

Every method has one slot, and the same budget in steps that are trained, in numbers of whole trials. `trunks`, `gp`,
`tpe` and `random` are studies of the product in its simulator, with sharing, and a state kept every tenth step of a
stage; `trunks` goes by its study's `max_total_steps`, and has a study for each budget. `optuna-tpe`, `optuna-gp` and
`neps-bo` are Optuna and NePS by themselves, which train every trial from the start. Printed is the mean regret with its
standard error: how far the best value is from the best there is, in parts of the distance from there to the median of
random trials.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # before numpy: one process a run, and the arrays are small

import argparse
import json
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from math import inf
from pathlib import Path
from random import Random
from statistics import mean, median, stdev
from typing import Any

import laws
import numpy as np

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree import StudySpec
from stagetree.sequences import parse
from stagetree.space import Choice, Space

DATA = Path(__file__).parent / "data"
BUDGETS = (8, 12, 20)
"""In whole trials."""
SYNTHETIC: dict[str, Any] = {
    "lr": {
        "family": "wsd",
        "peak": {"loguniform": [0.1, 4]},
        "warmup": {"randint": [1, 20]},
        "decay": {"randint": [4, 60]},
        "final": {"uniform": [0, 0.1]},
        "shape": {"choice": ["linear", "cosine", "sqrt"]},
    },
    "weight_decay": {"uniform": [0, 1]},
    "mix": {"family": "values", "values": [0.5, {"uniform": [0, 1]}], "milestones": [80]},
}


class Synthetic:
    """A law's task; `mix` is a mixture of data that changes at step 80, and counts by its last value."""

    steps = 100

    def __init__(self, law: str, seed: int) -> None:
        self._task = laws.Task(law, seed)
        self.space = SYNTHETIC

    def value(self, hp: Mapping[str, Any], step: int) -> float:
        rates = parse(hp["lr"])
        others = {name: float(parse(hp[name]).at(step - 1)) for name in ("weight_decay", "mix")}
        return float(self._task.losses(np.array([rates.at(at) for at in range(step)], float), others)[-1])


class Recorded:
    """What `examples/charlm` came to, for every schedule of a small space."""

    steps = 40

    def __init__(self, seed: int) -> None:
        recorded = json.loads((DATA / "charlm_trunks.json").read_text())
        self.space = recorded["space"]
        self.values = {tuple(key): value for *key, value in recorded["values"]}

    def value(self, hp: Mapping[str, Any], step: int) -> float:
        lr = hp["lr"]
        key = (lr["peak"], lr["decay"], lr["shape"], lr["final"], hp["bs"]["value"], hp["weight_decay"]["value"])
        return float(self.values[key]) if step == self.steps else 10.0


TASKS: dict[str, Callable[[int], Any]] = {
    "annealing": lambda seed: Synthetic("annealing", seed),
    "multi_power": lambda seed: Synthetic("multi_power", seed),
    "charlm": Recorded,
}


@cache
def scale(name: str, seed: int) -> tuple[float, float]:
    """The best value there is, as far as a long search finds it, and the median of random trials."""
    task = TASKS[name](seed)
    if isinstance(task, Recorded):
        return min(task.values.values()), median(task.values.values())
    space, chance = Space(task.space, steps=task.steps), Random(seed)
    found = sorted(map(_made_by(space, task, chance), ({} for _ in range(300))), key=lambda each: each[0])
    best, middle = found[0], found[150][0]
    for radius in np.geomspace(0.4, 0.01, 500):
        best = min(best, _made_by(space, task, chance, float(radius))(best[1]), key=lambda each: each[0])
    return best[0], middle


def _made_by(space: Space, task: Any, chance: Random, radius: float = 1.0) -> Callable[[Mapping[str, float]], Any]:
    """A trial whose values are as far from others, on a scale from 0 to 1, and its result."""

    def made(near: Mapping[str, float]) -> tuple[float, dict[str, float]]:
        shares = dict[str, float]()

        def choose(place: str, free: Any) -> Any:
            at = near.get(place, 0.5)
            shares[place] = min(
                0.999999, max(0.0, at + radius * (chance.random() - 0.5) * 2 if near else chance.random())
            )
            return free.at(shares[place])

        hp = {name: each.to_json() for name, each in space.compose(choose).items()}
        return task.value(hp, task.steps), shares

    return made


Found = list[tuple[int, float]]
"""The steps that were trained, and the best value by then."""


def study_of(task: Any, sampler: str, seed: int, most: int = BUDGETS[-1]) -> StudySpec:
    """The study as it is when a user submits it: nothing is drawn twice, rungs have models of their own.

    most: its budget, in whole trials.
    """
    lengths = {"num_trials": most * task.steps, "min_steps": task.steps, "max_steps": task.steps}
    tuner = {"kind": "asha", **lengths, "sampler": sampler, "sampling_seed": seed}
    fields = {"name": "s", "trainer": "t", "metric": "loss", "mode": "min", "space": task.space, "seed": seed}
    fields |= {"tuner": tuner, "max_total_steps": most * task.steps}
    return StudySpec.from_dict(fields, limits=None)


def studies(sampler: str) -> Callable[[Any, int, int], Found]:
    """A study of ours with this sampler."""

    def run(task: Any, seed: int, most: int) -> Found:
        def measure(node: Node, step: int) -> e.Metrics:
            return {"loss": task.value(node.hp, step)}

        simulator, name = Simulator(slots=1, measure=measure, keep_every=task.steps // 10), StudyId("s")
        simulator.submit(name, study_of(task, sampler, seed, most).to_json())
        found, best = Found(), inf
        while not (now := simulator.plan.studies[name]).is_final:
            simulator.advance()
            best = min(best, *(line.metrics["loss"] or inf for line in now.history[-3:] if line.metrics), inf)
            found.append((now.executed, best))
        return found

    return run


def optunas(kind: str) -> Callable[[Any, int, int], Found]:
    """Optuna by itself."""

    def run(task: Any, seed: int, most: int) -> Found:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        sampler = optuna.samplers.TPESampler(seed=seed) if kind == "tpe" else optuna.samplers.GPSampler(seed=seed)
        study, space, found = optuna.create_study(sampler=sampler), Space(task.space, steps=task.steps), Found()
        for number in range(most):
            trial = study.ask()
            hp = space.compose(lambda place, free, trial=trial: suggested(trial, place, free))
            study.tell(trial, task.value({name: each.to_json() for name, each in hp.items()}, task.steps))
            found.append(((number + 1) * task.steps, study.best_value))
        return found

    return run


def suggested(trial: Any, place: str, free: Any) -> Any:
    if free.low == free.high:
        return free.low
    if isinstance(free, Choice):
        return trial.suggest_categorical(place, range(len(free.options)))
    if free.is_whole:
        return trial.suggest_int(place, free.low, free.high)
    return trial.suggest_float(place, free.low, free.high, log=free.is_log)


def neps_bo(task: Any, seed: int, most: int) -> Found:
    """The Gaussian process of NePS by itself."""
    import neps
    import torch

    torch.manual_seed(seed)
    np.random.seed(seed)  # it draws from the global generator
    space, found, best, free_of = Space(task.space, steps=task.steps), Found(), inf, dict[str, Any]()
    space.compose(lambda place, free: free_of.setdefault(place, free).at(0.5))
    asked = neps.SearchSpace({place: _neps_result(free) for place, free in free_of.items() if free.low != free.high})
    optimizer = neps.AskAndTell(optimizer=neps.algorithms.bayesian_optimization(asked))
    for number in range(most):
        trial = optimizer.ask()
        hp = space.compose(lambda place, free, config=trial.config: config.get(place, free.low))
        value = task.value({name: each.to_json() for name, each in hp.items()}, task.steps)
        optimizer.tell(trial, value)
        best = min(best, value)
        found.append(((number + 1) * task.steps, best))
    return found


def _neps_result(free: Any) -> Any:
    import neps

    if isinstance(free, Choice):
        return neps.HPOCategorical(list(range(len(free.options))))
    kind = neps.HPOInteger if free.is_whole else neps.HPOFloat
    return kind(free.low, free.high, log=free.is_log)


METHODS: dict[str, Callable[[Any, int, int], Found]] = {
    **{name: studies(name) for name in ("trunks", "gp", "tpe", "random")},
    **{f"optuna-{kind}": optunas(kind) for kind in ("tpe", "gp")},
    "neps-bo": neps_bo,
}
USUAL = [name for name in METHODS if name != "neps-bo"]
"""NePS is in no environment of ours: `pip install neural-pipeline-search` beside the rest, and `--methods neps-bo`."""


def regrets(asked: tuple[str, str, int, int]) -> list[float]:
    """By budget, in parts of the distance from the best value to the median of random trials."""
    name, method, seed, most = asked
    task, (best, middle) = TASKS[name](seed), scale(name, seed)
    budgets = [budget for budget in BUDGETS if budget <= most]
    runs = {budget: METHODS[method](task, seed, budget) for budget in (budgets if method == "trunks" else [most])}
    by = [
        min((value for steps, value in runs.get(budget, runs[most]) if steps <= budget * task.steps), default=middle)
        for budget in budgets
    ]
    return [max(0.0, min(value, middle * 2) - best) / (middle - best) for value in by]


def record() -> None:
    """Train every schedule of the recorded space, and keep its result."""
    file = DATA / "charlm_trunks.yaml"
    command = [sys.executable, "-m", "stagetree", "run", str(file), "--slots", "1", "-o", "json"]
    keep(json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout))


def keep(study: Mapping[str, Any]) -> None:
    import yaml

    rows = []
    for trial in study["trials"]:
        lr, hp = trial["hp"]["lr"], trial["hp"]
        key = [lr["peak"], lr["decay"], lr["shape"], lr["final"], hp["bs"]["value"], hp["weight_decay"]["value"]]
        rows.append([*key, round(trial["value"], 5)])
    space = yaml.safe_load((DATA / "charlm_trunks.yaml").read_text())["space"]
    lines = ",\n".join(map(json.dumps, sorted(rows, key=json.dumps)))
    (DATA / "charlm_trunks.json").write_text(f'{{"space": {json.dumps(space)}, "values": [\n{lines}]}}\n')


def row(name: str, method: str, found: list[list[float]]) -> Iterator[str]:
    yield f"{name:<12} {method:<12}"
    for column in zip(*found, strict=True):
        yield f"{mean(column):7.3f} +- {stdev(column) / len(column) ** 0.5:.3f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, default=20)
    parser.add_argument("--first", type=int, default=1000, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="tasks with this in their name")
    parser.add_argument("--methods", default=",".join(USUAL))
    parser.add_argument("--most", type=int, default=BUDGETS[-1], help="the largest budget")
    parser.add_argument("--record", action="store_true", help="train the recorded task anew")
    arguments = parser.parse_args()
    if arguments.record:
        record()
        return
    print(
        f"{'task':<12} {'method':<12}"
        + "".join(f"{f'{budget} trials':>17}" for budget in BUDGETS if budget <= arguments.most)
    )
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name in (each for each in TASKS if arguments.only in each):
            for method in arguments.methods.split(","):
                seeds = range(arguments.first, arguments.first + arguments.seeds)
                found = list(pool.map(regrets, [(name, method, seed, arguments.most) for seed in seeds]))
                print("".join(row(name, method, found)), flush=True)


if __name__ == "__main__":
    main()
