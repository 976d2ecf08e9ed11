"""A sampler that knows the stage tree: it weighs the expected improvement of a configuration against its new steps.

A Gaussian process predicts the loss of any configuration. The candidates are some hundred random samples, neighbours of
the best trials, and branches: another trial's values except for some that take effect late. The price of a candidate is
the number of new steps, by the names of the nodes on its path. The candidate with the largest expected improvement over
the square root of the price is proposed (per unit of cost: Snoek et al. 2012, §3.2): with the price itself, a bad model
would propose only cheap trials. Candidates beyond the study's remaining budget are left out. The first trials are
spread out, so that the model has seen some of every range.
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
from app.search.samplers.gaussian import GaussianProcess, Numbers, fit_process
from app.search.samplers.learning import Learned
from stagetree.space import Choose, random_choices
from stagetree.space.distinct import Configuration
from stagetree.spec import StudySpec

FIRST = 4
"""How many trials start without the model."""
FRESH, BRANCHES, NEIGHBOURS = 200, 200, 60
"""The number of candidates of each kind."""
BASES, BEST = 10, 3
"""How many of the best trials have branches, and neighbours, among the candidates."""
LATE = 0.25
"""A value takes effect late if changing it changes nothing for this share of the trial's steps."""
DRAWS = 8
"""How many samples are tried to find another value."""
LEAST_CHANGED = 0.05
"""The least share of a trial that a parameter counts as changing."""
ALPHA = 0.5
MOST_POINTS = 100
"""The model learns from this many trials, the best ones."""


@dataclass(slots=True)
class KnownTrial:
    """A trial as the sampler knows it: its values, and its loss at each requested step."""

    number: int
    sample: Values
    hp: Mapping[str, Any]
    losses: dict[int, float] = field(default_factory=dict)
    has_failed: bool = False
    is_over: bool = False
    partings: dict[str, int] | None = None
    """For each parameter, the step from which another value of it changes the trial. Computed on demand."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that may be proposed. price: the steps that it would train."""

    sample: Values
    configuration: Configuration
    price: int


