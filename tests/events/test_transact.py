"""`transact`: a decision is recorded only at the version that it was made on, and only committed events are folded."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from app.domain.events import Event, StudyPaused, StudyResumed, StudySubmitted
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.events import plans as module
from app.events.codec import decode
from app.events.database import Database
from app.events.log import Append, EventLog, Idempotency, StoredEvent, VersionConflict
from app.events.memory import MemoryLog
from app.events.plans import Plans, PlanUnusable
from app.events.records import OPTIMISTIC, Decide, Write, record, transact
from app.events.rows import Fenced
from app.events.sql_log import SqlLog
from app.outages import DatabaseUnavailable

HISTORY = Path(__file__).parent.parent / "golden" / "history.jsonl"
"""A short life of a plan, in the form it is stored in: two studies, a lost chain, a failure, a promotion."""


def history() -> list[Event]:
    return [decode(*json.loads(line)) for line in HISTORY.read_text().splitlines()]


def submission(study: str) -> StudySubmitted:
    return StudySubmitted(study=study, spec={"name": study}, at=1.0)


def no_pause(seconds: float) -> None:
    """Tests do not wait."""


def write(
    log: EventLog, plans: Plans, decide: Decide, *, attempts: int = 10, key: str | None = None, **more: Any
) -> Any:
    """Write to the stream p."""
    once = None if key is None else Idempotency(key)
    transaction = Write(**{"stream": "p", "decide": decide, "at": 1.0, "idempotency": once} | more)
    return transact(log, plans, transaction, attempts=attempts, pause=no_pause)


def test_decided_events_are_recorded_and_folded(log: EventLog) -> None:
    plans = Plans(log)
    recorded = write(log, plans, lambda plan: [submission("s1"), submission("s2")], at=5.0)
    assert recorded == log.read("p")
    assert [r.at for r in recorded] == [5.0, 5.0]
    assert plans.get("p") == fold([submission("s1"), submission("s2")])
    assert plans.get("p").version == 2


def test_after_a_conflict_it_decides_again(log: EventLog) -> None:
    plans, seen = Plans(log), []

    def decide(plan: SearchPlan) -> list[Event]:
        if not seen:
            log.append("p", [submission("other")], expected=None, at=1.0)
        seen.append(list(plan.studies))
        return [submission("mine")]

    write(log, plans, decide, at=1.0)
    assert seen == [[], ["other"]]
    assert list(plans.get("p").studies) == ["other", "mine"]


def test_only_an_outdated_plan_is_read_again(log: EventLog) -> None:
    plans, seen = Plans(log), list[list[str]]()

    def decide(plan: SearchPlan) -> list[Event]:
        seen.append(list(plan.studies))
        return [submission(f"mine{len(seen)}")]

    write(log, plans, lambda plan: [submission("first")])
    write(log, plans, decide, is_known=True)
    log.append("p", [submission("other")], expected=None, at=1.0)
    write(log, plans, decide, is_known=True)
    assert seen == [["first"], ["first", "mine1"], ["first", "mine1", "other"]]
    assert list(plans.get("p").studies) == ["first", "mine1", "other", "mine3"]


def test_it_gives_up_after_some_attempts(log: EventLog) -> None:
    plans = Plans(log)

    def decide(plan: SearchPlan) -> list[Event]:
        log.append("p", [submission(f"s{plan.version}")], expected=None, at=1.0)
        return [submission("mine")]

    with pytest.raises(VersionConflict):
        write(log, plans, decide, attempts=3)
    assert list(plans.get("p").studies) == ["s0", "s1", "s2"]


def test_an_empty_decision_writes_nothing_to_the_log() -> None:
    class Silent(MemoryLog):
        def write(self, append: Append) -> list[StoredEvent]:
            raise AssertionError("nothing is to be written")

    log = Silent()
    assert write(log, Plans(log), lambda plan: []) == []


def test_concurrent_decisions_lose_nothing(log: EventLog) -> None:
    """Each adds a study named by the number of studies: two decisions on the same plan would share a name."""
    shared = Plans(log)

    def add(n: int) -> None:
        plans = shared if n % 2 else Plans(log)
        for _ in range(5):
            write(log, plans, lambda plan: [submission(f"s{len(plan.studies)}")], attempts=1000)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(add, range(4)))
    assert list(shared.get("p").studies) == [f"s{n}" for n in range(20)]
    assert shared.get("p") == Plans(log).get("p")


def test_no_decision_writes_no_events(log: EventLog) -> None:
    ran = []
    assert write(log, Plans(log), lambda plan: [], at=1.0) == []
    assert write(log, Plans(log), lambda plan: [], alongside=ran.append) == []
    assert (log.head(), len(ran)) == (0, 1)


def test_errors_of_decide_and_alongside_are_raised(log: EventLog) -> None:
    plans = Plans(log)

    def refuse(_: object) -> list[Event]:
        raise PermissionError

    with pytest.raises(PermissionError):
        write(log, plans, refuse, at=1.0)
    with pytest.raises(PermissionError):
        write(log, plans, lambda plan: [submission("s")], alongside=refuse)
    assert (log.head(), plans.get("p")) == (0, SearchPlan())


def test_a_key_is_decided_once(log: EventLog) -> None:
    plans = Plans(log)
    first = write(log, plans, lambda plan: [submission("s")], at=1.0, key="k")
    again = write(log, plans, lambda plan: pytest.fail("decided again"), at=2.0, key="k")
    assert again == first
    assert write(log, plans, lambda plan: [], at=1.0, key="nothing") == []
    assert write(log, plans, lambda plan: [submission("t")], at=1.0, key="nothing") == []


def test_a_key_sent_twice_at_once_is_decided_once(log: EventLog) -> None:
    def send(n: int) -> object:
        return write(log, Plans(log), lambda plan: [submission(f"s{plan.version}")], at=1.0, key="k")

    with ThreadPoolExecutor(4) as pool:
        results = list(pool.map(send, range(4)))
    assert results == [log.read("p")] * 4
    assert log.head() == 1


def test_a_fact_is_recorded_with_its_proof(log: EventLog) -> None:
    def refuse(_: object) -> None:
        raise Fenced

    with pytest.raises(Fenced):
        record(log, "p", [submission("s")], at=1.0, alongside=refuse)
    record(log, "p", [submission("s")], at=1.0, alongside=lambda _: None)
    assert list(Plans(log).get("p").studies) == ["s"]


def test_plans_see_events_of_other_writers(log: EventLog) -> None:
    plans = Plans(log)
    plans.get("p")
    log.append("p", [submission("s"), StudyPaused(study="s")], expected=None, at=1.0)
    log.append("q", [submission("t")], expected=None, at=1.0)
    assert plans.get("p").studies["s"].state == "paused"
    assert (plans.get("p").version, plans.get("q").version) == (2, 1)


def test_a_plan_that_broke_half_way_is_folded_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    log, at = MemoryLog(), [0.0]
    log.append("p", [submission("s"), submission("t")], expected=0, at=1.0)
    plans = Plans(log, clock=lambda: at[0])
    evolve = module.evolve

    def broken_fold(plan: SearchPlan, event: Event) -> None:
        evolve(plan, event)
        if event.study == "t":
            raise MemoryError

    monkeypatch.setattr(module, "evolve", broken_fold)
    with pytest.raises(PlanUnusable, match="plan p cannot be used: MemoryError"):
        plans.get("p")
    monkeypatch.undo()
    at[0] += module.TRY_AGAIN_SECONDS
    assert plans.get("p") == Plans(log).get("p")


def test_a_plan_that_cannot_be_folded_is_not_retried_at_each_read(monkeypatch: pytest.MonkeyPatch) -> None:
    log, folded = MemoryLog(), []
    log.append("p", [submission("s")], expected=0, at=1.0)
    plans = Plans(log)

    def broken_fold(plan: SearchPlan, event: Event) -> None:
        folded.append(event)
        raise KeyError("n1")

    monkeypatch.setattr(module, "evolve", broken_fold)
    for _ in range(3):
        with pytest.raises(PlanUnusable, match="KeyError: 'n1'"):
            plans.get("p")
    assert len(folded) == 1
    log.append("p", [submission("t")], expected=1, at=1.0)
    with pytest.raises(PlanUnusable):
        plans.get("p")
    assert len(folded) == 2


def test_an_event_of_a_newer_version_holds_up_its_plan_alone(database: Database) -> None:
    log = SqlLog(database)
    for stream in ("p", "q"):
        log.append(stream, [submission(stream)], expected=0, at=1.0)
    with database.write() as session:
        session.execute(text("UPDATE events SET schema_version = 99 WHERE stream = 'p'"))
    plans = Plans(log)
    with pytest.raises(PlanUnusable, match="StudySubmitted event of version 99"):
        plans.get("p")
    assert list(plans.get("q").studies) == ["q"]


def test_idle_plans_are_released() -> None:
    log, at = MemoryLog(), [0.0]
    plans = Plans(log, idle_seconds=100.0, max_idle=3, clock=lambda: at[0])
    for number in range(6):
        log.append(f"p{number}", [submission(f"s{number}")], expected=0, at=1.0)
        if number:  # the study of p0 still runs
            log.append(f"p{number}", [StudyPaused(study=f"s{number}")], expected=1, at=1.0)
        plans.get(f"p{number}")
    assert plans.names() == ["p0", "p3", "p4", "p5"]
    at[0] += 50.0
    plans.get("p4")
    at[0] += 80.0
    plans.get("p0")
    assert plans.names() == ["p4", "p0"]
    assert plans.get("p1").studies["s1"].state == "paused"


def test_plans_of_many_events_are_released_first() -> None:
    """Once the API took 1.9 GB after it had shown ten studies of 10,000 trials."""
    log = MemoryLog()
    plans = Plans(log, max_idle_events=7)
    for name, events in (("small", 1), ("large", 6), ("larger", 8), ("last", 1)):
        paused = [StudyPaused(study=name), StudyResumed(study=name)] * 5
        log.append(name, [submission(name), *paused[: events - 1]], expected=0, at=1.0)
        log.append(name, [StudyPaused(study=name)], expected=events, at=1.0)
        assert plans.get(name).version == events + 1
    assert plans.names() == ["last"], "the larger plan alone exceeds the limit, so older ones are released, too"
    plans.get("small")
    plans.get("another")
    assert plans.names() == ["last", "small", "another"]


def test_the_only_plan_stays_however_long_it_is() -> None:
    log, at, folded = MemoryLog(), [0.0], list[int]()
    log.append("p", [submission("s"), StudyPaused(study="s")], expected=0, at=1.0)
    plans = Plans(
        log, max_idle_events=1, clock=lambda: at[0], on_fold=lambda stream, recorded: folded.append(len(recorded))
    )
    for _ in range(3):
        plans.get("p")
        at[0] += module.IDLE_SECONDS / 5
    assert folded == [2]


def test_a_released_plan_is_read_again() -> None:
    log, at = MemoryLog(), [0.0]
    log.append("p", [submission("s"), StudyPaused(study="s")], expected=0, at=1.0)
    plans = Plans(log, idle_seconds=100.0, clock=lambda: at[0])
    plans.get("p")
    at[0] += 1000.0
    assert plans.get("p").studies["s"].state == "paused"


def two_plans() -> tuple[Plans, list[float]]:
    """Plans p and q, which have just been read, and the test's clock."""
    log, at = MemoryLog(), [0.0]
    plans = Plans(log, idle_seconds=100.0, clock=lambda: at[0])
    for stream in ("p", "q"):
        log.append(stream, [submission("s")], expected=0, at=1.0)
        plans.get(stream)
    return plans, at


