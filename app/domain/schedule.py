"""All sequences of one trial, cut where any of them changes: the canonical form from which nodes get their names."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from heapq import merge
from itertools import groupby
from operator import itemgetter
from typing import Any

from stagetree.sequences import Form, Piece, Scalar, parse


@dataclass(frozen=True, slots=True)
class Segment:
    """From step `start` on, until the next segment, every hyper-parameter follows its form."""

    start: int
    forms: Mapping[str, Form]

    def values(self, step: int) -> dict[str, Scalar]:
        """The value of every hyper-parameter at an absolute step."""
        return {name: form.at(step) for name, form in self.forms.items()}


def segments(hp: Mapping[str, Any]) -> Iterator[Segment]:
    """The segments of a trial, from the JSON of its hyper-parameters, in order; endless where a sequence never settles.

    Raises `stagetree.sequences.SequenceError`.
    """
    changes = merge(*(_changes(name, hp[name]) for name in sorted(hp)), key=itemgetter(0))
    forms: dict[str, Form] = {}
    for start, group in groupby(changes, key=itemgetter(0)):
        forms = forms | {name: form for _, name, form in group}
        yield Segment(start, forms)


def _changes(name: str, sequence: Any) -> Iterator[tuple[int, str, Form]]:
    return ((piece.start, name, piece.form) for piece in _tape(json.dumps(sequence)))


class _Tape:
    """The pieces of a sequence, computed once however often they are read: spaces repeat few sequences many times."""

    def __init__(self, pieces: Iterator[Piece]) -> None:
        self._pieces, self._read = pieces, list[Piece]()

    def __iter__(self) -> Iterator[Piece]:
        number = 0
        while number < len(self._read) or self._advance():
            yield self._read[number]
            number += 1

    def _advance(self) -> bool:
        piece = next(self._pieces, None)
        if piece is not None:
            self._read.append(piece)
        return piece is not None


@lru_cache(maxsize=65536)
def _tape(text: str) -> _Tape:
    return _Tape(parse(json.loads(text)).pieces())
