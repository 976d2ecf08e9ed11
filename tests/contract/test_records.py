"""One suite for the log and its rows, in memory, in SQLite, and in PostgreSQL."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from assignments import FENCE, WORK
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test
from lost_events import copy_tables
from transactions import TTL, CachedRows, Clock, free_slots

from app.domain.events import StudyPaused, StudyResumed, StudySubmitted
from app.events.database import Database
from app.events.log import Append
from app.events.memory import MemoryRecords
from app.events.records import Records
from app.events.rows import (
    ChainFlags,
    ChainNotClaimable,
    Fenced,
    LeaseFence,
    RowsPort,
    SlotLost,
    SlotTaken,
    StudyRecord,
    TokenRecord,
)
from app.events.sql_log import SqlRecords

REFUSALS = (ChainNotClaimable, Fenced, SlotLost, SlotTaken)
BERTAS = LeaseFence(1, "berta")
HERE = {"device": "cpu", "host": "here", "pid": 1}


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def records(request: pytest.FixtureRequest, clock: Clock) -> Iterator[Records]:
    """A slot gpu0 of anna's, and nothing else."""
    if request.param == "memory":
        opened: Records = MemoryRecords(clock)
    else:
        url = request.getfixturevalue({"sqlite": "sqlite_url", "postgresql": "postgres_url"}[request.param])
        opened = SqlRecords(Database(url, clock=clock))
    with opened.write() as rows:
        rows.slots.take("gpu0", "anna", instead_of=None, **HERE)
    yield opened
    opened.close()


def submit_study(study: str) -> StudySubmitted:
    return StudySubmitted(study=study, spec={"name": study}, at=1.0)


def snapshot(rows: RowsPort) -> tuple[Any, ...]:
    """All rows, as readers see them."""
    chains = [rows.chains.get(name) for name in "abc"]
    slots = [
        (
            (x.name, x.owner, x.seen_at, x.chain, x.resident_model, dict(x.trainers), x.note),
            (x.quarantined_until, x.lent_to, x.emptied_for, x.kind),
        )
        for x in rows.slots.all()
    ]
    plain = [
        x
        and (
            (x.slot, str(x.state), x.fence, x.owner, x.reports, x.lease_until, x.index, x.step, x.stop, x.preempt),
            (list(x.extra_eval_steps), x.dispatched_at, list(x.branch_steps or ()), dict(x.members)),
        )
        for x in chains
    ]
    names = [x.chain for x in rows.chains.live()]
    return slots, plain, names, free_slots(rows), rows.studies.busy_versions(), rows.now()


def test_a_block_that_raises_changes_nothing(records: Records) -> None:
    with records.read() as rows:
        before = snapshot(rows)
    with pytest.raises(ZeroDivisionError), records.write() as rows:
        rows.chains.assign("a", "plan", "gpu0", WORK, TTL)
        rows.chains.claim("a", "anna", TTL)
        rows.chains.finish("a", FENCE)
        rows.slots.retire("gpu0", "anna")
        rows.studies.add(StudyRecord(id="s", stream="plan", name="s", state="running", submitted_at=1.0))
        raise ZeroDivisionError
    with records.read() as rows:
        assert snapshot(rows) == before
        assert rows.studies.find("s") is None


