"""A search that knows the tree: branches of what is trained beside fresh trials, by what they bring for a step.

A Gaussian process foretells the loss of any configuration. Some hundred are looked at: fresh draws, neighbours of the
best, and branches, which have another trial's values but for some that change nothing until late. Each has a price in
steps, by the names of the nodes that it would pass. The largest expected improvement over the square root of the price
is proposed (per unit of cost: Snoek et al. 2012, §3.2): over the price itself, a bad model would ask for cheap trials
alone. What the rest of the study's budget does not pay for is passed over. The first trials lie apart from each other,
so that the model has seen some of every range.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import inf
from random import Random
from typing import Any

import numpy as np

from app.domain import schedule
from app.domain.pricing import EMPTY_TREE, TrainedTree
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import Knowledge, Made, Maker, Proposal, Values, to_json
from app.search.samplers.cube import Cube, near, spread
from app.search.samplers.gaussian import GaussianProcess, Numbers, fitted
from app.search.samplers.learning import Learned
from stagetree.space import Choose, drawing
from stagetree.space.distinct import Configuration
from stagetree.spec import StudySpec

FIRST = 4
"""Trials that are drawn before the model is asked."""
FRESH, BRANCHES, NEIGHBOURS = 200, 200, 60
"""How many candidates of each kind are looked at."""
BASES, BEST = 10, 3
"""The best trials: how many have branches among the candidates, and how many have neighbours there."""
LATE = 0.25
"""A value is late in a trial if another one changes nothing for such a share of its steps."""
DRAWS = 8
"""So many values are drawn to find another one than a trial has."""
LEAST_CHANGED = 0.05
"""A value that changes less of a trial than this part counts as one that changes so much."""
ALPHA = 0.5
MOST_POINTS = 100
"""The model learns of no more trials, the best ones."""


@dataclass(slots=True)
class KnownTrial:
    """A trial, as far as the sampler was told: the values it was made of, and its loss at each step that was asked for.

    partings: the step at which it parts from a trial that has another value in one place, by place, for each place that
    can have another one; None until somebody asked.
    """

    number: int
    sample: Values
    hp: Mapping[str, Any]
    losses: dict[int, float] = field(default_factory=dict)
    has_failed: bool = False
    is_over: bool = False
    partings: dict[str, int] | None = None


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that may be proposed; `price`: the steps that would be trained for it."""

    sample: Values
    configuration: Configuration
    price: int