def test_an_unread_plan_of_a_running_study_is_released() -> None:
    """For example in an API process that wrote to it and never reads its end."""
    plans, at = two_plans()
    at[0] += 90.0
    plans.get("q")
    at[0] += 20.0
    plans.get("q")
    assert plans.names() == ["q"]


def test_a_kept_plan_is_not_released() -> None:
    plans, at = two_plans()
    at[0] += 90.0
    plans.keep(["p", "never read"])
    at[0] += 20.0
    plans.get("r")
    assert plans.names() == ["p", "r"]


def test_a_plan_in_use_is_not_released() -> None:
    log, at = MemoryLog(), [0.0]
    log.append("p", [submission("s"), StudyPaused(study="s")], expected=0, at=1.0)
    plans = Plans(log, idle_seconds=1.0, clock=lambda: at[0])
    with ThreadPoolExecutor(1) as other, plans.holding("p") as plan:
        at[0] += 10.0
        other.submit(plans.get, "q").result()
        assert plans.get("p") is plan


def test_a_plan_is_read_while_its_writer_waits_for_the_disk(log: EventLog) -> None:
    plans, seen = Plans(log), []
    write(log, plans, lambda plan: [submission("s")])

    def version() -> int:
        with plans.holding("p", fresh=False) as plan:
            return plan.version

    def alongside(rows: object) -> None:
        with ThreadPoolExecutor(1) as other:
            seen.append(other.submit(version).result(timeout=60))

    write(log, plans, lambda plan: [submission("t")], alongside=alongside)
    assert seen == [1]