def test_a_reader_of_changes_knows_all_rows(records: Records) -> None:
    kept = CachedRows()
    changes: list[Callable[[RowsPort], Any]] = [
        lambda rows: None,
        lambda rows: rows.slots.take("gpu1", "berta", instead_of=None, **HERE),
        lambda rows: rows.chains.assign("a", "plan", "gpu0", WORK, TTL),
        lambda rows: rows.chains.assign("b", "plan", "gpu1", WORK, TTL),
        lambda rows: rows.chains.claim("b", "berta", TTL),
        lambda rows: rows.chains.heartbeat("b", BERTAS, TTL, 3),
        lambda rows: (rows.chains.ask_stop("a"), rows.chains.release("b", BERTAS, {"step": 4})),
        lambda rows: rows.slots.retire("gpu1", "berta"),
        lambda rows: rows.chains.finish("b", BERTAS),
        lambda rows: rows.slots.forget_all(),
        lambda rows: rows.chains.end("a"),
    ]
    for change in changes:
        with records.write() as rows:
            change(rows)
        with records.read() as rows:
            kept.look(rows)
            assert kept.is_right(rows)
        with pytest.raises(ZeroDivisionError), records.write() as rows:
            for row in rows.chains.live():
                rows.chains.end(row.chain)
            rows.slots.forget_all()
            raise ZeroDivisionError
        with records.read() as rows:
            kept.look(rows)
            assert kept.is_right(rows)


def test_writes_during_a_read_appear_in_the_next_one(postgres_url: str, clock: Clock) -> None:
    """The first writer to begin may be the last to commit."""
    database, kept = Database(postgres_url, clock=clock), CachedRows()
    records = SqlRecords(database)
    with records.write() as rows:
        for slot in ("gpu0", "gpu1", "gpu2"):
            rows.slots.take(slot, "anna", instead_of=None, **HERE)
            rows.chains.assign(f"on {slot}", "plan", slot, WORK, TTL)
    with records.write() as slow:
        slow.chains.claim("on gpu0", "anna", TTL)
        with records.write() as quick:
            quick.chains.claim("on gpu1", "anna", TTL)
        for _ in range(2):
            with records.read() as rows:
                kept.look(rows)
                assert kept.is_right(rows)
    with records.read() as rows:
        kept.look(rows)
        assert kept.is_right(rows)
        assert kept.last is not None and "on gpu2" not in kept.last.chains, "unchanged rows are not read again"
        kept.look(rows)
        assert kept.last.chains == {}
    records.close()


def test_a_use_of_a_token_changes_nothing_else_of_it(records: Records) -> None:
    """A revocation that came in between stays."""
    with records.write() as rows:
        rows.tokens.put(TokenRecord(name="ci", digest="d", scope="read", created_at=0.0))
        rows.tokens.mark("d", revoked_at=2.0)
    with records.write() as rows:
        rows.tokens.mark("d", used_at=3.0)
        rows.tokens.mark("unknown", used_at=3.0)
        assert rows.tokens.count_write("ci", 0) and not rows.tokens.count_write("ci", 0)
        assert rows.tokens.count_write("ci", 1) and not rows.tokens.count_write("unknown", 0)
    with records.read() as rows:
        [token] = rows.tokens.all()
    assert (token.revoked_at, token.used_at, token.scope) == (2.0, 3.0, "read")


def test_facts_and_their_proof_are_written_together_or_not_at_all(records: Records) -> None:
    with records.write() as rows:
        rows.chains.assign("a", "plan", "gpu0", WORK, TTL)
    with pytest.raises(Fenced):
        records.log.append(
            "plan", [submit_study("s")], expected=None, at=1.0, alongside=lambda rows: rows.chains.report("a", FENCE)
        )
    assert records.log.version("plan") == 0
    records.log.append(
        "plan",
        [submit_study("s")],
        expected=None,
        at=1.0,
        alongside=lambda rows: rows.chains.claim("a", "anna", TTL) and None,
    )
    with records.read() as rows:
        assert rows.chains.flags("a", FENCE) == ChainFlags()
        assert rows.studies.find("s") is not None


def test_a_decision_under_the_lock_sees_all_events(records: Records) -> None:
    records.log.append("plan", [submit_study("s"), StudyPaused(study="s")], expected=0, at=1.0)
    seen: list[int] = []

    def decide(news: Any) -> list[Any]:
        seen.extend(each.version for each in news)
        return [StudyResumed(study="s")]

    recorded = records.log.write(Append(stream="plan", expected=1, at=2.0, decide=decide))
    assert (seen, [each.version for each in recorded]) == ([2], [3])
    assert records.log.write(Append(stream="plan", expected=3, at=2.0, decide=lambda news: [])) == []
    assert records.log.write(Append(stream="new", at=2.0, decide=lambda news: [submit_study("t")]))[0].version == 1


