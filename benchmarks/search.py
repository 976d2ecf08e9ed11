"""Which sampler finds the better trial? Ours, as studies that a user submits, and Optuna, Syne Tune and NePS.

    python benchmarks/search.py [--data FOLDER] [--tuner asha|whole] [--slots 1] [--noise 0.0] [--budget 20]
        [--seeds 24] [--first 0] [--jobs 2] [--only NAME,...] [--arms "NAME;..."] [--keep]
    python benchmarks/search.py --table
    python benchmarks/search.py --record

The tasks are in `benchmarks/search_tasks.py`; FOLDER holds taskset_*.npz. A budget is a number of whole trials, as
`max_total_steps`. `asha` stops trials at rungs and promotes a third; `whole` trains each one to its end. With
noise, every result has an error of its own, whose standard deviation is this part of the distance from the best loss to
the median of random trials.

Both sides have the same tasks, seeds, noise, rungs and steps. A run counts by the true loss of the trial that its user
would pick, the best at the most steps that any reached: as a regret, of which 0 is the best there is, and 1 the median
of random trials. Printed is its mean over seeds with the standard error; at the end the mean over tasks, and the
difference from random trials of the same task and seed. `--keep` keeps these figures in `benchmarks/data/search.jsonl`,
from which `--table` makes the table of docs/samplers.md. `--record` trains the schedules of `charlm` anew, in twenty
minutes or so.
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
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from peers.environments import python_of
from peers.samplers import ARMS as PEERS
from peers.samplers import FULL_LENGTH_ONLY, Values, peer, spend
from search_tasks import DATA, ENDS_ONLY, MADE, Hp, Task, recorded_tasks, regret

from app.domain import events as e
from app.domain.search_plan import Node
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree.space import Choice, Space
from stagetree.spec import StudySpec
from stagetree.spec.tuners.halving import DEFAULT_SAMPLER, MOST_MODELLED

RUNGS, ETA = 4, 3

ARMS: dict[str, dict[str, Any]] = {
    "default": {},
    "random": {"sampler": "random"},
    "tpe": {"sampler": "tpe"},
    "tpe per_rung: false": {"sampler": "tpe", "per_rung": False},
    "tpe per_rung: true": {"sampler": "tpe", "per_rung": True},
    "gp": {"sampler": "gp"},
    "cmaes": {"sampler": "cmaes"},
    "sobol": {"sampler": "sobol"},
    "trunks": {"sampler": "trunks"},
    "random, stopping": {"sampler": "random", "type": "stopping"},
    "tpe, stopping": {"sampler": "tpe", "type": "stopping"},
}
"""Fields of the tuner. The other arms are Optuna's samplers with its pruner, and those of `peers/samplers.py`."""
OPTUNAS = ("optuna random", "optuna tpe", "optuna gp")


@dataclass(frozen=True)
class Run:
    """One search. budget: in steps."""

    task: str
    arm: str
    seed: int
    tuner: str
    slots: int
    noise: float
    budget: int
    data: Path | None

    def result(self) -> float:
        """Its regret."""
        task = task_of(self.task, self.seed, self.data)
        search = with_optuna if self.arm in OPTUNAS else with_peer if self.arm in PEERS else with_study
        return regret(task, search(self, task, Results(task, self)))


@cache
def makers(data: Path | None) -> dict[str, Callable[[int], Task]]:
    return {**dict(recorded_tasks(data)), **MADE}


def task_of(name: str, seed: int, data: Path | None) -> Task:
    return makers(data)[name](seed)


class Results:
    """The results of a search, and the trial that its user would pick."""

    def __init__(self, task: Task, run: Run) -> None:
        best, middle = task.scale
        self._task, self._seed, self._deviation = task, run.seed, run.noise * (middle - best)
        self._told: list[tuple[int, float, float]] = []

    def measure(self, hp: Hp, step: int) -> float:
        """The loss with its noise."""
        true = self._task.loss(hp, step)
        chance = Random(f"{self._seed}/{json.dumps(hp, sort_keys=True)}/{step}")
        told = true + self._deviation * chance.gauss(0, 1)
        self._told.append((-step, told, true))
        return told

    def picked(self) -> float:
        """The true loss of the best trial at the most steps."""
        return min(self._told)[2]


