"""The canonical pieces of sequences written as JSON, computed once: spaces repeat few sequences many times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from itertools import islice
from threading import Lock
from typing import Any

from stagetree.sequences.base import Sequence, parse, read_scalar
from stagetree.sequences.forms import Held, Piece
from stagetree.sequences.text_cache import cached_by_text

KEPT = 64


class Tape:
    """The pieces of a sequence. Only the first `KEPT` are stored, so that long sequences cannot fill the memory.

    Thread-safe.
    """

    __slots__ = ("_kept", "_lock", "_rest", "_sequence")

    def __init__(self, sequence: Sequence) -> None:
        self._sequence, self._lock = sequence, Lock()
        self._kept, self._rest = list[Piece](), islice(sequence.pieces(), KEPT)

    def __iter__(self) -> Iterator[Piece]:
        for number in range(KEPT):
            if number == len(self._kept) and not self._keep(number):
                return
            yield self._kept[number]
        yield from islice(self._sequence.pieces(), KEPT, None)

    def _keep(self, number: int) -> bool:
        """Store the piece of that number; False if there is none."""
        with self._lock:
            if number == len(self._kept):
                self._kept += islice(self._rest, 1)
            return number < len(self._kept)


@cached_by_text(65536)
def tape_of_text(text: str) -> Tape:
    """The tape of a sequence's JSON text. Raises `SequenceError`.

    The key is the text alone: the garbage collector would traverse a cache with tuples as keys after each new one.
    """
    return Tape(parse(json.loads(text)))


def pieces_of(written: Any) -> Iterator[Piece]:
    """The pieces of a sequence from its JSON. Raises `SequenceError`."""
    match written:
        case {"family": "constant", "value": value, **others} if not others:  # the common case: a cache would not help
            return iter((Piece(0, Held(read_scalar("value", value))),))
        case bool() | int() | float() | str() | None:
            return iter((Piece(0, Held(read_scalar("", written))),))
    return iter(tape_of_text(json.dumps(written)))
