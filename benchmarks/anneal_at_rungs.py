"""ASHA by cooldowns at rungs against plain ASHA, at equal steps: which finds the trial that is best once it has cooled?

    python benchmarks/anneal_at_rungs.py [--seeds 12] [--only annealing|multi_power|recorded] [--record]

Virtual time, pure: the real tuners on a virtual slot; losses follow from the schedules of trials by a law of `laws.py`
(Tissue et al. 2024, Luo et al. 2025), with a rate that may be too large and two other numbers, a task a seed. Recorded
ones are of 48 configurations of `examples/charlm`, of which a task has 24 by chance: `--record` trains them anew.

A study has 81 draws, or 24. A trial warms up and holds its rate; only a decay shows its worth. Both sides have eta 3
and the same rungs, 6 to 162 steps, or to 54; ours has a `rung_value`, and as many steps in all as plain ASHA takes:
cooldowns are paid for by fewer trials. Then the winner of each side, its best trial at the highest rung that it came
to, is trained to the end and decayed over a tenth more; plain ASHA is given that for nothing. All of them, trained
so, give the best possible result. `best found`: how often the winner is the best of them. `regret`: how far its loss is
from the best one, in hundredths of the distance from there to the median. With standard errors of the mean, and of
the difference, seed by seed.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

import numpy as np
from laws import Task

from app.domain import events as e
from app.domain.rung_values import cooldown_hp
from app.domain.search_plan import Node, SearchPlan, Trial
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree.sequences import parse
from stagetree.spec import StudySpec

Json = dict[str, Any]
STUDY = StudyId("study")
TRIALS, ETA, STEPS, WARMUP, COOLDOWN = 81, 3, 162, 4, 0.1
LEAST, SHAPE = 6, "sqrt"
TAIL = round(COOLDOWN * STEPS)

DATA = Path(__file__).parent / "data" / "charlm_anneal.json"
EXAMPLE = Path(__file__).parents[1] / "examples" / "charlm"
TAILS = {6: 2, 18: 2, 54: 5}
"""Of the recorded ones, the rungs and the steps of the cooldown at each."""
POOL, DRAWN = 48, 24


@dataclass(frozen=True)
class Setting:
    """Configurations of a study, and the loss of each on any schedule. `loss(hp, step)`: after this step.

    steps: of a whole trial, without its last cooldown of `tail` steps.
    """

    configurations: list[Json]
    loss: Callable[[Json, int], float]
    steps: int = STEPS
    tail: int = TAIL


def law(name: str, seed: int) -> Setting:
    """A synthetic task. The rates are from a twentieth of the usual one to four times it."""
    chance, task = Random(f"{name}/{seed}"), Task(name, seed)

    @cache
    def losses(written: str) -> Any:
        hp = json.loads(written)
        lr = parse(hp["lr"])
        rates = np.array([float(lr.at(step)) for step in range(STEPS + TAIL)])  # type: ignore[arg-type]
        return task.losses(np.maximum(rates, 0.0), {each: parse(hp[each]).at(0) for each in ("wd", "beta")})  # type: ignore[misc]

    def one() -> Json:
        peak = 0.05 * 80 ** chance.random()
        lr = {"family": "warmup", "steps": WARMUP, "then": peak}
        return written({"lr": lr, "wd": chance.random(), "beta": chance.random()})

    configurations = [one() for _ in range(TRIALS)]
    return Setting(configurations, lambda hp, step: float(losses(json.dumps(hp))[step - 1]))


def written(hp: Mapping[str, Any]) -> Json:
    return {name: parse(value).to_json() for name, value in hp.items()}


def recorded(seed: int) -> Setting:
    """A draw of the recorded configurations, which differ in their rates."""
    rows = Random(f"recorded/{seed}").sample(json.loads(DATA.read_text()), DRAWN)
    by_rate = {parse(row["hp"]["lr"]).at(WARMUP): row for row in rows}

    def loss(hp: Json, step: int) -> float:
        rates = parse(hp["lr"])
        row = by_rate[rates.at(WARMUP)]
        if rates.at(step - 1) == rates.at(WARMUP):
            return float(row["trunk"][str(step)])
        return float(row["cooled"][str(max(rung for rung in TAILS if rung < step))])

    return Setting([written(row["hp"]) for row in rows], loss, steps=54, tail=TAILS[54])


def record(number: int) -> Json:
    """Train a configuration of the pool to its rungs, and from each through a cooldown: its losses by rung."""
    import torch

    sys.path.insert(0, str(EXAMPLE))
    chance = Random(f"pool/{number}")
    lr = {"family": "warmup", "steps": WARMUP, "then": 0.0008 * 80 ** chance.random()}
    hp: Json = {"lr": lr, "weight_decay": chance.random(), "bs": chance.choice([16, 32])}
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trainer = import_module("trainer").CharLM(seed=0, device="cpu", layers=1, width=32, batches_per_step=4)
    row: Json = {"hp": hp, "trunk": {}, "cooled": {}}

    def train(hp: Json, begin: int, end: int) -> float:
        sequences = {name: parse(value) for name, value in hp.items()}
        for step in range(begin, end):
            trainer.setup({name: sequence.at(step) for name, sequence in sequences.items()})
            trainer.train()
        return round(trainer.evaluate()["val_loss"], 5)

    for begin, (rung, tail) in zip((0, *TAILS), TAILS.items(), strict=False):
        row["trunk"][rung] = train(hp, begin, rung)
        state = deepcopy(trainer.state_dict())
        row["cooled"][rung] = train(
            cooldown_hp(hp, rung, tail, falling=["lr"], shape=SHAPE, final=0.0), rung, rung + tail
        )
        trainer.load_state_dict(state)
    return row


SETTINGS: dict[str, Callable[[int], Setting]] = {
    "recorded": recorded,
    "annealing": lambda seed: law("annealing", seed),
    "multi_power": lambda seed: law("multi_power", seed),
}


# ------------------------------------------------------------------------------------------------------------ one study


def study(setting: Setting, tuner: Json, budget: int | None) -> Simulator:
    """A study to its end, on one slot; without a budget, as many steps as it takes."""
    spec: Json = {
        "name": "study",
        "trainer": "law",
        "metric": "loss",
        "mode": "min",
        "space": dict.fromkeys(setting.configurations[0], 0.5),
        "tuner": {"kind": "asha", "min_steps": LEAST, "max_steps": setting.steps, "eta": ETA} | tuner,
    }
    spec["tuner"] |= {"first": setting.configurations, "sampler": "random", "distinct": False}
    spec["tuner"]["num_trials"] = len(setting.configurations)
    if budget is not None:
        spec["max_total_steps"] = budget

    def measure(node: Node, step: int) -> e.Metrics:
        return {"loss": setting.loss(dict(node.hp), step)}  # of all that pass it, equal up to there

    world = Simulator(slots=1, measure=measure)
    world.submit(STUDY, StudySpec.from_dict(spec).to_json())
    world.run()
    return world


def winner(plan: SearchPlan) -> Trial | None:
    """The trial whose value at the highest rung is the best, its trunk where that is a cooldown's."""
    found, trials = plan.studies[STUDY], plan.studies[STUDY].trials
    is_cooled = "rung_value" in found.tuner
    best: tuple[float, float, int] | None = None
    for trial in trials:
        if is_cooled and trial.cooldown_of is None:
            continue
        for step in trial.requested_steps:
            value = (plan.metrics(trial, step) or {}).get("loss")
            at = trial.reason.get("at", step)
            number = trial.number if trial.cooldown_of is None else trial.cooldown_of
            if value is not None and (best is None or (-at, value, number) < best):
                best = (-at, value, number)
    return None if best is None else trials[best[2]]