def study_of(run: Run, task: Task) -> StudySpec:
    """As its user submits it, with as many trials as a study may have by the default sampler. Its budget ends it."""
    least = max(1, task.steps // ETA ** (RUNGS - 1)) if run.tuner == "asha" else task.steps
    steps = {"num_trials": min(run.budget, MOST_MODELLED), "min_steps": least, "max_steps": task.steps, "eta": ETA}
    fields = {"name": "search", "trainer": "recorded", "metric": "loss", "mode": "min", "space": task.space}
    tuner = {"kind": "asha", **steps, **ARMS[run.arm]}
    spec = StudySpec.from_dict({**fields, "seed": run.seed, "tuner": tuner, "max_total_steps": run.budget})
    return spec.fill_in(sampling_seed=run.seed)


def with_study(run: Run, task: Task, results: Results) -> float:
    def measure(node: Node, step: int) -> e.Metrics:
        return {"loss": results.measure(node.hp, step)}

    simulator = Simulator(slots=run.slots, measure=measure, keep_every=max(1, task.steps // 10))
    simulator.submit(StudyId("search"), study_of(run, task).to_json())
    simulator.run()
    return results.picked()


def with_optuna(run: Run, task: Task, results: Results) -> float:
    """Its samplers as they are, with its successive halving."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    samplers = {
        "optuna random": optuna.samplers.RandomSampler,
        "optuna tpe": optuna.samplers.TPESampler,
        "optuna gp": optuna.samplers.GPSampler,
    }
    pruner = optuna.pruners.SuccessiveHalvingPruner(min_resource=rungs_of(run, task)[0], reduction_factor=ETA)
    study = optuna.create_study(sampler=samplers[run.arm](seed=run.seed), pruner=pruner)
    spend(lambda: training(task, study.ask(), rungs_of(run, task), results), run.slots, run.budget)
    return results.picked()


def rungs_of(run: Run, task: Task) -> list[int]:
    """The steps at which a trial may be stopped, and its length."""
    least = max(1, task.steps // ETA ** (RUNGS - 1)) if run.tuner == "asha" else task.steps
    return [*[least * ETA**rung for rung in range(RUNGS) if least * ETA**rung < task.steps], task.steps]


def with_peer(run: Run, task: Task, results: Results) -> float:
    """As `with_optuna`: by the tool's own samplers and its own successive halving."""
    space = Space(task.space, steps=task.steps)

    def measure(values: Values, step: int) -> float:
        inside = {place: within(space.parameters()[place], value) for place, value in values.items()}
        return results.measure({name: each.to_json() for name, each in space.build(inside).items()}, step)

    parameters = {place: parameter_fields(free) for place, free in space.parameters().items()}
    fields = {"arm": run.arm, "seed": run.seed, "space": parameters, "rungs": rungs_of(run, task)}
    tool = PEERS[run.arm].tool
    peer(python_of(tool), tool).search({**fields, "slots": run.slots, "budget": run.budget}, measure)
    return results.picked()


def within(free: Any, value: Any) -> Any:
    """NePS may round a value to just outside of its range."""
    return value if isinstance(free, Choice) else min(free.high, max(free.low, value))


def parameter_fields(free: Any) -> dict[str, Any]:
    if isinstance(free, Choice):
        return {"options": len(free.options)}
    return {"low": free.low, "high": free.high, "log": free.is_log, "whole": free.is_whole}


def training(task: Task, trial: Any, rungs: list[int], results: Results) -> Iterator[int]:
    """The steps to each rung, until the pruner stops the trial or it is at its end."""
    configuration = Space(task.space, steps=task.steps).compose(lambda place, free: suggested(trial, place, free))
    hp, before, study = {name: each.to_json() for name, each in configuration.items()}, 0, trial.study
    for rung in rungs:
        yield rung - before
        before, value = rung, results.measure(hp, rung)
        trial.report(value, rung)
        if rung < task.steps and trial.should_prune():
            study.tell(trial, state=_pruned())
            return
    study.tell(trial, value)


def _pruned() -> Any:
    from optuna.trial import TrialState

    return TrialState.PRUNED


def suggested(trial: Any, place: str, free: Any) -> Any:
    if isinstance(free, Choice):
        return trial.suggest_categorical(place, range(len(free.options)))
    if free.low == free.high:
        return free.low
    if free.is_whole:
        return trial.suggest_int(place, free.low, free.high, log=free.is_log)
    return trial.suggest_float(place, free.low, free.high, log=free.is_log)


def record_schedules() -> None:
    """Train every schedule of `charlm_trunks.yaml`, and keep its result."""
    import yaml

    file = DATA / "charlm_trunks.yaml"
    command = [sys.executable, "-m", "stagetree", "run", str(file), "--slots", "1", "-o", "json"]
    study, rows = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout), []
    for trial in study["trials"]:
        lr, hp = trial["hp"]["lr"], trial["hp"]
        key = [lr["peak"], lr["decay"], lr["shape"], lr["final"], hp["bs"]["value"], hp["weight_decay"]["value"]]
        rows.append([*key, round(trial["value"], 5)])
    space, lines = yaml.safe_load(file.read_text())["space"], ",\n".join(map(json.dumps, sorted(rows, key=json.dumps)))
    (DATA / "charlm_trunks.json").write_text(f'{{"space": {json.dumps(space)}, "values": [\n{lines}]}}\n')


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--tuner", choices=["asha", "whole"], default="asha")
    parser.add_argument("--slots", type=int, default=1)
    parser.add_argument("--noise", type=float, default=0.0)
    parser.add_argument("--budget", type=int, default=20, help="in whole trials")
    parser.add_argument("--seeds", type=int, default=24)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="", help="names of tasks")
    parser.add_argument("--arms", default="random;tpe;tpe per_rung: false;tpe per_rung: true;optuna tpe")
    parser.add_argument("--keep", action="store_true", help="keep the figures for the table")
    parser.add_argument("--table", action="store_true", help="print the table of the figures on file")
    parser.add_argument("--record", action="store_true", help="train the recorded schedules anew")
    arguments = parser.parse_args()
    if arguments.table:
        print(table())
        return
    if arguments.record:
        record_schedules()
        return
    arms = arguments.arms.split(";")
    if arguments.tuner != "whole" and FULL_LENGTH_ONLY & set(arms):
        parser.error(f"{' and '.join(sorted(FULL_LENGTH_ONLY & set(arms)))}: must be with --tuner whole")
    if arguments.keep and "random" not in arms:
        parser.error("--keep: must come with the arm random, which the others are compared with")
    asked = arguments.only.split(",") if arguments.only else makers(arguments.data)
    tasks = [name for name in asked if arguments.tuner == "whole" or name != ENDS_ONLY]
    found = dict[tuple[str, str], list[float]]()
    print(f"{'task':<28}" + "".join(f"{arm:>22}" for arm in arms))
    with ProcessPoolExecutor(arguments.jobs) as pool:
        for name in tasks:
            for arm in arms:
                runs = [run_of(arguments, name, arm, arguments.first + seed) for seed in range(arguments.seeds)]
                found[name, arm] = list(pool.map(Run.result, runs))
            print(row(name, [found[name, arm] for arm in arms]), flush=True)
    print(row("all", [[value for name in tasks for value in found[name, arm]] for arm in arms]))
    if "random" in arms:
        print(row("less random", [differences(found, tasks, arm) for arm in arms]))
    if arguments.keep:
        keep(arguments, {(name, arm): (found[name, arm], found[name, "random"]) for name, arm in found})


def differences(found: Mapping[tuple[str, str], list[float]], tasks: list[str], arm: str) -> list[float]:
    """The regret of each run, less that of random trials of the same task and seed."""
    pairs = (zip(found[name, arm], found[name, "random"], strict=True) for name in tasks)
    return [mine - chance for pair in pairs for mine, chance in pair]


def run_of(arguments: argparse.Namespace, name: str, arm: str, seed: int) -> Run:
    steps = task_of(name, seed, arguments.data).steps * arguments.budget
    return Run(name, arm, seed, arguments.tuner, arguments.slots, arguments.noise, steps, arguments.data)


KEPT = DATA / "search.jsonl"


def keep(arguments: argparse.Namespace, found: Mapping[tuple[str, str], tuple[list[float], list[float]]]) -> None:
    """Add a line for each task and arm. In place of earlier ones of the same setting, task and arm."""
    setting = {name: getattr(arguments, name) for name in ("tuner", "slots", "noise", "budget")}
    lines = {tuple(line[name] for name in KEY): line for line in kept()}
    for (task, arm), (regrets, chance) in found.items():
        mean, error = mean_of(regrets)
        less, less_error = mean_of([mine - other for mine, other in zip(regrets, chance, strict=True)])
        figures = {"seeds": len(regrets), "mean": mean, "error": error, "less": less, "less_error": less_error}
        line = {**setting, "task": task, "arm": arm, **figures}
        lines[tuple(line[name] for name in KEY)] = line
    KEPT.write_text("".join(json.dumps(lines[key]) + "\n" for key in sorted(lines)))


KEY = ("tuner", "slots", "noise", "budget", "task", "arm")


def kept() -> list[dict[str, Any]]:
    return [json.loads(line) for line in KEPT.read_text().splitlines()] if KEPT.exists() else []


def table() -> str:
    """Of each setting and sampler: the mean regret over tasks, and in how many tasks it differs clearly from chance."""
    rows = ["| trials | sampler | regret | better than random | worse |", "|---|---|---|---|---|"]
    for setting, lines in groupby(kept(), lambda line: [line[name] for name in KEY[:4]]):
        by_arm = dict[str, list[dict[str, Any]]]()
        for line in lines:
            by_arm.setdefault(line["arm"], []).append(line)
        for arm, tasks in sorted(by_arm.items(), key=lambda each: fmean(line["mean"] for line in each[1])):
            rows.append(f"| {setting_text(*setting)} | {arm_text(arm)} | {regret_text(tasks)} | {clearly(tasks)} |")
    return "\n".join(rows)


def setting_text(tuner: str, slots: int, noise: float, budget: int) -> str:
    stopping = "stopped at rungs" if tuner == "asha" else "of full length"
    error = f", noise {noise:g}" if noise else ""
    return f"{stopping}, the steps of {budget}, {slots} slot{'s' if slots > 1 else ''}{error}"


def arm_text(arm: str) -> str:
    if arm in PEERS:
        return PEERS[arm].title
    if arm in OPTUNAS:
        return f"Optuna's {arm.removeprefix('optuna ').upper()}"
    return f"`{arm}`, the default" if arm == DEFAULT_SAMPLER else f"`{arm}`"


def regret_text(tasks: list[dict[str, Any]]) -> str:
    error = sum(line["error"] ** 2 for line in tasks) ** 0.5 / len(tasks)
    return f"{fmean(line['mean'] for line in tasks):.3f} ± {error:.3f}"


def clearly(tasks: list[dict[str, Any]]) -> str:
    """The tasks in which the difference from random trials is more than two of its standard errors."""
    better, worse = ([line for line in tasks if sign * line["less"] > 2 * line["less_error"] > 0] for sign in (-1, 1))
    names = f": {', '.join(line['task'] for line in worse)}" if worse else ""
    return f"in {len(better)} of {len(tasks)} | in {len(worse)}{names}"


def mean_of(values: list[float]) -> tuple[float, float]:
    """With its standard error."""
    return round(fmean(values), 4), round(stdev(values) / len(values) ** 0.5, 4)


def row(name: str, columns: list[list[float]]) -> str:
    cells = ("{:.3f} ± {:.3f}".format(*mean_of(values)) for values in columns)
    return f"{name:<28}" + "".join(f"{cell:>22}" for cell in cells)


if __name__ == "__main__":
    main()
