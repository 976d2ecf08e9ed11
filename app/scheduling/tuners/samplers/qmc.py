"""Quasi-random points (QMC): they fill the space more evenly than independent draws do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from app.scheduling.tuners.samplers.base import Drawn
from stagetree.sequences import SequenceError
from stagetree.spec import StudySpec

if TYPE_CHECKING:
    from stagetree.sequences import Sequence

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