def test_streams_with_an_open_study_or_a_chain_are_busy(records: Records) -> None:
    for stream in ("p", "q", "r"):
        records.log.append(stream, [submit_study(f"of-{stream}")], expected=0, at=1.0)
    for stream in ("p", "q"):
        with records.write() as rows:
            rows.studies.set_state(f"of-{stream}", "cancelled")
    with records.write() as rows:
        rows.chains.assign("over", "p", "gpu0", WORK, TTL)
        rows.chains.end("over")
        rows.chains.assign("a", "q", "gpu0", WORK, TTL)
    with records.read() as rows:
        assert rows.studies.busy_versions() == {"q": 1, "r": 1}
        assert rows.studies.active_streams() == ["r"]


def test_due_requests_are_listed_for_the_given_studies_only(records: Records) -> None:
    with records.write() as rows:
        for study in ("a", "b", "c"):
            rows.studies.add(StudyRecord(id=study, stream="plan", name=study, state="running", submitted_at=1.0))
    for due in ({"a": 1.5, "b": 0.5}, {"b": 2.0}, {}):
        with records.write() as rows:
            rows.studies.show_due(due)
        with records.read() as rows:
            assert {row.id: row.slots_due for row in rows.studies.page()} == {"a": None, "b": None, "c": None, **due}


