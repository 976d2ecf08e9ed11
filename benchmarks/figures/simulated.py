"""What the figures share: studies on virtual slots, with each shared step trained once or with every trial alone.

The scheduler, the tuners and the search plan are the product's own; only the steps are not trained. A step is an epoch
of `EPOCH_SECONDS`, and a slot spends on loading, evaluating and saving what `OVERHEADS` says.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from math import exp
from pathlib import Path
from random import Random
from typing import Any

from app.domain import events as e
from app.domain.search_plan import Node, SearchPlan
from app.domain.terms import StudyId
from app.events import StoredEvent
from app.scheduling.fair_share import POLICIES, Policy
from app.simulation.pace import Overheads
from app.simulation.simulator import Simulator

Json = dict[str, Any]
ROOT = Path(__file__).resolve().parents[2]
DATA = Path(__file__).parent / "data"

EPOCH_SECONDS = 60.0
OVERHEADS = Overheads(claim=1, begin=15, load=10, hand_over=1, evaluate=5, save=1, upload=3)
UNEVEN = 0.1
"""The largest random factor on a stage's time: results do not come in the order of the trials."""


@dataclass(frozen=True)
class Cost:
    """slot_hours: training and what goes with it. end_hours: until the last result. least_hours: what no order of
    work is shorter than, for its steps alone. steps: trained ones.
    """

    slot_hours: float
    end_hours: float
    least_hours: float
    steps: int


class Accuracies:
    """Learning curves that branch where nodes do: each node draws its own limit and pace near its parent's.

    So trials that begin alike have equal results there, and a child continues from the value of its parent.
    """

    def __init__(self, seed: int) -> None:
        self.plan, self._seed = SearchPlan(), seed
        self._shapes: dict[str, tuple[float, float, float]] = {}

    def __call__(self, node: Node, step: int) -> e.Metrics:
        return {"val_accuracy": self._at(node, step)}

    def _at(self, node: Node, step: int) -> float:
        begun, limit, pace = self._shape(node)
        return limit + (begun - limit) * exp((node.start - step) / pace)

    def _shape(self, node: Node) -> tuple[float, float, float]:
        """Accuracy where the node begins, the one it approaches, and in how many steps by a factor of e."""
        if node.id not in self._shapes:
            draw = Random(f"{self._seed}/{node.id}")
            if node.parent is None:
                self._shapes[node.id] = 0.1, draw.gauss(0.85, 0.05), draw.uniform(8, 30)
            else:
                parent = self.plan.nodes[node.parent]
                _, limit, pace = self._shape(parent)
                self._shapes[node.id] = self._at(parent, node.start), limit + draw.gauss(0, 0.02), pace
        return self._shapes[node.id]


def cost(
    specs: Mapping[str, Json],
    *,
    slots: int,
    shares: bool,
    seed: int = 0,
    policy: Policy = POLICIES["critical_path"],
    overheads: Overheads = OVERHEADS,
    step_seconds: float = EPOCH_SECONDS,
    winner_steps: int = 0,
) -> Cost:
    """The cost of these studies, all submitted at once.

    winner_steps: that the best trial of each is trained further, on a slot of its own, as the papers do it. They cost
    the same with and without sharing.
    """
    curves = Accuracies(seed)

    def seconds(stage: e.Stage, number: int) -> float:
        uneven = Random(f"{seed}/{number}").uniform(1 - UNEVEN, 1 + UNEVEN)
        return (stage.end - stage.start) * step_seconds * uneven

    simulator = Simulator(
        slots=slots, measure=curves, seconds=seconds, keeps_branches=True, overheads=overheads, policy=policy
    )
    curves.plan = simulator.plan
    for name, spec in specs.items():
        simulator.submit(StudyId(name), {"name": name} | spec | {"merge": shares})
    end = simulator.run() + winner_steps * step_seconds
    held = _held(simulator.log()) + len(specs) * winner_steps * step_seconds
    studies = simulator.plan.studies.values()
    steps = sum(study.executed for study in studies)
    least = (shortest(simulator.plan, slots) + winner_steps) * step_seconds
    return Cost(held / 3600, end / 3600, least / 3600, steps)


def shortest(plan: SearchPlan, slots: int) -> float:
    """Steps of time that no order of the plan's work is shorter than, on this many slots."""
    ends = Counter[str]()
    for study in plan.studies.values():
        for node, end in study.max_step_by_node.items():
            ends[node] = max(ends[node], end)
    return shortest_of(chain.from_iterable(range(plan.nodes[node].start, end) for node, end in ends.items()), slots)


def shortest_of(depths: Iterable[int], slots: int) -> float:
    """The same of single steps, each with the number of steps that must be trained before it.

    What lies below depth d begins after d steps at the earliest, and takes all slots its share of the time.
    """
    at, below, bound = Counter(depths), 0, 0.0
    for depth in sorted(at, reverse=True):
        below += at[depth]
        bound = max(bound, depth + max(1.0, below / slots))
    return bound


def _held(log: Sequence[StoredEvent]) -> float:
    """Seconds for which slots were held: by each chain, from its assignment to the end of its last stage."""
    since, held = dict[str, float](), 0.0
    for each in log:
        match each.event:
            case e.ChainAssigned(chain=name):
                since[name] = each.at
            case e.StageCompleted(chain=name):
                held += each.at - since[name]
                since[name] = each.at
    return held


def merge_rate(*specs: Json) -> float:
    """Steps of all trials over the different ones, of one space or several that are trained whole (TreeML, page 39)."""
    simulator = Simulator(slots=1, measure=lambda node, step: {"val_accuracy": 0.5})
    for number, spec in enumerate(specs):
        steps = spec["tuner"]["max_steps"]
        grid = {"kind": "grid", "max_steps": steps}
        simulator.submit(StudyId(f"study-{number}"), {"name": "whole"} | spec | {"tuner": grid, "eval_every": steps})
    simulator.run()
    studies = simulator.plan.studies.values()
    return sum(study.requested for study in studies) / sum(study.executed for study in studies)


def keep(name: str, result: Json) -> None:
    """Write the result of a figure to its file, from which `docs/figures.md` is made."""
    DATA.mkdir(exist_ok=True)
    (DATA / f"{name}.json").write_text(json.dumps(result, indent=1) + "\n")
