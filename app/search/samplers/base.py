"""The interface of samplers, and the parts that several of them use."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from random import Random as Chance
from typing import Any, Protocol, runtime_checkable

from app.domain.pricing import TrainedTree
from app.domain.search_plan import TrialEvent
from stagetree.sequences import SequenceError, parse
from stagetree.space import Choose, suggestions
from stagetree.space.distinct import Configuration, UniqueSamples
from stagetree.spec import StudySpec
from stagetree.spec.tuners import PbtTuner

Hp = dict[str, Any]
Values = dict[str, Any]
"""A value for each free parameter of the space, as `Space.build` takes them."""

FIRST = "first"
"""The key, in the reason of a start, of the configuration's index in the study's `first`."""
RANDOM_SHARE = 1 / 3
"""The part of the proposals that is random where trials are stopped early (ρ of BOHB, Falkner et al. 2018, alg. 2).

A model expects much where it knows nothing about the last step, and a trial that is stopped at the first rung says
little of that: without random ones, a search may propose nearly equal trials, which are stopped, again and again. A bad
trial costs little where it is stopped.
"""


def is_random(seed: int, number: int) -> bool:
    """Whether proposal `number` is random where trials are stopped early."""
    return Chance(f"{seed}/{number}/random").random() < RANDOM_SHARE


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration as JSON. `reason` is recorded with its trial, and is all that the sampler gets back of it
    later.
    """

    hp: Hp
    reason: Mapping[str, Any] = field(default_factory=dict)


class Sampler(Protocol):
    """Proposes configuration after configuration, as a function of the study file and of observed events.

    adaptive: its proposals depend on observed events.
    """

    @property
    def adaptive(self) -> bool: ...

    def propose(self, number: int) -> Proposal | None:
        """Configuration `number`, counted from 0; None if there are no more. Repeated calls return the same."""
        ...

    def size(self) -> int | None:
        """The number of configurations; None if unlimited."""
        ...

    def observe(self, event: TrialEvent) -> None:
        """Take in a trial's event. Expensive work waits until a proposal needs it."""
        ...


@dataclass(frozen=True, slots=True)
class Knowledge:
    """The data of a learning sampler. step: the step whose results its model uses; None for the highest of each
    trial.

    results: the number of results, including those of other studies. enough: the number that a model needs.
    """

    step: int | None
    results: int
    enough: int


@runtime_checkable
class Explains(Protocol):
    """A sampler that learns, and reports how much it knows."""

    def knowledge(self) -> Knowledge: ...


@runtime_checkable
class KnowsTree(Protocol):
    """A sampler that uses prices."""

    def look(self, tree: TrainedTree) -> bool:
        """Use this tree for prices from now on; returns whether it is another one."""
        ...


class NonAdaptive:
    """A sampler whose proposals depend on no result."""

    adaptive = False

    def observe(self, event: TrialEvent) -> None:
        """Nothing to learn."""

    def size(self) -> int | None:
        return None


class FirstConfigurations:
    """The configurations of the study's `first`, followed by another sampler, which learns from them too."""

    def __init__(self, spec: StudySpec, then: Sampler) -> None:
        self._first = [_first_proposal(spec, number) for number in range(len(spec.first))]
        self.then = then

    @property
    def adaptive(self) -> bool:
        return self.then.adaptive

    def propose(self, number: int) -> Proposal | None:
        count = len(self._first)
        return self._first[number] if number < count else self.then.propose(number - count)

    def foreseen(self, number: int) -> Proposal | None:
        """The configuration, if it depends on no result."""
        is_foreseen = number < len(self._first) or isinstance(self.then, NonAdaptive)
        return self.propose(number) if is_foreseen else None

    def size(self) -> int | None:
        size = self.then.size()
        return None if size is None else len(self._first) + size

    def observe(self, event: TrialEvent) -> None:
        self.then.observe(event)


def _first_proposal(spec: StudySpec, number: int) -> Proposal:
    """A configuration of `first`. If it lies in the space, with the values that a sampler needs to learn from it."""
    configuration = spec.first[number]
    values = spec.search_space.values(configuration)
    learned = {} if values is None else {"sample": values, "asked": 0}
    return Proposal(to_json(configuration), {FIRST: number, **learned})


def distinct_of(spec: StudySpec) -> UniqueSamples | None:
    """Keeps the study's samples distinct, from each other and from `first`; None if they may repeat."""
    tuner: Any = spec.tuner
    if not tuner.distinct or isinstance(tuner, PbtTuner):
        return None
    return UniqueSamples(spec.search_space, getattr(tuner, "max_steps", None), spec.first)


Made = tuple[Values, Configuration]
"""The values and the configuration made from them."""


class Maker:
    """Builds configurations for samplers that learn, chosen or random, and knows which are new."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._seed, self._distinct = spec.search_space, spec.sampling_seed, distinct_of(spec)
        self.size = None if self._distinct is None else self._distinct.size()

    def take(self, hp: Mapping[str, Any]) -> None:
        """Note that a trial has this configuration, in JSON."""
        if self._distinct is not None:
            self._distinct.take({name: parse(value) for name, value in hp.items()})

    def is_new(self, configuration: Configuration) -> bool:
        """Whether no trial has it. True if samples may repeat."""
        return self._distinct is None or self._distinct.is_new(configuration)

    def build(self, choose: Choose, fixed: Values | None = None) -> Made | None:
        """The chosen configuration with the fixed values; None if there is none, or `where` rejects it."""
        return suggestions.build_suggestion(self._space, choose, fixed)

    def sample(self, number: int) -> tuple[Values | None, Configuration] | None:
        """A random configuration for proposal `number`, with its values if it lies in the space; None if none is left.

        Raises `SequenceError` if sampling finds none.
        """
        if self._distinct is not None and self._distinct.is_listable:
            return self._sample_remaining(self._distinct, number)
        return self.complete(f"{self._seed}/{number}")

    def complete(self, key: str, fixed: Values | None = None) -> Made:
        """A random configuration with the fixed values, new if possible. Raises `SequenceError` if there is none.

        key: seeds the random numbers.
        """
        repeated: Made | None = None
        for sample in suggestions.sample_suggestion(self._space, key, fixed):
            repeated = sample
            if self.is_new(sample[1]) or sample[0].keys() == (fixed or {}).keys():
                return sample
        if repeated is None:
            text = f"must contain valid configurations: none of {suggestions.DRAWS} samples is one"
            raise SequenceError("", text)
        return repeated

    def _sample_remaining(self, distinct: UniqueSamples, number: int) -> tuple[Values | None, Configuration] | None:
        """One of the remaining configurations, with equal probability."""
        if not (left := distinct.remaining()):
            return None
        configuration = left[int(Chance(f"{self._seed}/{number}").random() * len(left))]
        return self._space.values(configuration), configuration


def to_json(configuration: Configuration) -> Hp:
    return {name: sequence.to_json() for name, sequence in configuration.items()}
