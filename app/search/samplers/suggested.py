"""Suggestions of people and programs, which take the next places of a tuner, before the draws of its sampler.

Missing values of a suggestion are chosen when its place comes: by a sampler that learns, as it would choose, or else by
chance. Its trial counts as any other, and samplers learn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from app.domain.search_plan import Study, TrialEvent
from app.domain.study_annotations import SUGGESTION, ConfigurationSuggested, reason_of
from app.domain.terms import TrialEventKind
from app.search.samplers.base import (
    Enqueued,
    Explains,
    Hp,
    Knowledge,
    Maker,
    NonAdaptive,
    Proposal,
    Sampler,
    Values,
    to_json,
)
from app.search.samplers.learning import Learns, learned_of
from stagetree.space.suggestions import made, resolved
from stagetree.spec import StudySpec
from stagetree.spec.suggestions import key_of


@runtime_checkable
class Completes(Protocol):
    """A sampler that chooses the rest of a configuration."""

    def complete(self, number: int, fixed: Values) -> Proposal | None:
        """As `propose`, with some of the values given; None where it finds none."""
        ...


class Suggested:
    """The suggestions, then the configurations of another sampler, `then`.

    Suggestions are taken up in the order in which they came, without the withdrawn ones.
    """

    def __init__(self, spec: StudySpec, then: Sampler) -> None:
        self._spec, self.then = spec, then
        self._fixed: list[Values] = []
        self._begun: list[Mapping[str, Any]] = []  # what trials have
        self._suggestions: tuple[ConfigurationSuggested, ...] = ()
        self._order: tuple[int, ...] = ()  # the numbers of those that were taken up, and of those that wait
        self._started = self._taken = self._seen = self._learned = 0
        self._last: tuple[tuple[int, int], Proposal] | None = None

    @property
    def adaptive(self) -> bool:
        return self.then.adaptive

    def size(self) -> int | None:
        return self.then.size()

    def hear(self, study: Study) -> bool:
        """Take in what the study was told: suggestions, and results of other studies; whether any of it is new."""
        before, self._order, learned = self._order, study.open_suggestions(), study.learned[self._learned :]
        self._suggestions = tuple(study.suggestions)
        self._learned += len(learned)
        if learned and isinstance(inner := self._inner(), Learns):
            inner.learn(learned_of(learned))
        return before != self._order or bool(learned)

    def knowledge(self) -> Knowledge | None:
        """How much the sampler knows; None for one that does not learn."""
        inner = self._inner()
        return inner.knowledge() if isinstance(inner, Explains) else None

    def _inner(self) -> Sampler:
        """The sampler that draws."""
        return self.then.then if isinstance(self.then, Enqueued) else self.then

    def _next(self, number: int) -> int | None:
        """The suggestion that configuration `number` takes up, if it takes up one."""
        place = self._taken + number - self._started
        return self._order[place] if place < len(self._order) else None

    def observe(self, event: TrialEvent) -> None:
        self._seen += 1
        if event.kind == TrialEventKind.START:
            self._started += 1
            self._begun.append(event.hp)
            self._taken += SUGGESTION in event.reason
        self.then.observe(event)

    def propose(self, number: int) -> Proposal | None:
        if (suggestion := self._next(number)) is None:
            return self.then.propose(number - max(self._taken, len(self._order)))
        if self._last is None or self._last[0] != (suggestion, self._seen):
            self._last = (suggestion, self._seen), self._completed(number, suggestion)
        return self._last[1]

    def foreseen(self, number: int) -> Proposal | None:
        """The part of configuration `number` that follows from no result: its `hp` may be empty. None for nothing."""
        if (suggestion := self._next(number)) is not None:
            whole = self._whole(suggestion)
            if whole is None and not self.adaptive:
                return self.propose(number)
            return Proposal({} if whole is None else whole.hp, reason_of(self._suggestions[suggestion], suggestion))
        number -= self._taken
        if isinstance(self.then, Enqueued):
            return self.then.foreseen(number)
        return self.then.propose(number) if isinstance(self.then, NonAdaptive) else None

    def _completed(self, number: int, suggestion: int) -> Proposal:
        """The whole configuration of a suggestion, and its reason."""
        proposal = self._whole(suggestion) or self._chosen(number, suggestion) or self._drawn(suggestion)
        reason = reason_of(self._suggestions[suggestion], suggestion)
        return replace(proposal, reason={**proposal.reason, **reason})

    def _whole(self, suggestion: int) -> Proposal | None:
        """The suggestion, if nothing is left to choose."""
        fixed = self._values(suggestion)
        lowest = made(self._spec.search_space, lambda place, free: free.low, fixed)
        return self._proposal(lowest[0], to_json(lowest[1])) if lowest is not None and lowest[0] == fixed else None

    def _chosen(self, number: int, suggestion: int) -> Proposal | None:
        """The rest as the sampler chooses it, if it learns."""
        inner = self._inner()
        return inner.complete(number, self._values(suggestion)) if isinstance(inner, Completes) else None

    def _drawn(self, suggestion: int) -> Proposal:
        maker = Maker(self._spec)
        for hp in self._begun:
            maker.take(hp)
        sample, configuration = maker.completed(self._key(suggestion), self._values(suggestion))
        return self._proposal(sample, to_json(configuration))

    def _proposal(self, sample: Values, hp: Hp) -> Proposal:
        return Proposal(hp, {"sample": sample, "asked": 0} if self.adaptive else {})

    def _key(self, suggestion: int) -> str:
        return key_of(self._spec.sampling_seed, suggestion)

    def _values(self, suggestion: int) -> Values:
        while len(self._fixed) <= suggestion:
            hp = self._suggestions[len(self._fixed)].hp
            self._fixed.append(resolved(self._spec.search_space, hp))
        return self._fixed[suggestion]