def test_after_lost_races_it_decides_under_the_lock(log: EventLog) -> None:
    """Others write between each read and write; under the lock of the stream they cannot."""
    plans, attempts = Plans(log), list[int]()

    def decide(plan: SearchPlan) -> list[Event]:
        if len(attempts) <= OPTIMISTIC:
            log.append("p", [submission(f"other{plan.version}")], expected=None, at=1.0)
        return [submission("mine")]

    write(log, plans, decide, prepare=lambda: attempts.append(1))
    assert len(attempts) == OPTIMISTIC + 1
    assert list(plans.get("p").studies) == ["other0", "other1", "other2", "mine"]
    assert plans.get("p") == Plans(log).get("p")


def test_a_commit_with_a_lost_answer_is_recognised_by_its_key(database: Database, monkeypatch) -> None:
    log = SqlLog(database)
    lose_answers(database, monkeypatch)
    assert log.append("p", [submission("s")], expected=0, at=1.0, key="k") == log.read("p")
    with pytest.raises(DatabaseUnavailable):  # without a key the outcome is unknown
        log.append("p", [submission("t")], expected=1, at=1.0)
    assert log.head() == 2


def lose_answers(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    write = database.write

    class Lossy:
        def __enter__(self):
            self.inner = write()
            return self.inner.__enter__()

        def __exit__(self, *raised):
            self.inner.__exit__(*raised)
            raise DatabaseUnavailable("The connection was lost.")

    monkeypatch.setattr(database, "write", Lossy)