def test_studies_are_listed_newest_first(records: Records) -> None:
    with records.write() as rows:
        for number in range(5):
            at = float(number // 2)
            row = StudyRecord(id=f"s{number}", stream="p", name="name", state="running", submitted_at=at)
            rows.studies.add(replace(row, owner="ann" if number % 2 else ""))
    with records.read() as rows:
        assert [row.id for row in rows.studies.owned("ann")] == ["s1", "s3"]
        assert [row.id for row in rows.studies.page()] == ["s4", "s3", "s2", "s1", "s0"]
        assert [row.id for row in rows.studies.page("s3", 2)] == ["s2", "s1"]
        assert rows.studies.page("unknown") == []


# ------------------------------------------------------------------------------------------------ lost commits

WRITES: dict[str, Callable[[RowsPort, LeaseFence], Any]] = {
    "heartbeat": lambda rows, fence: rows.chains.heartbeat("a", fence, TTL, 9),
    "flags": lambda rows, fence: rows.chains.flags("a", fence),
    "advance": lambda rows, fence: rows.chains.advance("a", fence, 1),
    "release": lambda rows, fence: rows.chains.release("a", fence, None),
    "finish": lambda rows, fence: rows.chains.finish("a", fence),
    "end": lambda rows, fence: rows.chains.end("a", fence),
    "report": lambda rows, fence: rows.chains.report("a", fence),
}


def claim_chain(records: Records, owner: str = "anna") -> LeaseFence:
    with records.write() as rows:
        if rows.chains.get("a") is None:
            rows.chains.assign("a", "plan", "gpu0", WORK, TTL)
        return rows.chains.claim("a", owner, TTL).fence


def report_progress(records: Records, fence: LeaseFence) -> LeaseFence:
    with records.write() as rows:
        rows.chains.report("a", fence)
    return fence.reported


def lose(records: Records, do: Callable[[], Any]) -> Any:
    """Call `do`, undo its commits, and return its result."""
    put_back = copy_tables(records)
    result = do()
    put_back()
    return result


@pytest.mark.parametrize("write", WRITES)
def test_a_worker_that_knows_of_a_lost_report_is_refused(records: Records, write: str) -> None:
    fence = report_progress(records, claim_chain(records))
    later = lose(records, lambda: report_progress(records, fence))
    with records.read() as rows:
        before = snapshot(rows)
    with pytest.raises(Fenced), records.write() as rows:
        WRITES[write](rows, later)
    with records.read() as rows:
        assert snapshot(rows) == before
    with records.write() as rows:
        WRITES[write](rows, fence)


@pytest.mark.parametrize("write", WRITES)
def test_of_two_workers_with_one_number_only_the_later_one_may_write(records: Records, write: str) -> None:
    """The first one's claim was lost, so the second one's has the same number."""
    with records.write() as rows:
        rows.chains.assign("a", "plan", "gpu0", WORK, TTL)
    first = lose(records, lambda: claim_chain(records, "anna"))
    second = claim_chain(records, "berta")
    assert (first.number, first.reports) == (second.number, second.reports)
    with pytest.raises(Fenced), records.write() as rows:
        WRITES[write](rows, first)
    with records.write() as rows:
        WRITES[write](rows, second)


def test_a_report_is_counted_once_and_the_other_writes_follow_it(records: Records) -> None:
    """For example a heartbeat that begins before the report is acknowledged."""
    first = claim_chain(records)
    second = report_progress(records, first)
    with pytest.raises(Fenced):
        report_progress(records, first)
    for fence in (first, second):
        with records.write() as rows:
            rows.chains.heartbeat("a", fence, TTL, 9)
    with records.write() as rows:
        rows.chains.finish("a", second)
    third = report_progress(records, second)
    with records.read() as rows:
        row = rows.chains.get("a")
    assert row is not None and (row.state, row.reports, row.lease.fence) == ("done", 2, third)


# ------------------------------------------------------------------------------------------------ gangs


def assign_gang_of_two(rows: RowsPort, *members: str) -> None:
    for name in ("gpu1", "gpu2"):
        rows.slots.take(name, "berta", instead_of=None, **HERE, kind="H200")
    rows.chains.assign("a", "plan", "gpu0", replace(WORK, members=members), TTL)


def lent_slots(rows: RowsPort) -> dict[str, str | None]:
    return {slot.name: slot.lent_to for slot in rows.slots.all()}


def test_a_gang_is_taken_as_a_whole(records: Records) -> None:
    with records.write() as rows:
        assign_gang_of_two(rows, "gpu1", "gpu2")
    with records.read() as rows:
        assert (lent_slots(rows), free_slots(rows)) == ({"gpu0": None, "gpu1": "a", "gpu2": "a"}, [])
        assert [(row.chain, dict(row.members)) for row in rows.chains.live()] == [
            ("a", {"gpu1": "berta", "gpu2": "berta"})
        ]
        assert {slot.name: slot.kind for slot in rows.slots.all()} == {"gpu0": "", "gpu1": "H200", "gpu2": "H200"}


@pytest.mark.slow
@pytest.mark.parametrize("members", [("gpu1", "gpu7"), ("gpu1", "gpu1"), ("gpu0", "gpu1")])
def test_an_incomplete_gang_takes_no_slot(records: Records, members: tuple[str, ...]) -> None:
    with pytest.raises(SlotTaken), records.write() as rows:
        assign_gang_of_two(rows, *members)
    with records.write() as rows:
        assign_gang_of_two(rows, "gpu1")
    with records.read() as rows:
        assert lent_slots(rows) == {"gpu0": None, "gpu1": "a", "gpu2": None}
        assert free_slots(rows) == ["gpu2"]


def test_a_lent_slot_takes_no_chain(records: Records) -> None:
    with records.write() as rows:
        assign_gang_of_two(rows, "gpu1")
    for chain, slot, members in (("b", "gpu1", ()), ("c", "gpu2", ("gpu1",))):
        with pytest.raises(SlotTaken), records.write() as rows:
            rows.chains.assign(chain, "plan", slot, replace(WORK, members=members), TTL)


@pytest.mark.parametrize("ending", ["release", "finish", "end", "end_expired"])
def test_freeing_the_leader_frees_its_members(records: Records, clock: Clock, ending: str) -> None:
    with records.write() as rows:
        assign_gang_of_two(rows, "gpu1", "gpu2")
        fence = rows.chains.claim("a", "anna", TTL).fence
    clock.at += 2 * TTL if ending == "end_expired" else 0.0
    with records.write() as rows:
        {
            "release": lambda: rows.chains.release("a", fence, {"step": 4}),
            "finish": lambda: rows.chains.finish("a", fence),
            "end": lambda: rows.chains.end("a", fence),
            "end_expired": lambda: rows.chains.end_expired("a"),
        }[ending]()
    with records.read() as rows:
        assert lent_slots(rows) == {"gpu0": None, "gpu1": None, "gpu2": None}
        assert {slot.resident_model for slot in rows.slots.all()} == {None}, "a gang leaves no model"


def test_a_worker_reports_that_it_left_a_lent_device(records: Records) -> None:
    with records.write() as rows:
        assign_gang_of_two(rows, "gpu1")
        rows.slots.empty("gpu1", "berta", "a")
    with pytest.raises(SlotLost), records.write() as rows:
        rows.slots.empty("gpu2", "anna", "a")
    with records.write() as rows:
        assert [slot.emptied_for for slot in rows.slots.all()] == [None, "a", None]
        rows.slots.take("gpu1", "carla", instead_of="berta", **HERE)
    with records.read() as rows:
        assert [slot.emptied_for for slot in rows.slots.all()] == [None] * 3, "the new worker has not reported yet"


def test_a_leaving_member_asks_the_gang_to_stop(records: Records) -> None:
    with records.write() as rows:
        assign_gang_of_two(rows, "gpu1", "gpu2")
        fence = rows.chains.claim("a", "anna", TTL).fence
        rows.slots.retire("gpu1", "berta")
    with records.write() as rows:
        flags = rows.chains.flags("a", fence)
        assert (flags.preempt, flags.stop) == (True, False)
        rows.slots.take("gpu1", "carla", instead_of=None, **HERE)
    with records.read() as rows:  # its device is in use until the chain ends
        assert lent_slots(rows) == {"gpu0": None, "gpu1": "a", "gpu2": "a"}


# ------------------------------------------------------------------------------------------------ any order of changes

CHAINS, SLOTS, OWNERS = (
    st.sampled_from("abc"),
    st.sampled_from(["gpu0", "gpu1", "gpu2"]),
    st.sampled_from(["anna", "berta"]),
)
FENCES = st.builds(LeaseFence, st.integers(0, 3), OWNERS, st.integers(0, 2))


class Alike(RuleBasedStateMachine):
    """The same changes, in memory and in SQLite: the same answers, the same refusals, the same rows."""

    template: Path

    def __init__(self) -> None:
        super().__init__()
        self.clock, self.folder = Clock(), tempfile.mkdtemp()
        shutil.copy(self.template, self.folder)
        sql = SqlRecords(Database(f"sqlite:///{self.folder}/{self.template.name}", clock=self.clock))
        self.both: list[Records] = [sql, MemoryRecords(self.clock)]
        self.kept = {id(records): CachedRows() for records in self.both}

    def teardown(self) -> None:
        for records in self.both:
            records.close()
        shutil.rmtree(self.folder)

    def change(self, how: Callable[[RowsPort], Any]) -> None:
        one, other = [(self.answer(records, how), self.look(records)) for records in self.both]
        assert one == other

    def answer(self, records: Records, how: Callable[[RowsPort], Any]) -> Any:
        try:
            with records.write() as rows:
                return how(rows)
        except REFUSALS as refusal:
            return type(refusal), str(refusal)

    def look(self, records: Records) -> Any:
        kept = self.kept[id(records)]
        with records.read() as rows:
            kept.look(rows)
            assert kept.is_right(rows)
            return snapshot(rows)

    @initialize()
    def begin(self) -> None:
        self.change(lambda rows: rows.slots.take("gpu0", "anna", instead_of=None, **HERE))

    @rule(seconds=st.sampled_from([1.0, 10.0, TTL + 1]))
    def wait(self, seconds: float) -> None:
        self.clock.at += seconds

    @rule(slot=SLOTS, owner=OWNERS, instead=st.none() | OWNERS)
    def take(self, slot: str, owner: str, instead: str | None) -> None:
        self.change(lambda rows: rows.slots.take(slot, owner, instead_of=instead, **HERE))

    @rule(slot=SLOTS, owner=OWNERS, seconds=st.none() | st.just(30.0), how=st.integers(0, 4))
    def speak(self, slot: str, owner: str, seconds: float | None, how: int) -> None:
        changes: list[Callable[[RowsPort], None]] = [
            lambda rows: rows.slots.touch(slot, owner, {"memory": 1, "step_age": 0.5}),
            lambda rows: rows.slots.describe(slot, owner, trainers={"toy": "1"}, note="well"),
            lambda rows: rows.slots.quarantine(slot, owner, seconds=seconds, reason="sick"),
            lambda rows: rows.slots.retire(slot, owner),
            lambda rows: rows.slots.empty(slot, owner, "a"),
        ]
        self.change(changes[how])

    @rule(chain=CHAINS, slot=SLOTS, beside=st.none() | CHAINS)
    def assign(self, chain: str, slot: str, beside: str | None) -> None:
        with self.both[0].read() as rows:
            if rows.chains.get(chain) is not None:
                return
        self.change(lambda rows: rows.chains.assign(chain, "plan", slot, WORK, TTL, beside))

    @rule(chain=CHAINS, slot=SLOTS, members=st.sets(SLOTS, min_size=1))
    def assign_gang(self, chain: str, slot: str, members: set[str]) -> None:
        with self.both[0].read() as rows:
            if rows.chains.get(chain) is not None:
                return
        gang = replace(WORK, members=tuple(sorted(members)))
        self.change(lambda rows: rows.chains.assign(chain, "plan", slot, gang, TTL))

    @rule(chain=CHAINS, owner=OWNERS)
    def claim(self, chain: str, owner: str) -> None:
        self.change(lambda rows: rows.chains.claim(chain, owner, TTL))

    @rule(chain=CHAINS, fence=FENCES, number=st.integers(0, 9), how=st.integers(0, 6))
    def work(self, chain: str, fence: LeaseFence, number: int, how: int) -> None:
        changes: list[Callable[[RowsPort], Any]] = [
            lambda rows: rows.chains.heartbeat(chain, fence, TTL, number),
            lambda rows: rows.chains.flags(chain, fence),
            lambda rows: rows.chains.advance(chain, fence, number),
            lambda rows: rows.chains.release(chain, fence, {"step": number}),
            lambda rows: rows.chains.finish(chain, fence),
            lambda rows: rows.chains.report(chain, fence),
            lambda rows: rows.chains.end(chain, fence),
        ]
        self.change(changes[how])

    @rule(chain=CHAINS, steps=st.sets(st.integers(1, 9)), how=st.integers(0, 5))
    def tell(self, chain: str, steps: set[int], how: int) -> None:
        with self.both[0].read() as rows:
            if rows.chains.get(chain) is None:
                return
        changes: list[Callable[[RowsPort], Any]] = [
            lambda rows: rows.chains.ask_evaluation(chain, steps),
            lambda rows: rows.chains.end(chain),
            lambda rows: rows.chains.end_expired(chain),
            lambda rows: rows.chains.ask_stop(chain),
            lambda rows: rows.chains.ask_preempt(chain),
            lambda rows: rows.chains.ask_states(chain, steps),
        ]
        with self.both[0].read() as rows:
            if how in (0, 3, 4, 5) and chain not in [row.chain for row in rows.chains.live()]:
                return
        self.change(changes[how])


@pytest.mark.slow
def test_rows_in_memory_equal_rows_in_a_database(sqlite_template: Path) -> None:
    machine = type("Alike", (Alike,), {"template": sqlite_template})
    few = settings(max_examples=60, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck))
    run_state_machine_as_test(machine, settings=few)
