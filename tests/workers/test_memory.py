"""A process whose memory grows is ended; one that is only large is not."""

from __future__ import annotations

import os

import pytest

from app.workers.warm import MemoryWatch
from stagetree.system.memory import resident_bytes

MIB = 2**20


@pytest.mark.parametrize(
    ("stages", "has_grown"),
    [
        ([300], False),
        ([300, 900], False),  # loaded at its first use
        ([300, 900, 950, 900], False),
        ([300, 900, 990], False),
        ([300, 300, 390], True),
        ([300, 300, 390, 300], False),
        ([9000, 9000, 9500], False),  # large, and hardly larger
        ([9000, 9000, 12000], True),
    ],
)
def test_growth_is_against_the_first_stages(stages: list[int], has_grown: bool) -> None:
    watch = MemoryWatch(allowed_bytes=80 * MIB)
    for resident in stages:
        watch.note("a", resident * MIB)
    assert watch.has_grown == has_grown


def test_another_model_may_be_larger_and_the_same_one_again_may_not() -> None:
    watch = MemoryWatch(allowed_bytes=80 * MIB)
    for resident in (300, 300):
        watch.note("a", resident * MIB)
    for resident in (700, 700, 700):
        watch.note("b", resident * MIB)
    assert not watch.has_grown
    watch.note("a", 700 * MIB)
    assert (watch.has_grown, watch.growth) == (True, 400 * MIB)
    watch.begin()
    assert not watch.has_grown


def test_what_a_process_has_is_known_while_it_lives() -> None:
    before = resident_bytes(os.getpid())
    kept = bytearray(b"x" * 64 * MIB)
    assert resident_bytes(os.getpid()) - before > 32 * MIB
    assert len(kept) and resident_bytes(2**22 + 1) == 0
