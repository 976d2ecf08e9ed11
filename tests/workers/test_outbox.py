"""Facts of a slot on their way to the log."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

import pytest
from assignments import FENCE, WORK

from app.domain import events as e
from app.events.log import Append
from app.events.memory import MemoryRecords
from app.events.rows import Fenced, LeaseFence, RowsPort
from app.outages import DatabaseUnavailable
from app.workers.slot import outbox as module
from app.workers.slot.claim import Claim
from app.workers.slot.outbox import FactOutbox, RowChange
from app.workers.slot.retry import RetryPolicy


def fact(index: int, seconds: float = 1.0) -> e.StageCompleted:
    return e.StageCompleted(chain="c", index=index, seconds=seconds)


@dataclass(frozen=True)
class Noting(RowChange):
    """Changes nothing. note: is called instead."""

    note: Callable[[], object] = lambda: None

    def apply(self, rows: RowsPort, chain: str, fence: LeaseFence) -> None:
        self.note()


always = Noting()


def refusal(error: Exception) -> Noting:
    def refuse() -> NoReturn:
        raise error

    return Noting(refuse)


@pytest.fixture(autouse=True)
def a_moment(monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as it takes to state two facts one after the other, on a machine that is busy, too."""
    monkeypatch.setattr(module, "COALESCE_SECONDS", 60.0)


@pytest.fixture
def records() -> MemoryRecords:
    """Anna has claimed the chains c and d."""
    made = MemoryRecords()
    with made.write() as rows:
        for chain, slot in (("c", "gpu0"), ("d", "gpu1")):
            rows.slots.take(slot, "anna", instead_of=None, device="cpu", host="here", pid=1)
            rows.chains.assign(chain, "plan", slot, WORK, 1e9)
            rows.chains.claim(chain, "anna", 1e9)
    return made


@pytest.fixture
def outbox(records: MemoryRecords) -> Iterator[FactOutbox]:
    outbox = FactOutbox(records, RetryPolicy(), clock=lambda: 0.0, notify=lambda: None)
    yield outbox
    outbox.close()


def test_a_fact_that_cannot_be_written_ends_its_chain_before_the_database_is_asked(
    outbox: FactOutbox, records: MemoryRecords, caplog: pytest.LogCaptureFixture
) -> None:
    bad, good = Claim("c", "plan", FENCE), Claim("d", "plan", FENCE)
    asked = list[str]()
    outbox.put(bad, [fact(0, math.nan)], Noting(lambda: asked.append("bad")))
    outbox.put(bad, [fact(1)], Noting(lambda: asked.append("bad")))
    outbox.put(good, [fact(0)], Noting(lambda: asked.append("good")))
    assert outbox.drain(60.0)
    assert asked == ["good"] and bad.end_flag.is_set() and not good.end_flag.is_set()
    assert [recorded.event for recorded in records.log.read("plan")] == [fact(0)]
    assert "chain c is given up, because a fact of it cannot be written" in caplog.text


def test_a_mistake_of_ours_leaves_no_hole_in_what_is_stated_about_a_chain(
    outbox: FactOutbox, records: MemoryRecords, caplog: pytest.LogCaptureFixture
) -> None:
    claim, other = Claim("c", "plan", FENCE), Claim("d", "plan", FENCE)

    outbox.put(claim, [fact(0)], refusal(ZeroDivisionError()))
    outbox.put(claim, [fact(1)], always)
    outbox.put(other, [fact(2)], always)
    assert outbox.drain(60.0)
    assert [recorded.event for recorded in records.log.read("plan")] == [fact(2)]
    assert claim.end_flag.is_set() and "ZeroDivisionError" in caplog.text


class Bench:
    """An outbox over records, and the number of messages to the scheduler."""

    def __init__(self, records: MemoryRecords) -> None:
        self.records, self.nudges, self.commits = records, 0, list[str]()
        self.outbox = FactOutbox(records, RetryPolicy(), clock=lambda: 0.0, notify=self._notify)
        self.first, self.second = Claim("c", "plan", FENCE), Claim("d", "plan", FENCE)

    def _notify(self) -> None:
        self.nudges += 1

    def proof(self, name: str) -> Noting:
        return Noting(lambda: self.commits.append(name))


@pytest.fixture
def bench(records: MemoryRecords) -> Iterator[Bench]:
    bench = Bench(records)
    yield bench
    bench.outbox.close()


def test_a_fact_that_awaits_more_goes_on_record_together_with_what_comes(bench: Bench) -> None:
    done, outbox = list[str](), bench.outbox
    outbox.put(
        bench.first, [fact(0)], bench.proof("a"), is_news=True, awaits_more=True, on_recorded=lambda: done.append("a")
    )
    outbox.put(bench.first, [fact(1)], bench.proof("b"), is_last=True, on_recorded=lambda: done.append("b"))
    assert outbox.drain(60.0)
    assert [each.event for each in bench.records.log.read("plan")] == [fact(0), fact(1)]
    assert (bench.commits, done, bench.nudges) == (["a", "b"], ["a", "b"], 1)
    assert bench.first.end_flag.is_set()
    outbox.put(bench.first, [fact(2)], bench.proof("c"))
    assert outbox.drain(60.0)
    assert bench.commits == ["a", "b"]


