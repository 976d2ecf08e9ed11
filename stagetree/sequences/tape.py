"""The canonical pieces of sequences written as JSON, computed once: spaces repeat few sequences many times."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from itertools import islice, takewhile
from math import inf
from threading import Lock
from typing import Any

from stagetree.sequences import base
from stagetree.sequences.base import parse, read_scalar
from stagetree.sequences.forms import Held, Piece
from stagetree.sequences.text_cache import TextCache

KEPT = 64


class Tape:
    """The pieces of a sequence. Only the first `KEPT` are stored, so that long sequences cannot fill the memory.

    Thread-safe.
    """

    __slots__ = ("_kept", "_lock", "_reached", "_rest", "_sequence")

    def __init__(self, sequence: base.Sequence) -> None:
        self._sequence, self._lock = sequence, Lock()
        self._kept, self._rest = list[Piece](), islice(sequence.pieces(), KEPT)
        self._reached = -1.0  # the start of the last piece that is stored; infinite if there are no others

    def __iter__(self) -> Iterator[Piece]:
        for number in range(KEPT):
            if number == len(self._kept) and not self._keep(number):
                return
            yield self._kept[number]
        yield from islice(self._sequence.pieces(), KEPT, None)

    def pieces_before(self, step: float, most: int | None = None) -> list[Piece]:
        """The pieces that begin before a step, or the first `most` of them."""
        while self._reached < step:
            if len(self._kept) == KEPT:
                return list(islice(takewhile(lambda piece: piece.start < step, self), most))
            self._keep(len(self._kept))
        return [piece for piece in self._kept if piece.start < step][:most]

    def _keep(self, number: int) -> bool:
        """Store the piece of that number; False if there is none."""
        with self._lock:
            if number == len(self._kept):
                self._read()
                self._reached = self._kept[-1].start if number < len(self._kept) else inf
            return number < len(self._kept)

    def _read(self) -> None:
        """Store the next piece. If it cannot be computed, each further reader gets the error, too."""
        try:
            self._kept += islice(self._rest, 1)
        except BaseException:
            self._rest = islice(self._sequence.pieces(), len(self._kept), KEPT)
            raise


_TAPES = TextCache[Tape](65536)
"""The key is the text alone: the garbage collector would traverse a cache with tuples as keys after each new one."""


def tape_of_text(text: str) -> Tape:
    """The tape of a sequence's JSON text. Raises `SequenceError`."""
    return _TAPES.get(text, lambda: Tape(parse(json.loads(text))))


def pieces_of(written: Any) -> Iterator[Piece]:
    """The pieces of a sequence from its JSON. Raises `SequenceError`."""
    return iter(constant_piece(written) or tape_of_text(json.dumps(written)))


def pieces_before(written: Any, step: float) -> Sequence[Piece]:
    """The pieces of a sequence from its JSON that begin before a step >= 1. Raises `SequenceError`."""
    return constant_piece(written) or tape_of_text(json.dumps(written)).pieces_before(step)


def constant_piece(written: Any) -> tuple[Piece, ...]:
    """The only piece of a constant, the common case, which a cache would not help; empty for other sequences.

    Raises `SequenceError`.
    """
    match written:
        case {"family": "constant", "value": value, **others} if not others:
            return (Piece(0, Held(read_scalar("value", value))),)
        case bool() | int() | float() | str() | None:
            return (Piece(0, Held(read_scalar("", written))),)
    return ()
