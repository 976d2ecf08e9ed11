"""What a sampler of configurations is, and those that need no library: random draws, the grid, quasi-random points."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import count, islice
from random import Random as Chance
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from app.domain.pricing import TrainedTree
from app.domain.search_plan import TrialEvent
from stagetree.sequences import Sequence, SequenceError, parse
from stagetree.space import Choose, Distribution, drawing
from stagetree.space.distinct import Configuration, Distinct
from stagetree.spec import StudySpec
from stagetree.spec.tuners import PbtTuner

if TYPE_CHECKING:
    from stagetree.sequences import Sequence


Hp = dict[str, Any]
Values = dict[str, Any]
"""A value for each free parameter of the space, as `Space.build` takes them."""


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


class Drawn(NonAdaptive):
    """Configurations that a subclass draws one after the other, none twice where the study is `distinct`."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._seed = spec.search_space, spec.sampling_seed
        self._found: list[Proposal] = []
        self._distinct, self._more = distinct_of(spec), self.draws()
        self._size = None if self._distinct is None else self._distinct.size()
        if self._distinct is not None:
            self._more = self._distinct.without_repeats(self._more, self._seed)

    def draws(self) -> Iterator[dict[str, Sequence]]:
        """Configurations without end: a function of the study file."""
        raise NotImplementedError

    def propose(self, number: int) -> Proposal | None:
        more = islice(self._more, max(0, number + 1 - len(self._found)))
        self._found += (Proposal(to_json(configuration)) for configuration in more)
        return self._found[number] if number < len(self._found) else None

    def size(self) -> int | None:
        return self._size


class Random(Drawn):
    """Independent draws from the space: configuration n of a seed is always the same."""

    def draws(self) -> Iterator[dict[str, Sequence]]:
        return (self._space.sample(self._seed, number) for number in count())


class Grid(NonAdaptive):
    """The combinations of the space in the order written, once each."""

    def __init__(self, spec: StudySpec) -> None:
        distinct, grid = distinct_of(spec), spec.search_space.grid()
        unlike = grid if distinct is None else filter(distinct.take, grid)
        self._configurations = [to_json(configuration) for configuration in unlike]

    def propose(self, number: int) -> Proposal | None:
        return Proposal(self._configurations[number]) if number < len(self._configurations) else None

    def size(self) -> int | None:
        return len(self._configurations)


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
    return Proposal(to_json(configuration), {"first": number, **learned})


def distinct_of(spec: StudySpec) -> Distinct | None:
    """What keeps the study's draws apart, from each other and from `first`; None where they may repeat."""
    tuner: Any = spec.tuner
    if not tuner.distinct or isinstance(tuner, PbtTuner):
        return None
    return Distinct(spec.search_space, getattr(tuner, "max_steps", None), spec.first)


Made = tuple[Values, Configuration]
"""A configuration, and the values that it was made of."""

DRAWS = 1000


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

    def made(self, choose: Choose) -> Made | None:
        """The chosen configuration; None where it makes no sequence, or `where` refuses it."""
        sample: Values = {}

        def kept(place: str, free: Distribution) -> Any:
            if free.low == free.high:
                return free.low
            sample[place] = choose(place, free)
            return sample[place]

        try:
            configuration = self._space.compose(kept)
        except SequenceError:
            return None
        return (sample, configuration) if self._space.allows(configuration) else None

    def by_chance(self, number: int) -> tuple[Values | None, Configuration] | None:
        """A configuration for proposal `number`; None where none is left. Its values, unless they are not in the space.

        Raises `SequenceError` where none can be found.
        """
        if self._distinct is not None and self._distinct.is_listable:
            return self._left(self._distinct, number)
        repeated: Made | None = None
        for attempt in range(DRAWS):
            if (made := self.made(drawing(Chance(f"{self._seed}/{number}/{attempt}")))) is not None:
                repeated = made
                if self.is_new(made[1]):
                    return made
        if repeated is None:
            raise SequenceError("", f"must hold configurations that can be found: none of {DRAWS} draws is one")
        return repeated

    def _left(self, distinct: Distinct, number: int) -> tuple[Values | None, Configuration] | None:
        """One of those that are left, all alike."""
        if not (left := distinct.left()):
            return None
        configuration = left[int(Chance(f"{self._seed}/{number}").random() * len(left))]
        return self._space.values(configuration), configuration


def to_json(configuration: Mapping[str, Sequence]) -> Hp:
    """The JSON of a configuration."""
    return {name: sequence.to_json() for name, sequence in configuration.items()}


_BATCH = 64
ATTEMPTS = 1000
"""How many points in a row may be no configuration before we say that the space lets nothing through."""


class QMCSampler(Drawn):
    """The points of a Sobol or Halton sequence, scrambled by the study's seed, that are configurations.

    One dimension for each free parameter. Points that `where` refuses are passed over, so that number n is a function
    of the study file alone.
    """

    def __init__(self, spec: StudySpec, kind: str) -> None:
        self._kind, self._parameters = kind, spec.search_space.parameters()
        super().__init__(spec)

    def draws(self) -> Iterator[dict[str, Sequence]]:
        refused = 0
        for point in self._points():
            configuration = self._configuration(point)
            if configuration is not None:
                refused = 0
                yield configuration
            elif (refused := refused + 1) >= ATTEMPTS:
                raise SequenceError("", f"must hold configurations that can be found: none of {ATTEMPTS} points is")

    def _configuration(self, point: Any) -> dict[str, Sequence] | None:
        values = {name: free.at(float(u)) for (name, free), u in zip(self._parameters.items(), point, strict=False)}
        try:
            configuration = self._space.build(values)
        except SequenceError:
            return None
        return configuration if self._space.allows(configuration) else None

    def _points(self) -> Iterator[Any]:
        from scipy.stats import qmc

        make = qmc.Sobol if self._kind == "sobol" else qmc.Halton
        engine = make(max(1, len(self._parameters)), scramble=True, rng=self._seed)
        while True:
            yield from engine.random(_BATCH)
