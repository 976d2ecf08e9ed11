"""Population based training (Jaderberg et al. 2017), with the settings of the ASHA paper, A.3.

All members train side by side. After every `ready_steps` steps a generation ends: the worst members are stopped, and
each is replaced by a copy of one of the best, which continues from there with other values (truncation selection).

A copy is a new trial with the sequences of the copied trial up to that step and its own after it. So it shares that
part by name, and resumes from the other's checkpoint without training any step twice.

Generations are synchronous: all members are compared at the same step. That is the fair comparison that A.3 requires
(members that were trained longer would win), and decisions depend on results only, not on their order. The price is
waiting for the slowest member, for one interval at most. Idle slots train other studies meanwhile or, as in A.3,
further populations of the same study.

PBT's explore (ASHA paper, A.3): new values near given ones, and changing a trial's sequences midway.

A value of a distribution is multiplied by one of the factors and kept inside its bounds. A whole number, or a value of
a range with steps, moves by at least one step, a choice to a neighbouring option. Values that the space fixes stay.
This holds for every distribution, also inside a sequence.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from app.domain.commands import Extend, Start, Stop
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.tuners.base import NewTrial, Next, Tuner
from app.search.tuners.stopping import every
from stagetree.sequences import SequenceError, first_parts, is_fraction, is_same_value, parse
from stagetree.space import Choice, Range
from stagetree.space.patterns import bare, values_of
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


# -------------------------------------------------------------------------------------------------------------- explore


Json = dict[str, Any]

ATTEMPTS = 20
"""How often exploring is retried if it gives no valid configuration, or the same one."""


class Explorer:
    """Explores around configurations of a study's space. Its random numbers are seeded by text keys only."""

    def __init__(self, spec: StudySpec) -> None:
        tuner: Any = spec.tuner
        self._space, self._fixed = spec.search_space, frozenset(tuner.fixed)
        self._resample, self._factors = tuner.resample_probability, tuple(tuner.factors)

    def explore(self, hp: Mapping[str, Any], key: str) -> dict[str, Json]:
        """The changes of a configuration: for each changed name, how, from which value and to which."""
        for attempt in range(ATTEMPTS):
            try:
                changes = self._attempt(hp, f"{key}/{attempt}")
            except SequenceError:
                continue  # such as milestones that no longer ascend
            explored = {**hp, **{name: change["to"] for name, change in changes.items()}}
            if changes and self._space.allows({name: parse(value) for name, value in explored.items()}):
                return changes
        return {}

    def _attempt(self, hp: Mapping[str, Any], key: str) -> dict[str, Json]:
        free = [name for name in hp if name not in self._fixed]
        tried = {name: self._change(name, hp[name], Random(f"{key}/{name}")) for name in free}
        return {name: change for name, change in tried.items() if not is_same_value(change["to"], change["from"])}

    def _change(self, name: str, value: Any, rng: Random) -> Json:
        pattern = self._space.patterns[name]
        resampled = rng.random() < self._resample
        new = sample_pattern(pattern, rng) if resampled else perturb(pattern, value, rng, self._factors)
        return {
            "by": "resample" if resampled else "perturb",
            "from": value,
            "to": self._space.read(name, new).to_json(),
        }


def sample_pattern(pattern: Any, rng: Random) -> Any:
    """A random value of a pattern of the space."""
    match pattern:
        case Choice():
            return sample_pattern(pattern.options[pattern.at(rng.random())], rng)
        case Range():
            return pattern.at(rng.random())
        case dict():
            return {name: sample_pattern(item, rng) for name, item in pattern.items()}
        case list():
            return [sample_pattern(item, rng) for item in pattern]
    return pattern


def perturb(pattern: Any, value: Any, rng: Random, factors: Sequence[float]) -> Any:
    """A value of the pattern near the given one; the same if there is none."""
    value = bare(pattern, value)
    match pattern:
        case Choice():
            return _neighbour(pattern, value, rng, factors)
        case Range() if pattern.step is not None:
            return _step(pattern, value, factors[int(rng.random() * len(factors))])
        case Range():
            return pattern.near(value * factors[int(rng.random() * len(factors))])
        case dict() if is_fraction(pattern):
            return value  # a fraction of the trial's length stays
        case dict():
            inside = [name for name in pattern if name in value]
            return {**value, **{name: perturb(pattern[name], value[name], rng, factors) for name in inside}}
        case list():
            return [perturb(item, old, rng, factors) for item, old in zip(pattern, value, strict=True)]
    return value


def _step(among: Range, value: Any, factor: float) -> Any:
    """Another value in the direction of the factor, or the neighbour on the other side at a bound."""
    up, down = among.near(value + among.step), among.near(value - among.step)
    moved = among.near(round(value * factor) if among.is_whole else value * factor)
    return next((near for near in (moved, *((up, down) if factor > 1 else (down, up))) if near != value), value)


def _neighbour(choice: Choice, value: Any, rng: Random, factors: Sequence[float]) -> Any:
    """The option before or after the current one; for a single option, a value near."""
    fitting = (number for number, option in enumerate(choice.options) if values_of(option, "", value) is not None)
    if (number := next(fitting, None)) is None:
        return value
    if len(choice.options) == 1:
        return perturb(choice.options[0], value, rng, factors)
    neighbours = [n for n in (number - 1, number + 1) if 0 <= n < len(choice.options)]
    return sample_pattern(choice.options[neighbours[int(rng.random() * len(neighbours))]], rng)


def splice(before: Any, step: int, after: Any) -> Json:
    """The sequence `before` for the first `step` steps, then `after` as if it had begun at step 0.

    The names of the nodes up to `step` do not change, so their training is shared.
    """
    skip = {} if after["family"] == "constant" else {"skip": step}
    return {"family": "piecewise", "parts": [*first_parts(before, step), {**skip, "sequence": after}]}
