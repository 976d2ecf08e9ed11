"""What early stopping adds to sharing: SHA and ASHA over a space with shared beginnings, on recorded learning curves.

    python benchmarks/sha_savings.py --data FOLDER [--slots 40]

The space is that of examples/cifar10/resnet56.yaml: 448 trials, as in Table 2 of the Hippo paper, each of them once.
FOLDER holds taskset_*.npz (TaskSet, Metz et al. 2020): 1,000 recorded curves of 51 validation losses each. A node of
the search plan follows one of them; where it branches off its parent, the curve is one of the recorded ones that are
nearest to the parent's loss at that point. So trials with the same beginning have the same losses there, and part
afterwards.

Printed for each recording: the steps that the trials ask for, each trained alone; the steps that are run, with equal
beginnings trained once; and how many times more the one is than the other, next to the merge rate of the whole space.
The papers report 4.81 (SHA) and 3.92 (ASHA) times fewer GPU hours at a merge rate of 2.45: stages deep in the tree are
the least shared, and early stopping tolerated just those. Theirs are hours against another system's, ours are steps.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import numpy.typing as npt

from app.domain import events as e
from app.domain.search_plan import Node, SearchPlan, Study
from app.domain.terms import StudyId
from app.simulation.simulator import Simulator
from stagetree.spec import StudySpec

STUDY_FILE = Path(__file__).parent.parent / "examples" / "cifar10" / "resnet56.yaml"
RUNGS = {"num_trials": 448, "reduction_factor": 4, "min_steps": 15, "max_steps": 120, "sampler": "grid"}
TUNERS = {"SHA": {"kind": "sha", **RUNGS}, "ASHA": {"kind": "asha", **RUNGS}}
NEAREST = 20

Curves = npt.NDArray[np.float64]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--slots", type=int, default=40)
    arguments = parser.parse_args()
    whole = run({"kind": "grid", "max_steps": 120}, np.zeros((1, 51)), arguments.slots)
    print(f"{len(whole.trials)} trials; merge rate of the whole space {whole.requested / whole.unique:.2f}")
    print(f"{'recording':<40} {'tuner':<5} {'alone':>7} {'run':>6} {'times fewer':>12}")
    for name, curves in recordings(arguments.data):
        for tuner, fields in TUNERS.items():
            study = run(fields, curves, arguments.slots)
            fewer = study.requested / study.executed
            print(f"{name:<40} {tuner:<5} {study.requested:7} {study.executed:6} {fewer:12.2f}", flush=True)


def recordings(folder: Path) -> Iterator[tuple[str, Curves]]:
    """Name and validation losses of each recording in a folder."""
    paths = sorted(folder.glob("taskset_*.npz"))
    if not paths:
        raise SystemExit(f"there is no taskset_*.npz in {folder}")
    for path in paths:
        yield path.stem.removeprefix("taskset_imdb_"), np.load(path)["valid_loss"].astype(float)


def run(tuner: dict[str, Any], curves: Curves, slots: int) -> Study:
    """The study from beginning to end on virtual slots. Workers keep a spare checkpoint after each step."""
    file = StudySpec.from_file(STUDY_FILE).to_json()
    spec = StudySpec.from_dict(file | {"tuner": tuner, "metric": "loss", "mode": "min"})
    losses, name = Losses(curves, spec.to_json()["tuner"]["max_steps"]), StudyId("savings")
    simulator = Simulator(slots=slots, measure=losses, seconds=uneven, keep_every=1)
    simulator.submit(name, spec.to_json())
    losses.plan = simulator.plan
    simulator.run()
    return simulator.plan.studies[name]


def uneven(stage: e.Stage, number: int) -> float:
    """A second a step, give or take a tenth: results do not come in the order of the trials."""
    return (stage.end - stage.start) * Random(number).uniform(0.9, 1.1)


class Losses:
    """The loss at any node of the `plan` and step, from the recorded curve that the node follows."""

    def __init__(self, curves: Curves, steps: int) -> None:
        self.plan, self._curves, self._last = SearchPlan(), curves, steps
        self._curve_of: dict[str, int] = {}

    def __call__(self, node: Node, step: int) -> e.Metrics:
        loss = float(self._at(step)[self._curve(node)])
        return {"loss": loss if np.isfinite(loss) else None}

    def _at(self, step: int) -> npt.NDArray[np.float64]:
        """All curves at a step."""
        return self._curves[:, round(step / self._last * (self._curves.shape[1] - 1))]

    def _curve(self, node: Node) -> int:
        if node.id not in self._curve_of:
            self._curve_of[node.id] = self._choose(node)
        return self._curve_of[node.id]

    def _choose(self, node: Node) -> int:
        rng = Random(node.id)
        if node.parent is None:
            return rng.randrange(len(self._curves))
        now = self._at(node.start)
        far = np.abs(now - now[self._curve(self.plan.nodes[node.parent])])
        near = np.argsort(np.where(np.isfinite(far), far, np.inf), kind="stable")[:NEAREST]
        return int(near[rng.randrange(len(near))])


if __name__ == "__main__":
    main()
