"""Where new configurations come from: a part of its own, usable with any tuner that samples.

What a source proposes is recorded with the trial, so replay never asks it again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from stagetree.spec import StudySpec

Hp = dict[str, Any]


class Source(Protocol):
    """Gives configuration after configuration."""

    def propose(self, number: int) -> Hp | None:
        """The JSON of configuration `number`, counted from 0; None when there are no more."""
        ...

    def size(self) -> int | None:
        """How many there are; None for no end of them."""
        ...


class Random:
    """Independent draws from the space: configuration n of a seed is always the same."""

    def __init__(self, spec: StudySpec) -> None:
        self._space, self._seed = spec.search_space, spec.seed

    def propose(self, number: int) -> Hp | None:
        return _json(self._space.sample(self._seed, number))

    def size(self) -> int | None:
        return None


class Grid:
    """The combinations of the space in the order written, once each."""

    def __init__(self, spec: StudySpec) -> None:
        self._configurations = [_json(configuration) for configuration in spec.search_space.grid()]

    def propose(self, number: int) -> Hp | None:
        return self._configurations[number] if number < len(self._configurations) else None

    def size(self) -> int | None:
        return len(self._configurations)


SOURCES: dict[str, type[Random] | type[Grid]] = {"random": Random, "grid": Grid}


def _json(configuration: Mapping[str, Any]) -> Hp:
    return {name: sequence.to_json() for name, sequence in configuration.items()}
