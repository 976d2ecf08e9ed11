"""A sampler that knows the stage tree: it weighs the expected improvement of a configuration against its new steps.

It is `gp` with prices. Branches are candidates besides: another trial's values except for some that take effect late.
The price of a candidate is the number of new steps, by the names of the nodes on its path. The candidate with the
largest expected improvement over the square root of the price is proposed (per unit of cost: Snoek et al. 2012, §3.2):
with the price itself, a bad model would propose only cheap trials. Candidates beyond the study's remaining budget are
left out. The model expects little of values that change little of a trial.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from math import inf
from random import Random
from typing import Any

import numpy as np

from app.domain import schedule
from app.domain.pricing import EMPTY_TREE, TrainedTree
from app.domain.terms import NodeId
from app.search.samplers.base import Values
from app.search.samplers.gaussian import Numbers
from app.search.samplers.gp import Candidate, GPSampler
from app.search.samplers.learning import KnownTrial
from app.search.samplers.step_model import MOST_TRIALS, StepModel
from stagetree.sequences import parse
from stagetree.space import Choose
from stagetree.space.distinct import Configuration
from stagetree.spec import StudySpec

BRANCHES = 200
"""The number of branches among the candidates."""
BASES = 10
"""How many of the best trials have branches among the candidates."""
LATE = 0.25
"""A value takes effect late if changing it changes nothing for this share of the trial's steps."""
DRAWS = 8
"""How many samples are tried to find another value."""
LEAST_CHANGED = 0.05
"""The least share of a trial that a parameter counts as changing."""
ALPHA = 0.5


class TrunkSampler(GPSampler):
    """Proposals are a function of the study file, its history, and the last tree.

    Each trial's reason records `sample`, the values, and, if the model was used, the `price` in steps.
    """

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec, "trunks")
        self._tree = EMPTY_TREE
        self._partings = dict[int, dict[str, int]]()

    def look(self, tree: TrainedTree) -> bool:
        """Use this tree for prices from now on; returns whether it is another one."""
        has_changed = tree != self._tree
        self._tree = tree
        if has_changed:
            self._last = None
        return has_changed

    def _reason(self, chosen: Candidate) -> dict[str, Any]:
        return {**super()._reason(chosen), "price": chosen.price}

    def _price(self, configuration: Configuration) -> int:
        return self._tree.price(configuration, self._steps)

    def _scores(self, model: StepModel, candidates: list[Candidate]) -> Numbers:
        prices = np.array([max(1, candidate.price) for candidate in candidates])
        return np.asarray(super()._scores(model, candidates) - ALPHA * np.log(prices))

    def _affordable(self, candidates: list[Candidate]) -> list[Candidate]:
        """The candidates that the remaining budget pays for, because a trial that it cuts off has no result.

        All of them if it pays for nothing new: else free trials would be proposed endlessly.
        """
        left = self._tree.left
        most = left if any(0 < candidate.price <= left for candidate in candidates) else inf
        return [candidate for candidate in candidates if candidate.price <= most]

    def _candidates(self, chance: Random, ranked: list[KnownTrial]) -> Iterator[Candidate]:
        """The candidates of `gp`, and branches of the best trials."""
        yield from super()._candidates(chance, ranked)
        bases = [(trial, late) for trial in ranked[:BASES] if (late := self._late(trial))]
        for trial, late in bases:
            yield from self._build(self._branch(chance, trial, late) for _ in range(BRANCHES // len(bases)))

    def _branch(self, chance: Random, base: KnownTrial, late: tuple[str, ...]) -> Choose:
        """The values of a trial with at least one late value changed."""
        drawn = {late[int(chance.random() * len(late))]} | {place for place in late if chance.random() < 0.5}
        return lambda place, free: (
            base.sample[place] if place in base.sample.keys() - drawn else free.at(chance.random())
        )

    def _late(self, base: KnownTrial) -> tuple[str, ...]:
        """The parameters that take effect late in a trial."""
        return tuple(place for place, step in self._partings_of(base).items() if step >= LATE * self._steps)

    def _model(self) -> StepModel:
        ranked = self._known.ranked()
        return StepModel(self._cube, self._known, self._changed_shares(ranked, ranked[0].last))

    def _changed_shares(self, ranked: list[KnownTrial], last: int) -> Numbers:
        """[parameters]: the mean share of the steps up to `last` that each parameter changes."""
        steps = dict[str, list[int]]()
        for trial in islice(ranked, MOST_TRIALS):
            for place, step in self._partings_of(trial).items():
                steps.setdefault(place, []).append(min(step, last))
        means = [sum(found) / len(found) if (found := steps.get(place)) else 0.0 for place in self._cube.places]
        return np.maximum(LEAST_CHANGED, 1 - np.array(means) / last)

    def _partings_of(self, base: KnownTrial) -> dict[str, int]:
        """For each parameter, the step from which another value of it changes the trial."""
        if base.number not in self._partings:
            chance = Random(f"{self._seed}/late/{base.number}")
            own = {name: parse(value) for name, value in base.hp.items()}
            found = {place: self._parting(chance, base.sample, own, place) for place in base.sample}
            self._partings[base.number] = {place: step for place, step in found.items() if step is not None}
        return self._partings[base.number]

    def _parting(self, chance: Random, base: Values, own: Configuration, changed: str) -> int | None:
        """The step from which another value changes the trial; 0 if there is no such trial, None if no other value was
        found.
        """
        drawn = [self._free[changed].at(chance.random()) for _ in range(DRAWS)]
        if (value := next((each for each in drawn if each != base[changed]), None)) is None:
            return None
        sample = {**base, changed: value}
        made = self._maker.build(lambda place, free: sample[place] if place in sample else free.at(0.5))
        return 0 if made is None else parting(own, made[1], self._steps)


def parting(one: Configuration, other: Configuration, steps: int) -> int:
    """The step at which two trials part, or `steps`: before it, they share the same nodes."""
    ways = (chain(schedule.walk(each, steps), [(NodeId(""), steps)]) for each in (one, other))
    return next((min(mine[1], theirs[1]) for mine, theirs in zip(*ways, strict=False) if mine != theirs), steps)
