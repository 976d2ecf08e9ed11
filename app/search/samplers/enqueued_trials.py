"""Enqueued trials of users and programs, which come before the samples of a sampler.

Missing values of an enqueued trial are chosen when its turn comes, by a sampler that learns, or else at random. Its
trial counts like any other, and samplers learn from it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol, runtime_checkable

from app.domain.sampler_inputs import SUGGESTION, ConfigurationSuggested, suggestion_reason
from app.domain.search_plan import Study, TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import (
    Explains,
    FirstConfigurations,
    Hp,
    Knowledge,
    Maker,
    NonAdaptive,
    Proposal,
    Sampler,
    Values,
    to_json,
)
from app.search.samplers.learning import Learns, learned_trials
from stagetree.space.suggestions import suggested_values, whole_suggestion
from stagetree.spec import StudySpec
from stagetree.spec.suggestions import suggestion_key


@runtime_checkable
class Completes(Protocol):
    """A sampler that can complete a partial configuration."""

    def complete(self, number: int, fixed: Values) -> Proposal | None:
        """As `propose`, with some values given; None if it finds none."""
        ...


class EnqueuedTrials:
    """The enqueued trials in their order without withdrawn ones, then the configurations of another sampler, `then`."""

    def __init__(self, spec: StudySpec, then: Sampler) -> None:
        self._spec, self.then = spec, then
        self._fixed: list[Values] = []
        self._begun: list[Mapping[str, Any]] = []  # the configurations of trials
        self._queue: tuple[ConfigurationSuggested, ...] = ()
        self._order: tuple[int, ...] = ()  # the indices of started and waiting enqueued trials
        self._started = self._taken = self._seen = self._learned = 0
        self._last: tuple[tuple[int, int], Proposal] | None = None

    @property
    def adaptive(self) -> bool:
        return self.then.adaptive

    def size(self) -> int | None:
        return self.then.size()

    def hear(self, study: Study) -> bool:
        """Take in the study's enqueued trials and the results of other studies; returns whether any are new."""
        before, self._order, learned = self._order, study.open_suggestions(), study.learned[self._learned :]
        self._queue = tuple(study.suggestions)
        self._learned += len(learned)
        if learned and isinstance(inner := self._inner(), Learns):
            inner.learn(learned_trials(learned))
        return before != self._order or bool(learned)

    def knowledge(self) -> Knowledge | None:
        """How much the sampler knows; None for one that does not learn."""
        inner = self._inner()
        return inner.knowledge() if isinstance(inner, Explains) else None

    def _inner(self) -> Sampler:
        """The innermost sampler."""
        return self.then.then if isinstance(self.then, FirstConfigurations) else self.then

    def _next(self, number: int) -> int | None:
        """The enqueued trial that is configuration `number`, or None."""
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
        if (index := self._next(number)) is None:
            return self.then.propose(number - max(self._taken, len(self._order)))
        if self._last is None or self._last[0] != (index, self._seen):
            self._last = (index, self._seen), self._complete(number, index)
        return self._last[1]

    def foreseen(self, number: int) -> Proposal | None:
        """The part of configuration `number` that depends on no result: its `hp` may be empty. None if there is
        none.
        """
        if (index := self._next(number)) is not None:
            whole = self._whole(index)
            if whole is None and not self.adaptive:
                return self.propose(number)
            return Proposal({} if whole is None else whole.hp, suggestion_reason(self._queue[index], index))
        number -= self._taken
        if isinstance(self.then, FirstConfigurations):
            return self.then.foreseen(number)
        return self.then.propose(number) if isinstance(self.then, NonAdaptive) else None

    def _complete(self, number: int, index: int) -> Proposal:
        """The complete configuration of an enqueued trial, and its reason."""
        proposal = self._whole(index) or self._ask_sampler(number, index) or self._sample(index)
        reason = suggestion_reason(self._queue[index], index)
        return replace(proposal, reason={**proposal.reason, **reason})

    def _whole(self, index: int) -> Proposal | None:
        """The enqueued trial, if no value is missing."""
        whole = whole_suggestion(self._spec.search_space, self._values(index))
        return None if whole is None else self._proposal(whole[0], to_json(whole[1]))

    def _ask_sampler(self, number: int, index: int) -> Proposal | None:
        """The configuration completed by the sampler, if it learns."""
        inner = self._inner()
        return inner.complete(number, self._values(index)) if isinstance(inner, Completes) else None

    def _sample(self, index: int) -> Proposal:
        maker = Maker(self._spec)
        for hp in self._begun:
            maker.take(hp)
        key = suggestion_key(self._spec.sampling_seed, index)
        sample, configuration = maker.complete(key, self._values(index))
        return self._proposal(sample, to_json(configuration))

    def _proposal(self, sample: Values, hp: Hp) -> Proposal:
        return Proposal(hp, {"sample": sample, "asked": 0} if self.adaptive else {})

    def _values(self, index: int) -> Values:
        while len(self._fixed) <= index:
            hp = self._queue[len(self._fixed)].hp
            self._fixed.append(suggested_values(self._spec.search_space, hp))
        return self._fixed[index]
