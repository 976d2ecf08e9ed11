"""Population based training (Jaderberg et al. 2017), with the settings of the ASHA paper, A.3.

All members train side by side. After every `ready_steps` steps a generation ends: the worst members are stopped, and
each is replaced by a copy of one of the best, which continues from there with other values (truncation selection).

A copy is a new trial with the sequences of the copied trial up to that step and its own after it. So it shares that
part by name, and resumes from the other's checkpoint without training any step twice.

Generations are synchronous: all members are compared at the same step. That is the fair comparison that A.3 requires
(members that were trained longer would win), and decisions depend on results only, not on their order. The price is
waiting for the slowest member, for one interval at most. Idle slots train other studies meanwhile or, as in A.3,
further populations of the same study.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from random import Random
from typing import Any

from app.domain.commands import Extend, Start, Stop
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import NewTrial, Next, Tuner
from app.search.tuners.explore import Explorer, splice
from app.search.tuners.stopping import every
from stagetree.sequences import is_same_value
from stagetree.spec import MAX_DRAWS, StudySpec

Hp = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A member of the population."""

    number: int
    trial: int
    hp: Hp
    """The sequences of its trial."""
    values: Hp
    """The configuration in force at its end."""


class Population:
    """One population. A member that a user cancels leaves it; one that fails is replaced like the worst.

    With `chance`, members of the first generation that are no better are replaced by new samples, until half of the
    population is better (A.3).
    """

    def __init__(self, spec: StudySpec, number: int, sign: float) -> None:
        tuner: Any = spec.tuner
        self._size, self._quantile = tuner.population_size, tuner.quantile
        self._ends = every(tuner.ready_steps, tuner.max_steps)
        self._explorer, self._fixed = Explorer(spec), tuple(tuner.fixed)
        self._key = f"{spec.sampling_seed}/pbt" + (f"/{number}" if number else "")
        self._mark = {"population": number} if number else {}
        self._chance = -math.inf if tuner.chance is None else sign * tuner.chance
        self._filters = tuner.chance is not None
        self._generation = self._begun = self._drawn = 0
        self._draws = MAX_DRAWS * self._size
        self._members: dict[int, Member] = {}  # by trial
        self._values: dict[int, Hp] = {}  # by trial, including former members
        self._losses: dict[int, float] = {}  # of the members that reached the end of the generation
        self._wanted: deque[Next] = deque()

    def limit(self, trials: float) -> None:
        """Sample at most this many configurations."""
        self._size, self._draws = int(min(self._size, trials)), int(min(self._draws, trials))

    def observe(self, event: TrialEvent, loss: float) -> None:
        """Take in an event of one of its trials."""
        match event.kind:
            case TrialEventKind.START:
                self._start(event)
            case TrialEventKind.PROMOTE | TrialEventKind.STOP:
                self._take_granted(event)
            case TrialEventKind.RESULT | TrialEventKind.FAIL if event.trial in self._members and self._is_due(event):
                self._losses[event.trial] = loss
            case TrialEventKind.CANCEL:
                self._leave(event.trial)
        if not self._wanted and self._members and self._is_complete():
            self._select()

    def suggest(self) -> Next | None:
        """The next action; None while the generation is trained, and after the last."""
        if self._begun < self._size:
            return self._draw(self._begun)
        return self._wanted[0] if self._wanted else None

    def _draw(self, member: int) -> NewTrial:
        return NewTrial(steps=self._ends[0], reason={"rung": 0, "member": member, **self._mark})

    def _start(self, event: TrialEvent) -> None:
        if self._wanted:
            self._wanted.popleft()
        else:
            self._begun += 1
        self._drawn += "exploits" not in event.reason
        changes = event.reason.get("explored", {})
        inherited = self._values.get(event.reason.get("exploits", -1), event.hp)
        values = {**inherited, **{name: change["to"] for name, change in changes.items()}}
        self._values[event.trial] = values
        self._members[event.trial] = Member(event.reason["member"], event.trial, event.hp, values)

    def _take_granted(self, event: TrialEvent) -> None:
        self._wanted.popleft()
        if event.kind == TrialEventKind.STOP:
            self._leave(event.trial)

    def _leave(self, trial: int) -> None:
        self._members.pop(trial, None)
        self._losses.pop(trial, None)
        self._wanted = deque(action for action in self._wanted if getattr(action, "trial", None) != trial)

    def _is_due(self, event: TrialEvent) -> bool:
        return event.kind == TrialEventKind.FAIL or event.steps in self._ends[self._generation : self._generation + 1]

    def _is_complete(self) -> bool:
        return self._begun >= self._size and self._losses.keys() == self._members.keys()

    # ------------------------------------------------------------------------------------------------- selection

    def _select(self) -> None:
        """Truncation selection at the end of a generation: trials that continue, trials that stop, and their
        successors.
        """
        if self._filters and self._generation == 0 and (redrawn := list(self._redrawn())):
            self._wanted.extend(redrawn)
            return
        ranked = sorted(self._members.values(), key=lambda member: (self._losses[member.trial], member.trial))
        self._members = {member.trial: member for member in ranked if self._is_alive(member)}
        self._generation += 1
        if self._generation < len(self._ends):
            self._wanted.extend(self._actions(ranked))
        self._losses = {}

    def _redrawn(self) -> Iterator[Next]:
        """New samples for the members that are no better than chance, unless half of them are better or the limit is
        reached.
        """
        weak = [member for member in self._members.values() if self._losses[member.trial] >= self._chance]
        if 2 * len(weak) <= self._size:
            return
        for member in weak[: self._draws - self._drawn]:
            alive = self._is_alive(member)
            self._leave(member.trial)
            if alive:
                yield Stop(trial=member.trial, reason={"rung": 0, "member": member.number, **self._mark})
            yield self._draw(member.number)

    def _actions(self, ranked: list[Member]) -> Iterator[Next]:
        survivors = ranked[: len(ranked) - self._share(len(ranked))]
        for rank, member in enumerate(ranked, start=1):
            reason = self._reason(member, rank, len(ranked))
            alive, models = self._is_alive(member), self._models(member, ranked, survivors)
            if models and (not alive or rank > len(survivors)):
                if alive:
                    yield Stop(trial=member.trial, reason=reason)
                yield self._copy(member, models, reason)
            elif alive:
                yield Extend(trial=member.trial, steps=self._ends[self._generation], reason=reason)

    def _models(self, member: Member, ranked: list[Member], survivors: list[Member]) -> list[Member]:
        """The members that may be copied: the best of the same architecture that are not among the worst of all."""
        alike = [other for other in ranked if self._is_alike(member, other)]
        best = [other for other in survivors if self._is_alike(member, other) and self._is_alive(other)]
        return best[: self._share(len(alike))]

    def _share(self, of: int) -> int:
        """The number of best, or worst, members: at least one, at most half."""
        return max(1, min(int(of * self._quantile), of // 2)) if of > 1 else 0

    def _is_alike(self, member: Member, other: Member) -> bool:
        return all(is_same_value(member.values[name], other.values[name]) for name in self._fixed)

    def _is_alive(self, member: Member) -> bool:
        return math.isfinite(self._losses[member.trial])

    def _copy(self, member: Member, models: list[Member], reason: dict[str, Any]) -> Start:
        """A new trial that copies a model up to now, and explores from here on."""
        key = f"{self._key}/{self._generation}/{member.number}"
        model = models[int(Random(key).random() * len(models))]
        changes, step = self._explorer.explore(model.values, key), self._ends[self._generation - 1]
        hp = {**model.hp, **{name: splice(model.hp[name], step, new["to"]) for name, new in changes.items()}}
        reason |= {"exploits": model.trial, "replaces": member.trial, "explored": changes}
        return Start(hp=hp, steps=self._ends[self._generation], reason=reason)

    def _reason(self, member: Member, rank: int, of: int) -> dict[str, Any]:
        loss = self._losses[member.trial]
        lost = {"loss": loss} if math.isfinite(loss) else {}
        return {"rung": self._generation, "member": member.number, "rank": rank, "of": of, **lost, **self._mark}


class Pbt(Tuner):
    """Population based training. With `populations`, another population begins when a slot has no other work."""

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
        actions = (action for population in self._populations if (action := population.suggest()) is not None)
        first = next(actions, None)
        if first is None and len(self._populations) < self._most and self._left > 1:
            return self._population(len(self._populations)).suggest()
        return first

    def _begin(self) -> None:
        self._populations.append(self._population(len(self._populations)))

    def _population(self, number: int) -> Population:
        population = Population(self._spec, number, self._sign)
        population.limit(self._left)
        return population
