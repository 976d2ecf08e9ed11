"""How far estimates of a step's seconds are off: TreeML's linear regression beside ours, on recorded times.

    python benchmarks/estimates.py            # from benchmarks/data/step_seconds.json
    python benchmarks/estimates.py --record   # record them anew: two minutes of one core

TreeML §5.2 estimates a stage's time "with linear regression on profiling results", from the hyper-parameters; ours
(`app.scheduling.costs`) is a ridge regression of the logarithm on logarithms. Both see the same: batch size, length of
the sequence, and two hyper-parameters that cost nothing. The recorded times are from the transformer of
`examples/charlm` on one core of a CPU, in some settings each. A number of settings is drawn as measured, as at the
beginning of a study; the seconds of all others are estimated. For each number, over many draws: the error as a part of
the true seconds, in the middle and at p90, how often seconds came out negative, and how often the
longer one of two stages was named, which is all that the critical path needs.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from itertools import combinations, product
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import NodeId
from app.scheduling.costs import Costs

DATA = Path(__file__).parent / "data" / "step_seconds.json"
TRAINER = Path(__file__).parents[1] / "examples" / "charlm" / "trainer.py"
BATCH_SIZES, LENGTHS = (4, 8, 16, 32, 64, 128), (8, 16, 32, 64)
STEPS = 5
DRAWS = 200

Setting = dict[str, float]
Estimate = Callable[[Sequence[Setting], Sequence[float], Sequence[Setting]], list[float]]
"""Seconds of some settings, from the seconds of others."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--record", action="store_true")
    if parser.parse_args().record:
        record()
    recorded = json.loads(DATA.read_text())
    settings, seconds = [each["hp"] for each in recorded["steps"]], [each["seconds"] for each in recorded["steps"]]
    print(f"{len(settings)} settings of {recorded['trainer']}, {recorded['on']}: {min(seconds)} to {max(seconds)} s")
    print(f"{'measured':>9} {'':<12} {'error':>8} {'p90':>8} {'negative':>9} {'longer':>8}")
    for measured in (4, 8, 16):
        for name, estimate in {"linear": linear, "ours": ours}.items():
            print(f"{measured:9} {name:<12} {row(estimate, settings, seconds, measured)}")


def row(estimate: Estimate, settings: Sequence[Setting], seconds: Sequence[float], measured: int) -> str:
    """The errors with this many measured settings, in the same draws for each way to estimate."""
    errors, negative, right = list[float](), list[bool](), list[bool]()
    for draw in range(DRAWS):
        known = sorted(Random(draw).sample(range(len(settings)), measured))
        others = [each for each in range(len(settings)) if each not in known]
        guessed = estimate(*([of[each] for each in known] for of in (settings, seconds)), [settings[i] for i in others])
        true = [seconds[each] for each in others]
        errors += [abs(guess - value) / value for guess, value in zip(guessed, true, strict=True)]
        negative += [guess <= 0 for guess in guessed]
        pairs = combinations(zip(guessed, true, strict=True), 2)
        right += [(a[0] > b[0]) == (a[1] > b[1]) for a, b in pairs]
    middle, high = np.quantile(errors, [0.5, 0.9])
    return f"{middle:8.0%} {high:8.0%} {np.mean(negative):9.1%} {np.mean(right):8.1%}"


def linear(known: Sequence[Setting], seconds: Sequence[float], others: Sequence[Setting]) -> list[float]:
    """Least squares of the seconds on the hyper-parameters, as they are."""
    rows = [np.array([[1.0, *each.values()] for each in some]) for some in (known, others)]
    weights = np.linalg.lstsq(rows[0], np.array(seconds), rcond=None)[0]
    return [float(guess) for guess in rows[1] @ weights]


def ours(known: Sequence[Setting], seconds: Sequence[float], others: Sequence[Setting]) -> list[float]:
    """As the scheduler estimates untrained settings by trained ones."""
    plan, costs = SearchPlan(), Costs()
    for number, (setting, each) in enumerate(zip(known, seconds, strict=True)):
        node = plan.nodes[NodeId(str(number))] = node_of(str(number), setting)
        node.add_timing("", STEPS, STEPS * each)
        plan.measured.append(node.id)
    plan.stages_run = len(known)
    costs.refit(plan)
    return [costs.seconds_per_step(node_of("other", setting)) for setting in others]


def node_of(name: str, setting: Setting) -> Node:
    hp: dict[str, Any] = {field: {"family": "constant", "value": value} for field, value in setting.items()}
    return Node(NodeId(name), None, 0, hp)


def record() -> None:
    """Train some steps in each setting, the settings in an order of no meaning."""
    import torch

    from stagetree.runtime.loading import load_trainer

    torch.set_num_threads(1)
    kind, chance = load_trainer(TRAINER, "charlm"), Random(0)
    settings = list(product(BATCH_SIZES, LENGTHS))
    chance.shuffle(settings)
    steps = []
    for batch_size, length in settings:
        rate, decay = chance.choice([1e-3, 3e-3]), chance.random() / 10  # which cost nothing
        hp = {"bs": batch_size, "seq_len": length, "lr": rate, "weight_decay": decay}
        steps.append({"hp": hp, "seconds": round(seconds_of(kind, hp), 5)})
        print(steps[-1])
    recorded = {"trainer": "charlm", "on": f"one core, torch {torch.__version__}", "steps": steps}
    DATA.write_text(json.dumps(recorded, indent=1) + "\n")


def seconds_of(kind: type, hp: Setting) -> float:
    """The median of some steps, after one that warms up."""
    from stagetree.runtime.model import HpTimeline, Model

    constant = {name: {"family": "constant", "value": value} for name, value in hp.items()}
    model, timeline, took = Model.build(kind, {"batches_per_step": 4}, 0, "cpu"), HpTimeline(constant), []
    for _ in range(STEPS + 1):
        began = time.process_time()
        model.advance(timeline)
        took.append(time.process_time() - began)
    model.trainer.close()
    return float(np.median(took[1:]))


if __name__ == "__main__":
    main()