def worth(setting: Setting, hp: Json) -> float:
    """The loss of a configuration that was trained to the end and has cooled."""
    at, tail = setting.steps, setting.tail
    return setting.loss(cooldown_hp(hp, at, tail, falling=["lr"], shape=SHAPE, final=0.0), at + tail)


def compared(setting: Setting) -> dict[str, tuple[bool, float, int]]:
    """Of each side, whether it found the best, its regret, and the steps that it ran."""
    values = [worth(setting, hp) for hp in setting.configurations]
    best, spread = min(values), median(values) - min(values)
    plain = study(setting, {}, None)
    budget = plain.plan.studies[STUDY].executed
    found = {
        "plain": plain,
        "by cooldowns": study(setting, {"rung_value": {"cooldown": COOLDOWN, "shape": SHAPE}}, budget),
    }
    rows = {}
    for side, world in found.items():
        trial = winner(world.plan)
        assert trial is not None
        value = worth(setting, trial.hp)
        rows[side] = value == best, 100 * (value - best) / spread, world.plan.studies[STUDY].executed
    return rows


# ---------------------------------------------------------------------------------------------------------------- print


def mean(values: list[float]) -> str:
    error = np.std(values, ddof=1) / len(values) ** 0.5
    return f"{np.mean(values):.1f} ± {error:.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=12)
    parser.add_argument("--only", choices=SETTINGS)
    parser.add_argument("--record", action="store_true", help="train the recorded configurations anew")
    options = parser.parse_args()
    if options.record:
        DATA.write_text("[\n" + ",\n".join(json.dumps(record(number)) for number in range(POOL)) + "]\n")
        return
    print("| setting | ASHA | best found, % | regret | steps |\n|---|---|---|---|---|")
    for name in [options.only] if options.only else SETTINGS:
        rows = [compared(SETTINGS[name](seed)) for seed in range(options.seeds)]
        for side in rows[0]:
            hits = mean([100.0 * row[side][0] for row in rows])
            regret = mean([row[side][1] for row in rows])
            steps = np.mean([row[side][2] for row in rows])
            print(f"| {name} | {side} | {hits} | {regret} | {steps:.0f} |", flush=True)
        hits = mean([100.0 * (row["by cooldowns"][0] - row["plain"][0]) for row in rows])
        regret = mean([row["by cooldowns"][1] - row["plain"][1] for row in rows])
        print(f"| {name} | difference | {hits} | {regret} | |", flush=True)


if __name__ == "__main__":
    main()
