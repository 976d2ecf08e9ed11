"""A tape has the pieces of its sequence, however it is read."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, islice, takewhile

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stagetree.sequences import Held, Piece, Sequence, SequenceError
from stagetree.sequences.tape import KEPT, Tape, pieces_before, pieces_of
from stagetree.sequences.text_cache import TextCache
from tests.strategies import sequences

STEPS = st.lists(st.integers(1, 3 * KEPT), min_size=1, max_size=4)


@given(sequences(), STEPS)
def test_a_tape_has_the_pieces_before_any_step(sequence: Sequence, steps: list[int]) -> None:
    tape = Tape(sequence)
    for step in steps:
        pieces = list(takewhile(lambda piece, step=step: piece.start < step, sequence.pieces()))  # type: ignore[misc]
        assert tape.pieces_before(step) == pieces == list(pieces_before(sequence.to_json(), step))
        assert tape.pieces_before(step, most=2) == pieces[:2]
    assert list(islice(pieces_of(sequence.to_json()), 9)) == list(islice(tape, 9)) == list(islice(sequence.pieces(), 9))


class Counting(Sequence):
    """Has another value at each step, and none from `end` on."""

    family = "counting"

    def __init__(self, end: int) -> None:
        self.end = end

    def _pieces(self, origin: int) -> Iterator[Piece]:
        for step in count():
            if step == self.end:
                raise SequenceError("end", "is reached")
            yield Piece(step, Held(step))


@pytest.mark.parametrize("end", [1, 5, KEPT + 5])
def test_a_piece_that_cannot_be_computed_is_reported_each_time(end: int) -> None:
    tape = Tape(Counting(end))
    for _ in range(2):
        with pytest.raises(SequenceError, match="is reached"):
            tape.pieces_before(end + 2)


def test_a_long_tape_continues_after_its_kept_pieces() -> None:
    tape = Tape(Counting(-1))
    assert [piece.start for piece in tape.pieces_before(KEPT + 9)] == list(range(KEPT + 9))
    assert [piece.start for piece in islice(tape, KEPT + 9)] == list(range(KEPT + 9))


def test_a_cache_of_texts_forgets_the_oldest() -> None:
    cache = TextCache[str](2)
    assert [cache.get(text, lambda text=text: text * 2) for text in "abc"] == ["aa", "bb", "cc"]  # type: ignore[misc]
    assert (cache.get("c", lambda: "new"), cache.get("a", lambda: "new")) == ("cc", "new")
