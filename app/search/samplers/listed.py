"""Samplers that learn nothing: random, grid, and quasi-random."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import count, islice
from typing import Any

from app.domain.sampler_inputs import SUGGESTION
from app.domain.search_plan import TrialEvent
from app.domain.terms import TrialEventKind
from app.search.samplers.base import FIRST, NonAdaptive, Proposal, distinct_of, to_json
from stagetree.sequences import Sequence, SequenceError, parse
from stagetree.space.distinct import Configuration
from stagetree.spec import StudySpec


class OrderedConfigurations(NonAdaptive):
    """Configurations in a fixed order, without the configurations of earlier enqueued trials.

    A sample depends only on the samples and enqueued trials before it, even if later ones were requested early.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._begun = 0

    def observe(self, event: TrialEvent) -> None:
        if event.kind == TrialEventKind.START and SUGGESTION in event.reason:
            self.skip({name: parse(value) for name, value in event.hp.items()})
        elif event.kind == TrialEventKind.START and FIRST not in event.reason:
            self._begun += 1

    def skip(self, configuration: Configuration) -> None:
        """Do not propose this configuration later, unless samples may repeat."""
        raise NotImplementedError


class SampledConfigurations(OrderedConfigurations):
    """Configurations that a subclass samples one after the other, without repeats if the study is `distinct`."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        self._space, self._seed = spec.search_space, spec.sampling_seed
        self._found: list[tuple[int, dict[str, Sequence]]] = []  # each, after how many samples
        self._make_distinct, self._sample_count = partial(distinct_of, spec), 0
        self._distinct = self._make_distinct()
        self._size = None if self._distinct is None else self._distinct.size()
        self._suggested = list[Configuration]()
        self._more = self._onward(0)

    def samples(self) -> Iterator[dict[str, Sequence]]:
        """An endless sequence of configurations: a function of the study file."""
        raise NotImplementedError

    def _onward(self, samples: int) -> Iterator[dict[str, Sequence]]:
        """The samples after the first `draws`."""
        self._sample_count = samples
        drawn = self._count(islice(self.samples(), samples, None))
        return drawn if self._distinct is None else self._distinct.skip_repeats(drawn, self._seed)

    def _count(self, samples: Iterator[dict[str, Sequence]]) -> Iterator[dict[str, Sequence]]:
        for each in samples:
            self._sample_count += 1
            yield each

    def skip(self, configuration: Configuration) -> None:
        if self._distinct is None or (distinct := self._make_distinct()) is None:
            return
        self._suggested.append(configuration)
        self._found = self._found[: self._begun]
        self._distinct = distinct
        for taken in (*(found for _, found in self._found), *self._suggested):
            distinct.take(taken)
        self._more = self._onward(self._found[-1][0] if self._found else 0)

    def propose(self, number: int) -> Proposal | None:
        more = islice(self._more, max(0, number + 1 - len(self._found)))
        for configuration in more:
            self._found.append((self._sample_count, configuration))
        return Proposal(to_json(self._found[number][1])) if number < len(self._found) else None

    def size(self) -> int | None:
        return self._size


class Random(SampledConfigurations):
    """Independent samples from the space: configuration n of a seed is always the same."""

    def samples(self) -> Iterator[dict[str, Sequence]]:
        return (self._space.sample(self._seed, number) for number in count())


class Grid(OrderedConfigurations):
    """The combinations of the space in the written order, once each."""

    def __init__(self, spec: StudySpec) -> None:
        super().__init__(spec)
        distinct, grid = distinct_of(spec), spec.search_space.grid()
        self._is_same = None if distinct is None else distinct.are_same
        self._configurations = list(grid if distinct is None else filter(distinct.take, grid))
        self._size = len(self._configurations)

    def skip(self, configuration: Configuration) -> None:
        if (is_same := self._is_same) is not None:
            left = (each for each in self._configurations[self._begun :] if not is_same(each, configuration))
            self._configurations[self._begun :] = left

    def propose(self, number: int) -> Proposal | None:
        return Proposal(to_json(self._configurations[number])) if number < len(self._configurations) else None

    def size(self) -> int | None:
        return self._size


_BATCH = 64
ATTEMPTS = 1000
"""After this many rejected points in a row, the space is considered empty."""


class QMCSampler(SampledConfigurations):
    """The points of a Sobol or Halton sequence, scrambled by the study's seed, that are configurations.

    One dimension for each free parameter. Points that `where` rejects are left out, so that proposal n is a function of
    the study file only.
    """

    def __init__(self, spec: StudySpec, kind: str) -> None:
        self._kind, self._parameters = kind, spec.search_space.parameters()
        super().__init__(spec)

    def samples(self) -> Iterator[dict[str, Sequence]]:
        refused = 0
        for point in self._points():
            configuration = self._configuration(point)
            if configuration is not None:
                refused = 0
                yield configuration
            elif (refused := refused + 1) >= ATTEMPTS:
                raise SequenceError("", f"must contain valid configurations: none of {ATTEMPTS} points is one")

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
