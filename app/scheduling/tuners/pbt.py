"""Population based training (Jaderberg et al. 2017), with the settings of the ASHA paper, A.3.

A population is trained side by side. After each `ready_steps` steps comes a generation: the worst members are stopped,
and each is replaced by a copy of one of the best that goes on from there with other values (truncation selection).

Such a copy is a new trial whose sequences are those of the trial it copies up to that step and its own after it. So it
shares that beginning by name, and resumes from the other's checkpoint with no step run twice.

Generations are synchronous: all members are compared at the same step. That is the fair comparison that A.3 asks for
(members that were trained for longer would win), and decisions follow from results alone, in whatever order they come.
The price is waiting for the slowest member, for one interval at most. What slots would be idle meanwhile serve other
studies or, as in A.3, further populations of the same one.
"""

from __future__ import annotations

from typing import Any

from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.scheduling.tuners.base import Next, Tuner
from app.scheduling.tuners.population import Population
from stagetree.spec import StudySpec


class Pbt(Tuner):
    """Population based training. With `populations`, another one begins whenever a slot finds no other work."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        self.eager = tuner.populations == 1  # type: ignore[misc]
        self._spec, self._most, self._left = spec, tuner.populations, float("inf")
        self._populations: list[Population] = []
        self._population_of: dict[int, int] = {}  # by trial
        self._begin()

    def set_max_trials(self, trials: int) -> None:
        self._left = trials
        self._populations[0].limit(trials)

    def observe(self, event: TrialEvent) -> None:
        if event.kind == TrialEventKind.START:
            number = self._population_of[event.trial] = event.reason.get("population", 0)
            while number >= len(self._populations):
                self._begin()
            self._left -= "exploits" not in event.reason
        self._populations[self._population_of[event.trial]].observe(event, self.loss(event))

    def suggest(self) -> Next | None:
        wanted = (action for population in self._populations if (action := population.suggest()) is not None)
        first = next(wanted, None)
        if first is None and len(self._populations) < self._most and self._left > 1:
            return self._population(len(self._populations)).suggest()
        return first

    def _begin(self) -> None:
        self._populations.append(self._population(len(self._populations)))

    def _population(self, number: int) -> Population:
        population = Population(self._spec, number, self._sign)
        population.limit(self._left)
        return population
