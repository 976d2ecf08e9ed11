"""Population based training (Jaderberg et al. 2017), with the settings of the ASHA paper, A.3.

A population is trained side by side. After each `ready_steps` steps comes a generation: the worst members are stopped,
and each is replaced by a copy of one of the best that goes on from there with other values (truncation selection).

Such a copy is a new trial whose sequences are those of the trial it copies up to that step and its own after it. So it
shares that beginning by name, and resumes from the other's checkpoint with no step run twice.

Generations are synchronous: all members are compared at the same step. That is the fair comparison that A.3 asks for
(members that were trained for longer would win), and decisions follow from results alone, in whatever order they come.
The price, waiting for the slowest member, is at most one interval, and free slots serve other studies meanwhile.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any

from app.domain.commands import Extend, Start, Stop, TunerAction
from app.domain.search_plan import TrialEvent
from app.domain.states import TrialEventKind
from app.scheduling.tuners.base import NewTrial, Next, Tuner
from app.scheduling.tuners.explore import Explorer, spliced
from app.scheduling.tuners.stopping import every
from stagetree.spec import StudySpec

Hp = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Member:
    """A place in the population. hp: what its trial trains with. values: the configuration in force at its end."""

    number: int
    trial: int
    hp: Hp
    values: Hp


class Pbt(Tuner):
    """Population based training. A member that a user cancels leaves; one that fails is replaced like the worst."""

    eager = True

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        tuner: Any = spec.tuner
        self._size, self._quantile = tuner.population_size, tuner.quantile
        self._ends = every(tuner.ready_steps, tuner.max_steps)
        self._explorer, self._seed, self._fixed = Explorer(spec), spec.sampling_seed, tuple(tuner.fixed)
        self._generation = self._begun = 0
        self._members: dict[int, Member] = {}  # by trial
        self._values: dict[int, Hp] = {}  # of every trial there ever was
        self._losses: dict[int, float] = {}  # of the members that came to the end of the generation
        self._wanted: deque[TunerAction] = deque()

    def set_max_trials(self, trials: int) -> None:
        self._size = min(self._size, trials)

    def observe(self, event: TrialEvent) -> None:
        match event.kind:
            case TrialEventKind.START:
                self._start(event)
            case TrialEventKind.PROMOTE | TrialEventKind.STOP:
                self._granted(event)
            case TrialEventKind.RESULT | TrialEventKind.FAIL if event.trial in self._members and self._is_due(event):
                self._losses[event.trial] = self.loss(event)
            case TrialEventKind.CANCEL:
                self._leave(event.trial)
        if not self._wanted and self._members and self._is_complete():
            self._select()

    def suggest(self) -> Next | None:
        if self._begun < self._size:
            return NewTrial(steps=self._ends[0], reason={"rung": 0, "member": self._begun})
        return self._wanted[0] if self._wanted else None

    def suggest_many(self, most: int) -> Sequence[Next]:
        members = range(self._begun, min(self._size, self._begun + most))
        starts = [NewTrial(steps=self._ends[0], reason={"rung": 0, "member": member}) for member in members]
        return starts or super().suggest_many(most)

    # ------------------------------------------------------------------------------------------------ population

    def _start(self, event: TrialEvent) -> None:
        if self._wanted:
            self._wanted.popleft()
        else:
            self._begun += 1
        changes = event.reason.get("explored", {})
        inherited = self._values.get(event.reason.get("exploits", -1), event.hp)
        values = {**inherited, **{name: change["to"] for name, change in changes.items()}}
        self._values[event.trial] = values
        self._members[event.trial] = Member(event.reason["member"], event.trial, event.hp, values)

    def _granted(self, event: TrialEvent) -> None:
        self._wanted.popleft()
        if event.kind == TrialEventKind.STOP:
            self._leave(event.trial)

    def _leave(self, trial: int) -> None:
        self._members.pop(trial, None)
        self._losses.pop(trial, None)
        self._wanted = deque(action for action in self._wanted if isinstance(action, Start) or action.trial != trial)

    def _is_due(self, event: TrialEvent) -> bool:
        return event.kind == TrialEventKind.FAIL or event.steps in self._ends[self._generation : self._generation + 1]

    def _is_complete(self) -> bool:
        return self._begun >= self._size and self._losses.keys() == self._members.keys()

    # ------------------------------------------------------------------------------------------------- selection

    def _select(self) -> None:
        """The generation is complete: who goes on, who is stopped, and who takes its place (truncation selection)."""
        ranked = sorted(self._members.values(), key=lambda member: (self._losses[member.trial], member.trial))
        self._members = {member.trial: member for member in ranked if self._is_alive(member)}
        self._generation += 1
        if self._generation < len(self._ends):
            self._wanted.extend(self._actions(ranked))
        self._losses = {}

    def _actions(self, ranked: list[Member]) -> Iterator[TunerAction]:
        kept = ranked[: len(ranked) - self._share(len(ranked))]
        for rank, member in enumerate(ranked, start=1):
            reason = self._reason(member, rank, len(ranked))
            alive, models = self._is_alive(member), self._models(member, ranked, kept)
            if models and (not alive or rank > len(kept)):
                if alive:
                    yield Stop(trial=member.trial, reason=reason)
                yield self._copy(member, models, reason)
            elif alive:
                yield Extend(trial=member.trial, steps=self._ends[self._generation], reason=reason)

    def _models(self, member: Member, ranked: list[Member], kept: list[Member]) -> list[Member]:
        """Whom a member may copy: the best of its own architecture that are not among the worst of all."""
        alike = [other for other in ranked if self._is_alike(member, other)]
        best = [other for other in kept if self._is_alike(member, other) and self._is_alive(other)]
        return best[: self._share(len(alike))]

    def _share(self, of: int) -> int:
        """How many of so many are the best, or the worst: at least one, and at most half."""
        return max(1, min(int(of * self._quantile), of // 2)) if of > 1 else 0

    def _is_alike(self, member: Member, other: Member) -> bool:
        return all(member.values[name] == other.values[name] for name in self._fixed)

    def _is_alive(self, member: Member) -> bool:
        return math.isfinite(self._losses[member.trial])

    def _copy(self, member: Member, models: list[Member], reason: dict[str, Any]) -> Start:
        """A new trial that is one of the models until now, and explores from here on."""
        key = f"{self._seed}/pbt/{self._generation}/{member.number}"
        model = models[int(Random(key).random() * len(models))]
        changes, step = self._explorer.explore(model.values, key), self._ends[self._generation - 1]
        hp = {**model.hp, **{name: spliced(model.hp[name], step, new["to"]) for name, new in changes.items()}}
        reason |= {"exploits": model.trial, "replaces": member.trial, "explored": changes}
        return Start(hp=hp, steps=self._ends[self._generation], reason=reason)

    def _reason(self, member: Member, rank: int, of: int) -> dict[str, Any]:
        loss = self._losses[member.trial]
        lost = {"loss": loss} if math.isfinite(loss) else {}
        return {"rung": self._generation, "member": member.number, "rank": rank, "of": of, **lost}
