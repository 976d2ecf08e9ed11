"""Merge or decay: is a mean of states at full rate as good as a decay, and does it rank trials as well?

    python -m benchmarks.figures.merge_or_decay [--seeds 3] [--tasks 4] [--slots 2] [--dir FOLDER]

Trains the language model of `examples/charlm`, small, as studies that a user would submit, some twenty minutes on two
cores; then writes `docs/merge-or-decay.md` (`python -m benchmarks.figures.merge_or_decay_page` writes it again).

Values: for each seed one trunk at full rate. At each of four lengths end three decays, which branch off it, and means
of the trunk's last states: over the same shares of the training as the decays, equally weighted, or with the weights
that imitate the decay.

Rungs: for each task 12 configurations of rate, weight decay and batch size. Successive halving (6, 18 and 54 steps)
ranks them by their own losses, by losses of cooldowns, or by losses of means. All configurations trained to the end and
cooled give the best possible choice.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

import stagetree
from app.simulation.preview import count_steps
from benchmarks.figures import merge_or_decay_page as page
from stagetree import StudySpec
from stagetree.local_server import LocalServer
from stagetree.sequences.merging import merge_weights

Json = dict[str, Any]
TRAINER = Path(__file__).parents[2] / "examples" / "charlm" / "trainer.py"
STUDY: Json = {"trainer": "charlm", "metric": "val_loss", "mode": "min", "check": False, "audit": 0}

LENGTHS, SHARES = (30, 60, 90, 120), (0.1, 0.2, 0.4)
PEAK, WARMUP, SHAPE = 0.01, 5, "sqrt"
WEIGHTS: Json = {"imitating": {"decay": SHAPE}, "equal": "uniform"}
MODEL: Json = {"layers": 1, "width": 48, "batches_per_step": 8}

CONFIGURATIONS, RUNGS, SHARE = 12, (6, 18, 54), 0.2
TAIL = round(SHARE * RUNGS[-1])
SMALL: Json = {"layers": 1, "width": 32, "batches_per_step": 4}
SPACE: Json = {
    "lr": {"family": "warmup", "steps": 2, "then": {"loguniform": [0.001, 0.06]}},
    "weight_decay": {"uniform": [0.0, 1.0]},
    "bs": [16, 32],
}
RANKED: Json = {
    "own losses": None,
    "cooldowns": {"cooldown": SHARE, "shape": SHAPE},
    "means": {"merge": 3, "window": SHARE, "weights": {"decay": SHAPE}},
}

# ------------------------------------------------------------------------------------------------------------- values


def trunk_study(seed: int) -> Json:
    """The trunk at each length, and the decays that branch off it. States are kept all along."""
    decays = {"family": "wsd", "peak": PEAK, "warmup": WARMUP, "shape": SHAPE}
    decays["decay"] = {"choice": [{"ratio": share} for share in SHARES]}
    rates = [{"family": "warmup", "steps": WARMUP, "then": PEAK}, decays]
    space = {"max_steps": list(LENGTHS), "lr": rates, "bs": 32, "weight_decay": 0.1}
    fields = {"name": f"trunk-{seed}", "seed": seed, "trainer_args": MODEL, "keep_every": 1}
    return STUDY | fields | {"space": space, "tuner": {"kind": "grid"}}


def values(server: LocalServer, seeds: int) -> Iterator[Json]:
    """The loss of each trunk, decay and mean."""
    studies = [server.create(trunk_study(seed)) for seed in range(seeds)]
    for study in studies:
        study.wait()
    means = [each for study in studies for each in average_trunks(study)]
    for seed, study in enumerate(studies):
        study.wait()
        yield from ({"seed": seed, **each} for each in trained_values(study))
    for (study, number), how in means:
        yield {"seed": studies.index(study), **how, "loss": value_of(study, number)}


def unique_steps() -> int | None:
    """The steps of the study of a seed."""
    return count_steps(StudySpec.from_dict(trunk_study(0)))


def average_trunks(study: Any) -> Iterator[tuple[tuple[Any, int], Json]]:
    """Ask for all means of states of the trunk. Yields each trial with how it was made."""
    trunks = {trial.steps: trial.trial for trial in study.trials if trial.hp["lr"]["family"] == "warmup"}
    for length in LENGTHS:
        for share in SHARES:
            steps = range(length - round(share * length), length + 1)
            for name, weights in WEIGHTS.items():
                made = study.soup([trunks[length]], last=len(steps), weights=merge_weights(steps, weights)).trial
                assert sorted(part.step for part in made.average_of) == [*steps]
                yield (study, made.trial), {"length": length, "by": f"{name} mean", "share": share}


def trained_values(study: Any) -> Iterator[Json]:
    for trial in study.trials:
        if trial.trial < len(LENGTHS) * (1 + len(SHARES)):
            is_trunk = trial.hp["lr"]["family"] == "warmup"
            share = 0.0 if is_trunk else trial.hp["lr"]["decay"] / trial.steps
            by = "trunk" if is_trunk else "decay"
            yield {"length": trial.steps, "by": by, "share": round(share, 3), "loss": trial.value}


def value_of(study: Any, number: int) -> float:
    return next(trial.value for trial in study.trials if trial.trial == number)


# -------------------------------------------------------------------------------------------------------------- rungs


def halving_study(task: int, by: str) -> Json:
    tuner: Json = {"kind": "sha", "num_trials": CONFIGURATIONS, "min_steps": RUNGS[0], "max_steps": RUNGS[-1]}
    tuner |= {"reduction_factor": 3, "sampling_seed": task}
    tuner |= {} if RANKED[by] is None else {"rung_value": RANKED[by]}
    fields = {"name": f"by-{by.replace(' ', '-')}-{task}", "seed": task, "trainer_args": SMALL}
    return STUDY | fields | {"space": SPACE, "tuner": tuner}


def finished_study(task: int, configurations: list[Json]) -> Json:
    """All configurations, trained to the last rung and cooled as there."""
    trials = [{"hp": hp | {"lr": cooled(hp["lr"])}, "steps": RUNGS[-1] + TAIL} for hp in configurations]
    fields = {"name": f"finished-{task}", "seed": task, "trainer_args": SMALL}
    return STUDY | fields | {"tuner": {"kind": "trials", "trials": trials}}


def cooled(rate: Json) -> Json:
    then = rate["then"]["value"] if isinstance(rate["then"], dict) else rate["then"]
    tail = {"stable_until": RUNGS[-1], "decay": TAIL, "shape": SHAPE}
    return {"family": "wsd", "peak": then, "warmup": rate["steps"], **tail}


def rungs(server: LocalServer, tasks: int) -> Iterator[Json]:
    """By what trials are ranked, the regret of the choice and its steps, for each task."""
    studies = {(task, by): server.create(halving_study(task, by)) for task in range(tasks) for by in RANKED}
    for study in studies.values():
        study.wait()
    finished = [
        server.create(finished_study(task, [trial.hp for trial in studies[task, "own losses"].trials]))
        for task in range(tasks)
    ]
    for study in finished:
        study.wait()
    for (task, by), study in studies.items():
        yield {"task": task, "by": by, **judged(study, [trial.value for trial in finished[task].trials])}


def judged(study: Any, worth: list[float]) -> Json:
    """How good the choice of a study is, and how well its values at the first rung order the configurations."""
    numbers = {trial.trial: number for number, trial in enumerate(own_trials(study))}
    regret = worth[numbers[trunk_of(study.trials[study.best.trial])]] - min(worth)
    first = first_values(study)
    return {
        "regret": regret,
        "relative": regret / (median(worth) - min(worth)),
        "is_best": regret == 0,
        "order": rank_correlation([first[number] for number in numbers], worth),
        "steps": study.answer.steps.unique,
    }


def own_trials(study: Any) -> list[Any]:
    """The trials of the configurations, without their cooldowns and means."""
    return [trial for trial in study.trials if trunk_of(trial) == trial.trial]


def trunk_of(trial: Any) -> int:
    others = (each for each in (trial.cooldown_of, trial.merge_of) if each is not None)
    return next(others, trial.trial)


def first_values(study: Any) -> dict[int, float]:
    """By trial, the value at the first rung that it was ranked by."""
    ranked = sorted(
        (trial.steps, trunk_of(trial), trial.value) for trial in study.trials if trunk_of(trial) != trial.trial
    )
    if ranked:
        return {trunk: value for _, trunk, value in reversed(ranked)}
    return {trial.trial: study.curve(trial.trial)[RUNGS[0]] for trial in own_trials(study)}


def rank_correlation(one: list[float], other: list[float]) -> float:
    """Spearman's."""
    ranks = [np.argsort(np.argsort(values)) for values in (one, other)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


# --------------------------------------------------------------------------------------------------------------- main


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tasks", type=int, default=4)
    parser.add_argument("--slots", type=int, default=2)
    parser.add_argument("--dir", type=Path, help="keep the studies there; by default they are not kept")
    options = parser.parse_args()
    began = time.monotonic()
    with (
        TemporaryDirectory() as folder,
        stagetree.local(options.slots, dir=options.dir or folder, trainers=[TRAINER]) as server,
    ):
        found: Json = {"values": [*values(server, options.seeds)], "rungs": [*rungs(server, options.tasks)]}
    minutes = round((time.monotonic() - began) / 60, 1)
    found |= {"minutes": minutes, "slots": options.slots, "configurations": CONFIGURATIONS, "unique": unique_steps()}
    page.DATA.write_text(json.dumps(found, indent=1) + "\n")
    page.main()


if __name__ == "__main__":
    main()