class TrunkSampler:
    """Proposals are a function of the study file, its history, and the tree that was looked at last.

    With each trial is recorded `sample`: the values it was made of; and, where the model was asked, its `price` in
    steps.
    """

    adaptive = True

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        self._metric, self._sign, self._seed = spec.metric, -1.0 if spec.mode == "max" else 1.0, spec.sampling_seed
        self._steps: int = getattr(tuner, "max_steps", None) or getattr(tuner, "min_steps", None) or 1
        self._space = spec.search_space
        self._free = self._space.parameters()
        self._cube = Cube(self._free)
        self._maker = Maker(spec)
        self._known = dict[int, KnownTrial]()
        self._tree = EMPTY_TREE
        self._fixed: Values | None = None
        self._last: tuple[int, Proposal | None] | None = None

    def size(self) -> int | None:
        return self._maker.size

    def look(self, tree: TrainedTree) -> bool:
        """Prices are by this tree from now on; whether the tree is another one."""
        if has_changed := tree != self._tree:
            self._tree, self._last = tree, None
        return has_changed

    def learn(self, trials: Sequence[Learned]) -> None:
        """Trials of other studies are known as its own are; their numbers are below 0."""
        self._last = None
        for sample, results in trials:
            number, hp = -1 - sum(each < 0 for each in self._known), to_json(self._space.build(sample))
            losses = {step: self._sign * value for step, value in results.items()}
            self._known[number] = KnownTrial(number, sample, hp, losses, is_over=True)

    def observe(self, event: TrialEvent) -> None:
        self._last = None
        trial = self._known.get(event.trial)
        match event.kind:
            case TrialEventKind.START:
                self._maker.take(event.hp)
                if "sample" in event.reason:
                    self._known[event.trial] = KnownTrial(event.trial, event.reason["sample"], event.hp)
            case TrialEventKind.CANCEL:
                self._known.pop(event.trial, None)
            case TrialEventKind.RESULT if trial and (value := event.metrics.get(self._metric)) is not None:
                trial.losses[event.steps] = self._sign * value
            case TrialEventKind.STOP if trial:
                trial.is_over = True
            case TrialEventKind.FAIL if trial:
                trial.has_failed = True

    def propose(self, number: int) -> Proposal | None:
        if self._last is None or self._last[0] != number:
            self._last = (number, self._proposed(number))
        return self._last[1]

    def complete(self, number: int, fixed: Values) -> Proposal | None:
        self._fixed = fixed
        try:
            return self._guided(number)
        finally:
            self._fixed = None

    def _guided(self, number: int) -> Proposal | None:
        """The best candidate, with its price; None while there is no model, or nothing new was found."""
        process, ranked = self._model()
        if process is None:
            return None
        best = self._best(Random(f"{self._seed}/{number}"), process, ranked)
        if best is None:
            return None
        return Proposal(to_json(best.configuration), {"sample": best.sample, "price": best.price})

    def _proposed(self, number: int) -> Proposal | None:
        if (guided := self._guided(number)) is not None:
            return guided
        if (drawn := self._apart(number) or self._maker.by_chance(number)) is None:
            return None
        return Proposal(to_json(drawn[1]), {} if drawn[0] is None else {"sample": drawn[0]})

    def _apart(self, number: int) -> Made | None:
        """One of the first trials, if it can be."""
        if number >= FIRST:
            return None
        made = self._maker.made(spread(f"{self._seed}/first", number, FIRST))
        return made if made is not None and self._maker.is_new(made[1]) else None

    def _level(self) -> int | None:
        """The highest step at which there are enough results for a model; None while there are nowhere.

        Each rung has a model of its own, and the highest counts that has one (Falkner et al. 2018, BOHB, §3).
        """
        steps = {step for trial in self._known.values() for step in trial.losses}
        enough = (step for step in steps if sum(step in trial.losses for trial in self._known.values()) >= FIRST)
        return max(enough, default=None)

    def knowledge(self) -> Knowledge:
        level = self._level()
        return Knowledge(level, sum(level in trial.losses for trial in self._known.values()), FIRST)

    def _model(self) -> tuple[GaussianProcess | None, list[KnownTrial]]:
        """What the results tell, and the trials that have one, the best first. A trial that failed is as the worst."""
        level = self._level()
        if level is None or not self._cube.width:
            return None, []
        ranked = sorted((k for k in self._known.values() if level in k.losses), key=lambda k: k.losses[level])
        worst = ranked[-1].losses[level]
        failed = [trial for trial in self._known.values() if trial.has_failed and level not in trial.losses]
        learnt = [*ranked, *failed][:MOST_POINTS]
        losses = np.array([trial.losses.get(level, worst) for trial in learnt])
        process = fitted(self._points(learnt), losses, self._cube.groups, self._changed(learnt, level))
        waiting = [k for k in self._known.values() if not (level in k.losses or k.has_failed or k.is_over)]
        return process.believing(self._points(waiting)), ranked

    def _points(self, samples: Iterable[KnownTrial | Candidate]) -> Numbers:
        return self._cube.points([each.sample for each in samples])

    def _best(self, chance: Random, process: GaussianProcess, ranked: list[KnownTrial]) -> Candidate | None:
        """Of all candidates, and then of the neighbours of the best of them; None where nothing new was found."""

        def scores(candidates: list[Candidate]) -> Numbers:
            prices = np.array([max(1, candidate.price) for candidate in candidates])
            return np.asarray(process.log_improvement(self._points(candidates)) - ALPHA * np.log(prices))

        found = list(self._candidates(chance, ranked))
        most = self._most(found)
        best = [candidate for candidate in found if candidate.price <= most]
        for _ in range(2):
            order = np.argsort(-scores(best), kind="stable")[:BEST] if best else np.array([], int)
            best = [best[place] for place in order]
            moved = [near(chance, candidate.sample) for candidate in best for _ in range(NEIGHBOURS // BEST)]
            best += [candidate for candidate in self._made(moved) if candidate.price <= most]
        return best[int(np.argmax(scores(best)))] if best else None

    def _most(self, candidates: Iterable[Candidate]) -> float:
        """The highest price that is paid: the rest of the study's budget, since a trial that it cuts off has no result.

        Any price, where the rest pays for nothing new: else free trials would be proposed without end.
        """
        left = self._tree.left
        return left if any(0 < candidate.price <= left for candidate in candidates) else inf

    def _candidates(self, chance: Random, ranked: list[KnownTrial]) -> Iterator[Candidate]:
        """Fresh draws, neighbours of the best trials, and branches of them."""
        yield from self._made(drawing(chance) for _ in range(FRESH))
        moved = (near(chance, trial.sample) for trial in ranked[:BEST] for _ in range(NEIGHBOURS // BEST))
        yield from self._made(moved)
        bases = [(trial, late) for trial in ranked[:BASES] if (late := self._late(trial))]
        for trial, late in bases:
            yield from self._made(self._branch(chance, trial, late) for _ in range(BRANCHES // len(bases)))

    def _made(self, ways: Iterable[Choose]) -> Iterator[Candidate]:
        """The configurations that are new, each with its price."""
        for choose in ways:
            drawn = self._maker.made(choose, self._fixed)
            if drawn is not None and self._maker.is_new(drawn[1]):
                yield Candidate(*drawn, self._tree.price(to_json(drawn[1]), self._steps))

    def _branch(self, chance: Random, base: KnownTrial, late: tuple[str, ...]) -> Choose:
        """The values of a trial, but for one late value or more."""
        drawn = {late[int(chance.random() * len(late))]} | {place for place in late if chance.random() < 0.5}
        return lambda place, free: (
            base.sample[place] if place in base.sample.keys() - drawn else free.at(chance.random())
        )

    def _late(self, base: KnownTrial) -> tuple[str, ...]:
        """The values of a trial that change nothing until late, by name."""
        return tuple(place for place, step in self._partings(base).items() if step >= LATE * self._steps)

    def _changed(self, trials: Iterable[KnownTrial], level: int) -> Numbers:
        """[parameters]: the part of the steps up to `level` that another value changes, in the mean of these trials."""
        steps = dict[str, list[int]]()
        for trial in trials:
            for place, step in self._partings(trial).items():
                steps.setdefault(place, []).append(min(step, level))
        means = [sum(found) / len(found) if (found := steps.get(place)) else 0.0 for place in self._cube.places]
        return np.maximum(LEAST_CHANGED, 1 - np.array(means) / level)

    def _partings(self, base: KnownTrial) -> dict[str, int]:
        """By place, the step at which a trial parts from one that has another value there: each is tried once."""
        if base.partings is None:
            chance = Random(f"{self._seed}/late/{base.number}")
            found = {place: self._parting(chance, base, place) for place in base.sample}
            base.partings = {place: step for place, step in found.items() if step is not None}
        return base.partings

    def _parting(self, chance: Random, base: KnownTrial, changed: str) -> int | None:
        """The step at which a trial parts from one that has another value in a place; 0 where there is no such trial.

        None where no other value was drawn.
        """
        drawn = [self._free[changed].at(chance.random()) for _ in range(DRAWS)]
        if (value := next((each for each in drawn if each != base.sample[changed]), None)) is None:
            return None
        sample = {**base.sample, changed: value}
        made = self._maker.made(lambda place, free: sample[place] if place in sample else free.at(0.5))
        return 0 if made is None else parting(base.hp, to_json(made[1]), self._steps)


def parting(hp: Mapping[str, Any], other: Mapping[str, Any], steps: int) -> int:
    """The step at which two trials part, or `steps`: before it, they pass the same nodes."""
    ways = [list(schedule.path(each, steps, "").items()) for each in (hp, other)]
    for one, two in zip(*ways, strict=False):
        if one != two:
            return int(min(one[1], two[1]))
    shorter, longer = sorted(ways, key=len)
    return longer[len(shorter)][1] if len(shorter) < len(longer) else steps
