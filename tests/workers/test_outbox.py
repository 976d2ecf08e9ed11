"""Facts of a slot on their way to the log."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest

from app.domain import events as e
from app.events.memory import MemoryRecords
from app.events.rows.ports import RowsPort
from app.workers.slot.claim import Claim
from app.workers.slot.outbox import FactOutbox
from app.workers.slot.patience import Patience


def fact(index: int, seconds: float = 1.0) -> e.StageCompleted:
    return e.StageCompleted(chain="c", index=index, seconds=seconds)


def always(rows: RowsPort) -> None:
    """Whoever asks may state it."""


@pytest.fixture
def records() -> MemoryRecords:
    return MemoryRecords()


@pytest.fixture
def outbox(records: MemoryRecords) -> Iterator[FactOutbox]:
    outbox = FactOutbox(records, Patience(), clock=lambda: 0.0, notify=lambda: None)
    yield outbox
    outbox.close()


def test_a_fact_that_cannot_be_written_ends_its_chain_before_the_database_is_asked(
    outbox: FactOutbox, records: MemoryRecords, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Claim("c", "plan", 1), Claim("d", "plan", 1)
    asked = list[str]()
    outbox.put(bad, [fact(0, math.nan)], lambda rows: asked.append("bad"))
    outbox.put(bad, [fact(1)], lambda rows: asked.append("bad"))
    outbox.put(good, [fact(0)], lambda rows: asked.append("good"))
    assert outbox.drain(60.0)
    assert asked == ["good"] and bad.over.is_set() and not good.over.is_set()
    assert [recorded.event for recorded in records.log.read("plan")] == [fact(0)]
    assert "chain c is given up, because a fact of it cannot be written" in caplog.text


def test_a_mistake_of_ours_leaves_no_hole_in_what_is_stated_about_a_chain(
    outbox: FactOutbox, records: MemoryRecords, caplog: pytest.LogCaptureFixture
) -> None:
    claim, other = Claim("c", "plan", 1), Claim("d", "plan", 1)

    def mistaken(rows: RowsPort) -> None:
        raise ZeroDivisionError

    outbox.put(claim, [fact(0)], mistaken)
    outbox.put(claim, [fact(1)], always)
    outbox.put(other, [fact(2)], always)
    assert outbox.drain(60.0)
    assert [recorded.event for recorded in records.log.read("plan")] == [fact(2)]
    assert claim.over.is_set() and "ZeroDivisionError" in caplog.text