def test_news_that_await_more_are_told_of(bench: Bench) -> None:
    bench.outbox.put(bench.first, [fact(0)], bench.proof("a"), is_news=True, awaits_more=True)
    bench.outbox.put(bench.first, [fact(1)], bench.proof("b"))
    assert bench.outbox.drain(60.0)
    assert bench.nudges == 1


def test_the_wait_for_awaited_facts_is_bounded(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "COALESCE_SECONDS", 0.01)
    bench.outbox.put(bench.first, [fact(0)], bench.proof("a"), awaits_more=True)
    assert bench.outbox.drain(60.0)
    assert [each.event for each in bench.records.log.read("plan")] == [fact(0)]
    assert not bench.first.end_flag.is_set()


def test_facts_that_await_nothing_are_recorded_at_once(bench: Bench) -> None:
    append, appended = bench.records.log.append, list[int]()

    def note(stream: str, facts: Sequence[e.Event], **more: Any) -> Any:
        appended.append(len(facts))
        return append(stream, facts, **more)

    bench.records.log.append = note  # type: ignore[method-assign]
    for number in range(3):
        bench.outbox.put(bench.first, [fact(number)], bench.proof("a"))
    assert bench.outbox.drain(60.0)
    assert appended == [1, 1, 1]


def test_a_fact_about_another_chain_is_recorded_by_itself(bench: Bench) -> None:
    bench.outbox.put(bench.first, [fact(0)], bench.proof("a"), is_news=True, awaits_more=True)
    bench.outbox.put(bench.second, [fact(1)], bench.proof("b"), is_news=True)
    assert bench.outbox.drain(60.0)
    assert (bench.commits, bench.nudges) == (["a", "b"], 2)


@pytest.mark.parametrize("is_news", [True, False])
@pytest.mark.parametrize("is_last", [True, False])
@pytest.mark.parametrize("awaits_more", [True, False])
def test_the_scheduler_is_told_of_news_and_of_the_end_of_a_chain(
    bench: Bench, is_news: bool, is_last: bool, awaits_more: bool
) -> None:
    bench.outbox.put(bench.first, [fact(0)], bench.proof("a"), awaits_more=awaits_more)
    bench.outbox.put(bench.first, [fact(1)], bench.proof("b"), is_news=is_news, is_last=is_last)
    assert bench.outbox.drain(60.0)
    assert bench.nudges == (is_news or is_last)


def test_a_worker_that_lost_its_chain_reports_only_that(bench: Bench, caplog: pytest.LogCaptureFixture) -> None:
    bench.outbox.put(bench.first, [fact(0)], refusal(Fenced("another worker's")))
    assert bench.outbox.drain(60.0)
    (said,) = caplog.records
    assert (said.levelname, "its last report is discarded" in said.message) == ("WARNING", True)


def test_facts_in_one_are_both_void_when_the_chain_is_over(bench: Bench) -> None:
    bench.outbox.put(bench.first, [fact(0)], bench.proof("a"), awaits_more=True)
    bench.outbox.put(bench.first, [fact(1)], refusal(Fenced("another worker's")), is_last=True)
    assert bench.outbox.drain(60.0)
    assert bench.records.log.read("plan") == [] and bench.first.end_flag.is_set()


# --------------------------------------------------------------------------------------- a database that loses commits


def test_a_worker_whose_last_report_was_lost_records_nothing_after_it(
    outbox: FactOutbox, records: MemoryRecords
) -> None:
    """An evaluation was missing for good: the next one, and the end of the stage, were recorded behind the hole."""
    claim = Claim("c", "plan", FENCE)
    outbox.put(claim, [fact(0)])
    assert outbox.drain(60.0)
    put_back = records.replica()
    outbox.put(claim, [fact(1)])
    assert outbox.drain(60.0)
    put_back()
    outbox.put(claim, [fact(2)])
    assert outbox.drain(60.0)
    assert [each.event for each in records.log.read("plan")] == [fact(0)]
    assert claim.end_flag.is_set()


@pytest.mark.parametrize("is_lost", [False, True])
def test_a_report_without_an_answer_counts_once(outbox: FactOutbox, records: MemoryRecords, is_lost: bool) -> None:
    """Whether its commit is there, or was lost afterwards."""
    claim, write, put_back = Claim("c", "plan", FENCE), records.log.write, records.replica()

    def hang_up(append: Append) -> NoReturn:
        records.log.write = write  # type: ignore[method-assign]
        write(append)
        if is_lost:
            put_back()
        raise DatabaseUnavailable("The connection was lost while the commit was under way.")

    records.log.write = hang_up  # type: ignore[method-assign]
    for number in range(2):
        outbox.put(claim, [fact(number)])
    assert outbox.drain(60.0)
    assert [each.event for each in records.log.read("plan")] == [fact(0), fact(1)]
    assert not claim.end_flag.is_set() and claim.fence == replace(FENCE, reports=2)
