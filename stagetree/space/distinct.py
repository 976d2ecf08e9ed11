"""Sampling without repetition: no configuration twice while the space has another one.

Two configurations are the same if every hyper-parameter has the same canonical pieces up to the last step that the
study trains. Their trials then pass the same nodes of the search plan, however they are written.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from hashlib import sha256
from itertools import islice
from random import Random
from typing import Any

from stagetree.sequences import Sequence
from stagetree.sequences.tape import pieces_before, pieces_of
from stagetree.space.space import Space

MOST_LISTED = 10_000
"""Spaces with more combinations are not listed; new configurations then come from sampling only."""

REPEATS = 100
"""After this many repeats in a row, the remaining configurations are listed. Without a list, a repeat is accepted."""

_PIECES = 1_000
"""How many pieces of a sequence are compared where trials have no last step."""

Configuration = Mapping[str, Sequence]
Key = tuple[Any, ...]


def configuration_key(configuration: Configuration, steps: int | None) -> Key:
    """Equal for two configurations exactly if their trials of `steps` steps pass the same nodes."""
    return tuple((name, _names(configuration[name], steps)) for name in sorted(configuration))


def _names(sequence: Sequence, steps: int | None) -> Key:
    written = sequence.to_json()
    some = islice(pieces_of(written), _PIECES) if steps is None else pieces_before(written, steps)
    return tuple((piece.start, piece.form.name) for piece in some)


class UniqueSamples:
    """The sampled configurations of a space, and the ones that remain.

    steps: the last step of the trials, None for no end. configurations: count as sampled from the start.
    """

    def __init__(self, space: Space, steps: int | None, configurations: Iterable[Configuration] = ()) -> None:
        self._space, self._steps = space, steps
        self._seen = {self._key(configuration) for configuration in configurations}
        ways = space.ways()
        self.is_listable = ways is not None and ways <= MOST_LISTED
        self._listed: dict[bytes, dict[str, Sequence]] | None = None

    def _key(self, configuration: Configuration) -> bytes:
        """A hash of the key, as the names of nodes are: the keys of many trials would be most of their memory."""
        own = self._space.length_of(configuration)
        key = configuration_key(configuration, self._steps if own is None else own)
        return sha256(repr(key).encode()).digest()[:16]

    def are_same(self, one: Configuration, other: Configuration) -> bool:
        """Whether two configurations train alike."""
        return self._key(one) == self._key(other)

    def is_new(self, configuration: Configuration) -> bool:
        """Whether the configuration was not sampled yet."""
        return self._key(configuration) not in self._seen

    def take(self, configuration: Configuration) -> bool:
        """Mark the configuration as sampled. Returns whether it was new."""
        key = self._key(configuration)
        is_new = key not in self._seen
        self._seen.add(key)
        return is_new

    def remaining(self) -> list[dict[str, Sequence]]:
        """The remaining configurations, each once, in the order written. Requires `is_listable`."""
        if self._listed is None:
            self._listed = {}
            for configuration in self._space.list_configurations():
                self._listed.setdefault(self._key(configuration), configuration)
        return [configuration for key, configuration in self._listed.items() if key not in self._seen]

    def size(self) -> int | None:
        """The number of configurations in the space; None if unknown or infinite."""
        return len(self.remaining()) if self.is_listable else None

    def skip_repeats(self, drawn: Iterable[dict[str, Sequence]], seed: int) -> Iterator[dict[str, Sequence]]:
        """Filter repeats out of an infinite stream of samples, until nothing remains.

        After `REPEATS` repeats in a row, the remaining configurations follow in an order that `seed` decides.
        """
        repeats = 0
        for configuration in drawn:
            repeats = 0 if (is_new := self.take(configuration)) else repeats + 1
            if is_new:
                yield configuration
            elif repeats >= REPEATS and self.is_listable:
                chance = Random(f"{seed}/left")
                for each in sorted(self.remaining(), key=lambda _: chance.random()):
                    self.take(each)
                    yield each
                return
            elif repeats >= REPEATS:
                repeats = 0
                yield configuration
