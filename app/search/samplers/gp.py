"""A sampler with a model of the metric: the Gaussian process of `step_model`.

The candidates are some hundred random samples and neighbours of the best trials. The one with the largest expected
improvement is proposed. The first trials are spread out, so that the model has seen some of every range. Where trials
are stopped early, it waits for more of them, and a part of the proposals is random.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import islice
from random import Random
from typing import Any

import numpy as np
from threadpoolctl import ThreadpoolController

from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import Knowledge, Made, Maker, Proposal, Values, is_random, to_json
from app.search.samplers.cube import Cube, near, spread
from app.search.samplers.gaussian import Numbers
from app.search.samplers.learning import KnownTrial, KnownTrials, Learned
from app.search.samplers.step_model import MOST_TRIALS, StepModel
from stagetree.space import Choose, random_choices
from stagetree.space.distinct import Configuration
from stagetree.spec import StudySpec
from stagetree.spec.tuners.base import DRAWN_FIRST

FRESH, NEIGHBOURS = 200, 60
"""The number of candidates of each kind."""
BEST = 3
"""How many of the best trials have neighbours among the candidates."""
ROUNDS = 2
"""How often neighbours of the best candidates are added."""
TRIALS_PER_PARAMETER, MOST_WAITING = 3, 1 / 3
"""How many trials with results for each parameter the model waits for where trials are stopped early, and up to which
part of `num_trials`.

A random trial costs little there. A model of fewer trials proposes trial after trial near the first good one, each a
little better than the last: all are promoted, and take the steps of a wider search.
"""


@cache
def blas() -> ThreadpoolController:
    """The threads of linear algebra. The matrices are small, so more than one costs time, and sums depend on it."""
    return ThreadpoolController().select(user_api="blas")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A configuration that may be proposed. price: the steps that it would train, where that matters."""

    sample: Values
    configuration: Configuration
    price: int = 0


class GPSampler:
    """Proposals are a function of the study file and its history.

    Each trial's reason records `sample`, the values.
    """

    adaptive = True

    def __init__(self, spec: StudySpec, kind: str = "gp") -> None:
        tuner: Any = spec.tuner
        self._seed, self._first = spec.sampling_seed, DRAWN_FIRST[kind]
        self._steps: int = getattr(tuner, "max_steps", None) or getattr(tuner, "min_steps", None) or 1
        self._most_waiting = int(MOST_WAITING * getattr(tuner, "num_trials", MOST_TRIALS))
        self._free = spec.search_space.parameters()
        self._cube = Cube(self._free)
        self._maker = Maker(spec)
        self._known = KnownTrials(spec)
        self._fixed: Values | None = None
        self._last: tuple[int, Proposal | None] | None = None

    def size(self) -> int | None:
        return self._maker.size

    def learn(self, trials: Sequence[Learned]) -> None:
        self._last = None
        self._known.learn(trials)

    def observe(self, event: TrialEvent) -> None:
        self._last = None
        if event.kind == TrialEventKind.START:
            self._maker.take(event.hp)
        self._known.observe(event)

    def knowledge(self) -> Knowledge:
        return Knowledge(None, len(self._known.ranked()), self._enough())

    def _enough(self) -> int:
        """How many results the model needs."""
        if not self._known.has_rungs:
            return self._first
        return max(self._first, min(TRIALS_PER_PARAMETER * len(self._free), self._most_waiting))

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

    def _make_proposal(self, number: int) -> Proposal | None:
        is_by_model = not (self._known.has_rungs and is_random(self._seed, number))
        if is_by_model and (guided := self._ask_model(number)) is not None:
            return guided
        if (drawn := self._spread_start(number) or self._maker.sample(number)) is None:
            return None
        return Proposal(to_json(drawn[1]), {} if drawn[0] is None else {"sample": drawn[0]})

    def _spread_start(self, number: int) -> Made | None:
        """One of the first, spread trials; None if that is not possible."""
        if number >= self._first:
            return None
        made = self._maker.build(spread(f"{self._seed}/first", number, self._first))
        return made if made is not None and self._maker.is_new(made[1]) else None

    def _ask_model(self, number: int) -> Proposal | None:
        """The best candidate; None without a model or a new candidate."""
        ranked = self._known.ranked()
        if len(ranked) < self._enough() or not self._cube.width:
            return None
        with blas().limit(limits=1):
            best = self._best(Random(f"{self._seed}/{number}"), self._model(), ranked)
        return None if best is None else Proposal(to_json(best.configuration), self._reason(best))

    def _model(self) -> StepModel:
        return StepModel(self._cube, self._known)

    def _reason(self, chosen: Candidate) -> dict[str, Any]:
        return {"sample": chosen.sample}

    def _best(self, chance: Random, model: StepModel, ranked: list[KnownTrial]) -> Candidate | None:
        """The best of all candidates and their neighbours; None if there is no new one."""
        candidates = self._affordable(list(self._candidates(chance, ranked)))
        for _ in range(ROUNDS):
            best = list(islice(self._new_ones(model, candidates), BEST))
            moved = [near(chance, candidate.sample) for candidate in best for _ in range(NEIGHBOURS // BEST)]
            candidates = self._affordable([*best, *self._build(moved)])
        return next(self._new_ones(model, candidates), None)

    def _new_ones(self, model: StepModel, candidates: list[Candidate]) -> Iterator[Candidate]:
        """The candidates that no trial has, best first. Whether one is new takes longer to find than its score."""
        order = np.argsort(-self._scores(model, candidates), kind="stable") if candidates else np.array([], int)
        return (each for place in order if self._maker.is_new((each := candidates[place]).configuration))

    def _affordable(self, candidates: list[Candidate]) -> list[Candidate]:
        return candidates

    def _scores(self, model: StepModel, candidates: list[Candidate]) -> Numbers:
        return model.log_improvement(candidate.sample for candidate in candidates)

    def _candidates(self, chance: Random, ranked: list[KnownTrial]) -> Iterator[Candidate]:
        """Random samples, and neighbours of the best trials."""
        yield from self._build(random_choices(chance) for _ in range(FRESH))
        bases = [trial.sample for trial in ranked[:BEST] for _ in range(NEIGHBOURS // BEST)]
        yield from self._build(near(chance, sample) for sample in bases)

    def _build(self, ways: Iterable[Choose]) -> Iterator[Candidate]:
        """The valid configurations."""
        for choose in ways:
            if (made := self._maker.build(choose, self._fixed)) is not None:
                yield Candidate(*made, self._price(made[1]))

    def _price(self, configuration: Configuration) -> int:
        return 0
