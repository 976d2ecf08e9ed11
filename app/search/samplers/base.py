"""What a sampler of configurations is; known ones before those of another sampler; and what makes configurations."""

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
"""In the reason of a start: which configuration of the study's `first` it is."""


@dataclass(frozen=True, slots=True)
class Proposal:
    """A configuration as JSON. `reason` is recorded with its trial, and all that a sampler is told of it later."""

    hp: Hp
    reason: Mapping[str, Any] = field(default_factory=dict)


class Sampler(Protocol):
    """Gives configuration after configuration, as a function of the study file and of what it has seen.

    adaptive: what it proposes depends on what it has seen.
    """

    @property
    def adaptive(self) -> bool: ...

    def propose(self, number: int) -> Proposal | None:
        """Configuration `number`, counted from 0; None when there are no more. Asked again, it says the same."""
        ...

    def size(self) -> int | None:
        """How many there are; None for no end of them."""
        ...

    def observe(self, event: TrialEvent) -> None:
        """Take in what happened to a trial. What costs something waits until a proposal needs it."""
        ...


@dataclass(frozen=True, slots=True)
class Knowledge:
    """How much a sampler that learns knows. step: whose results are in its model; None for the highest of each trial.

    results: how many there are, of other studies too. enough: how many a model needs.
    """

    step: int | None
    results: int
    enough: int


@runtime_checkable
class Explains(Protocol):
    """A sampler that learns, and says how much it knows."""

    def knowledge(self) -> Knowledge: ...


@runtime_checkable
class KnowsTree(Protocol):
    """A sampler that goes by prices."""

    def look(self, tree: TrainedTree) -> bool:
        """Prices are by this tree from now on; whether the tree is another one."""
        ...


class NonAdaptive:
    """A sampler whose proposals depend on no result."""

    adaptive = False

    def observe(self, event: TrialEvent) -> None:
        """Nothing is learned."""

    def size(self) -> int | None:
        return None


class Enqueued:
    """Configurations that the user knows already, then those of another sampler, `then`, which learns of them too."""

    def __init__(self, spec: StudySpec, then: Sampler) -> None:
        self._first = [_known(spec, number) for number in range(len(spec.first))]
        self.then = then

    @property
    def adaptive(self) -> bool:
        return self.then.adaptive

    def propose(self, number: int) -> Proposal | None:
        count = len(self._first)
        return self._first[number] if number < count else self.then.propose(number - count)

    def foreseen(self, number: int) -> Proposal | None:
        """The configuration, if it follows from no result."""
        is_foreseen = number < len(self._first) or isinstance(self.then, NonAdaptive)
        return self.propose(number) if is_foreseen else None

    def size(self) -> int | None:
        size = self.then.size()
        return None if size is None else len(self._first) + size

    def observe(self, event: TrialEvent) -> None:
        self.then.observe(event)


def _known(spec: StudySpec, number: int) -> Proposal:
    """A configuration of the user's; if it is in the space, with the values that a sampler needs to learn from it."""
    configuration = spec.first[number]
    values = spec.search_space.values(configuration)
    learned = {} if values is None else {"sample": values, "asked": 0}
    return Proposal(to_json(configuration), {FIRST: number, **learned})


def distinct_of(spec: StudySpec) -> UniqueSamples | None:
    """What keeps the study's draws apart, from each other and from `first`; None where they may repeat."""
    tuner: Any = spec.tuner
    if not tuner.distinct or isinstance(tuner, PbtTuner):
        return None
    return UniqueSamples(spec.search_space, getattr(tuner, "max_steps", None), spec.first)


Made = tuple[Values, Configuration]
"""A configuration, and the values that it was made of."""


class Maker:
    """Makes the configurations of samplers that learn, by choice and by chance, and knows which are new."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._seed, self._distinct = spec.search_space, spec.sampling_seed, distinct_of(spec)
        self.size = None if self._distinct is None else self._distinct.size()

    def take(self, hp: Mapping[str, Any]) -> None:
        """A trial has this configuration, in JSON."""
        if self._distinct is not None:
            self._distinct.take({name: parse(value) for name, value in hp.items()})

    def is_new(self, configuration: Configuration) -> bool:
        """Whether no trial has it, if that matters."""
        return self._distinct is None or self._distinct.is_new(configuration)

    def made(self, choose: Choose, fixed: Values | None = None) -> Made | None:
        """The chosen configuration with the fixed values; None where there is none, or `where` refuses it."""
        return suggestions.build_suggestion(self._space, choose, fixed)

    def by_chance(self, number: int) -> tuple[Values | None, Configuration] | None:
        """A configuration for proposal `number`; None where none is left. Its values, unless they are not in the space.

        Raises `SequenceError` where none can be found.
        """
        if self._distinct is not None and self._distinct.is_listable:
            return self._left(self._distinct, number)
        return self.completed(f"{self._seed}/{number}")

    def completed(self, key: str, fixed: Values | None = None) -> Made:
        """A configuration with the fixed values, new if one can be found. Raises `SequenceError` where there is none.

        `key` is what chance it has.
        """
        repeated: Made | None = None
        for sample in suggestions.sample_suggestion(self._space, key, fixed):
            repeated = sample
            if self.is_new(sample[1]) or sample[0].keys() == (fixed or {}).keys():
                return sample
        if repeated is None:
            text = f"must hold configurations that can be found: none of {suggestions.DRAWS} draws is one"
            raise SequenceError("", text)
        return repeated

    def _left(self, distinct: UniqueSamples, number: int) -> tuple[Values | None, Configuration] | None:
        """One of those that are left, all alike."""
        if not (left := distinct.remaining()):
            return None
        configuration = left[int(Chance(f"{self._seed}/{number}").random() * len(left))]
        return self._space.values(configuration), configuration


def to_json(configuration: Configuration) -> Hp:
    """The JSON of a configuration."""
    return {name: sequence.to_json() for name, sequence in configuration.items()}