class TrunkSampler:
    """Proposals are a function of the study file, its history, and the last tree.

    Each trial's reason records `sample`, the values, and, if the model was used, the `price` in steps.
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
        """Use this tree for prices from now on; returns whether it is another one."""
        if has_changed := tree != self._tree:
            self._tree, self._last = tree, None
        return has_changed

    def learn(self, trials: Sequence[Learned]) -> None:
        """Trials of other studies count like its own; their numbers are negative."""
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
            self._last = (number, self._make_proposal(number))
        return self._last[1]

    def complete(self, number: int, fixed: Values) -> Proposal | None:
        self._fixed = fixed
        try:
            return self._ask_model(number)
        finally:
            self._fixed = None

    def _ask_model(self, number: int) -> Proposal | None:
        """The best candidate with its price; None without a model or a new candidate."""
        process, ranked = self._model()
        if process is None:
            return None
        best = self._best(Random(f"{self._seed}/{number}"), process, ranked)
        if best is None:
            return None
        return Proposal(to_json(best.configuration), {"sample": best.sample, "price": best.price})

    def _make_proposal(self, number: int) -> Proposal | None:
        if (guided := self._ask_model(number)) is not None:
            return guided
        if (drawn := self._spread_start(number) or self._maker.sample(number)) is None:
            return None
        return Proposal(to_json(drawn[1]), {} if drawn[0] is None else {"sample": drawn[0]})

    def _spread_start(self, number: int) -> Made | None:
        """One of the first, spread trials; None if that is not possible."""
        if number >= FIRST:
            return None
        made = self._maker.build(spread(f"{self._seed}/first", number, FIRST))
        return made if made is not None and self._maker.is_new(made[1]) else None

    def _level(self) -> int | None:
        """The highest step with enough results for a model; None if there is none.

        Each rung has a model of its own, and the highest one is used (Falkner et al. 2018, BOHB, §3).
        """
        steps = {step for trial in self._known.values() for step in trial.losses}
        enough = (step for step in steps if sum(step in trial.losses for trial in self._known.values()) >= FIRST)
        return max(enough, default=None)

    def knowledge(self) -> Knowledge:
        level = self._level()
        return Knowledge(level, sum(level in trial.losses for trial in self._known.values()), FIRST)

    def _model(self) -> tuple[GaussianProcess | None, list[KnownTrial]]:
        """The model, and the trials with results, best first. A failed trial counts as the worst."""
        level = self._level()
        if level is None or not self._cube.width:
            return None, []
        ranked = sorted((k for k in self._known.values() if level in k.losses), key=lambda k: k.losses[level])
        worst = ranked[-1].losses[level]
        failed = [trial for trial in self._known.values() if trial.has_failed and level not in trial.losses]
        learnt = [*ranked, *failed][:MOST_POINTS]
        losses = np.array([trial.losses.get(level, worst) for trial in learnt])
        process = fit_process(self._points(learnt), losses, self._cube.groups, self._changed_shares(learnt, level))
        waiting = [k for k in self._known.values() if not (level in k.losses or k.has_failed or k.is_over)]
        return process.assume_means(self._points(waiting)), ranked

    def _points(self, samples: Iterable[KnownTrial | Candidate]) -> Numbers:
        return self._cube.points([each.sample for each in samples])

    def _best(self, chance: Random, process: GaussianProcess, ranked: list[KnownTrial]) -> Candidate | None:
        """The best of all candidates and their neighbours; None if there is no new one."""

        def scores(candidates: list[Candidate]) -> Numbers:
            prices = np.array([max(1, candidate.price) for candidate in candidates])
            return np.asarray(process.log_improvement(self._points(candidates)) - ALPHA * np.log(prices))

        found = list(self._candidates(chance, ranked))
        most = self._price_limit(found)
        best = [candidate for candidate in found if candidate.price <= most]
        for _ in range(2):
            order = np.argsort(-scores(best), kind="stable")[:BEST] if best else np.array([], int)
            best = [best[place] for place in order]
            moved = [near(chance, candidate.sample) for candidate in best for _ in range(NEIGHBOURS // BEST)]
            best += [candidate for candidate in self._new_candidates(moved) if candidate.price <= most]
        return best[int(np.argmax(scores(best)))] if best else None

    def _price_limit(self, candidates: Iterable[Candidate]) -> float:
        """The remaining budget, because a trial that it cuts off has no result.

        Infinite if the rest pays for nothing new: else free trials would be proposed endlessly.
        """
        left = self._tree.left
        return left if any(0 < candidate.price <= left for candidate in candidates) else inf

    def _candidates(self, chance: Random, ranked: list[KnownTrial]) -> Iterator[Candidate]:
        """Random samples, neighbours of the best trials, and their branches."""
        yield from self._new_candidates(random_choices(chance) for _ in range(FRESH))
        moved = (near(chance, trial.sample) for trial in ranked[:BEST] for _ in range(NEIGHBOURS // BEST))
        yield from self._new_candidates(moved)
        bases = [(trial, late) for trial in ranked[:BASES] if (late := self._late(trial))]
        for trial, late in bases:
            yield from self._new_candidates(self._branch(chance, trial, late) for _ in range(BRANCHES // len(bases)))

    def _new_candidates(self, ways: Iterable[Choose]) -> Iterator[Candidate]:
        """The configurations that are new, each with its price."""
        for choose in ways:
            drawn = self._maker.build(choose, self._fixed)
            if drawn is not None and self._maker.is_new(drawn[1]):
                yield Candidate(*drawn, self._tree.price(to_json(drawn[1]), self._steps))

    def _branch(self, chance: Random, base: KnownTrial, late: tuple[str, ...]) -> Choose:
        """The values of a trial with at least one late value changed."""
        drawn = {late[int(chance.random() * len(late))]} | {place for place in late if chance.random() < 0.5}
        return lambda place, free: (
            base.sample[place] if place in base.sample.keys() - drawn else free.at(chance.random())
        )

    def _late(self, base: KnownTrial) -> tuple[str, ...]:
        """The parameters that take effect late in a trial."""
        return tuple(place for place, step in self._partings(base).items() if step >= LATE * self._steps)

    def _changed_shares(self, trials: Iterable[KnownTrial], level: int) -> Numbers:
        """[parameters]: the mean share of the steps up to `level` that each parameter changes."""
        steps = dict[str, list[int]]()
        for trial in trials:
            for place, step in self._partings(trial).items():
                steps.setdefault(place, []).append(min(step, level))
        means = [sum(found) / len(found) if (found := steps.get(place)) else 0.0 for place in self._cube.places]
        return np.maximum(LEAST_CHANGED, 1 - np.array(means) / level)

    def _partings(self, base: KnownTrial) -> dict[str, int]:
        """For each parameter, the step from which another value of it changes the trial."""
        if base.partings is None:
            chance = Random(f"{self._seed}/late/{base.number}")
            found = {place: self._parting(chance, base, place) for place in base.sample}
            base.partings = {place: step for place, step in found.items() if step is not None}
        return base.partings

    def _parting(self, chance: Random, base: KnownTrial, changed: str) -> int | None:
        """The step from which another value changes the trial; 0 if there is no such trial, None if no other value was
        found.
        """
        drawn = [self._free[changed].at(chance.random()) for _ in range(DRAWS)]
        if (value := next((each for each in drawn if each != base.sample[changed]), None)) is None:
            return None
        sample = {**base.sample, changed: value}
        made = self._maker.build(lambda place, free: sample[place] if place in sample else free.at(0.5))
        return 0 if made is None else parting(base.hp, to_json(made[1]), self._steps)


def parting(hp: Mapping[str, Any], other: Mapping[str, Any], steps: int) -> int:
    """The step at which two trials part, or `steps`: before it, they share the same nodes."""
    ways = [list(schedule.path(each, steps, "").items()) for each in (hp, other)]
    for one, two in zip(*ways, strict=False):
        if one != two:
            return int(min(one[1], two[1]))
    shorter, longer = sorted(ways, key=len)
    return longer[len(shorter)][1] if len(shorter) < len(longer) else steps
