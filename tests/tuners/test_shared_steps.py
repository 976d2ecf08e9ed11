"""Law 3: what others train and evaluate changes no result, and no study goes without its own evaluations."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import events as e
from app.domain.search_plan import Node, Study
from app.domain.terms import StudyId, digest
from app.simulation.simulator import Simulator
from tests.plans import max_examples
from tests.tuners.worlds import SHARING, spec, stragglers

TUNERS: dict[str, dict[str, Any]] = {
    "random": {"kind": "random", "num_trials": 8, "max_steps": 12},
    "sha": {"kind": "sha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3},
    "hyperband": {"kind": "hyperband", "min_steps": 2, "max_steps": 18},
    "pbt": {"kind": "pbt", "population_size": 5, "ready_steps": 3, "max_steps": 12},
}
EVERY = [None, 2, 3, 5]


class World:
    """Studies that begin one after the other. A loss depends on the values trained with, and sometimes is none."""

    def __init__(self, seed: int, kinds: list[str], merge: bool) -> None:
        self.rng, self.seed = Random(seed), seed
        self.simulator = Simulator(
            slots=self.rng.choice([1, 3, 9]), measure=self.measure, seconds=stragglers(seed), keep_every=1
        )
        self.plan = self.simulator.plan
        for number, kind in enumerate(kinds):
            fields = {"eval_every": every} if (every := self.rng.choice(EVERY)) else {}
            study = spec(TUNERS[kind], space=SHARING, merge=merge, seed=seed % 5, **fields)
            self.simulator.submit(StudyId(f"study-{number}"), study.to_json())
            for _ in range(self.rng.randrange(12)):
                self.simulator.advance()
        self.simulator.run()

    def measure(self, node: Node, step: int) -> e.Metrics:
        way = [*self.plan.ancestry(node.id)]
        ends = [*(below.start for below in way[1:]), step]
        values = [at.segment.values(t) for at, end in zip(way, ends, strict=True) for t in range(at.start, end)]
        luck = Random(f"{self.seed}/{digest(values)}")
        return {"loss": None if luck.random() < 0.15 else round(luck.random(), 3)}

    def studies(self) -> list[dict[str, Any]]:
        return [self.read(study) for study in self.plan.studies.values()]

    def read(self, study: Study) -> dict[str, Any]:
        """What its user sees of it, where its own evaluations are concerned."""
        every = study.spec.eval_every
        own = [
            {
                step: metrics
                for step, metrics in self.plan.curve(trial)
                if self.is_own(step, every, trial.requested_steps)
            }
            for trial in study.trials
            if trial.state == "completed"  # the others are evaluated no further than where they ended
        ]
        trials = [(trial.hp, trial.requested_steps, trial.state) for trial in study.trials]
        return {"state": study.state, "trials": trials, "curves": own}

    def is_own(self, step: int, every: int | None, asked: list[int]) -> bool:
        return step in asked or bool(every and step % every == 0)


@pytest.mark.slow
@max_examples(25)
@given(seed=st.integers(0, 10**6), kinds=st.lists(st.sampled_from(sorted(TUNERS)), min_size=2, max_size=3))
def test_merged_or_alone_every_study_sees_the_same(seed: int, kinds: list[str]) -> None:
    """Where every state is kept, a study that comes late has each evaluation that it would have had alone."""
    merged, alone = World(seed, kinds, merge=True), World(seed, kinds, merge=False)
    for one, other in zip(merged.studies(), alone.studies(), strict=True):
        assert one == other


@pytest.mark.slow
@pytest.mark.parametrize("merge", [True, False])
def test_a_trial_is_evaluated_wherever_its_study_asks(merge: bool) -> None:
    for seed in range(5):
        world = World(seed, ["random", "sha", "random"], merge=merge)
        for study in world.plan.studies.values():
            every = study.spec.eval_every
            for trial in study.trials:
                steps = {step for step, _ in world.plan.curve(trial)}
                if trial.state == "completed":
                    assert set(trial.requested_steps) <= steps
                    assert not every or set(range(every, trial.steps + 1, every)) <= steps
