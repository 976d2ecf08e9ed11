"""A reader notices that the log has lost events that it had read, drops its state and reads anew."""

from __future__ import annotations

import logging

import pytest
from lost_events import lose_appends

from app.domain.events import Event, StudySubmitted
from app.domain.evolve import fold
from app.domain.search_plan import SearchPlan
from app.events.log import Append, EventLog, VersionConflict
from app.events.lost_commits import LostCommits
from app.events.plans import Plans
from app.events.records import Write, transact

AT = 1_764_424_931.0


def submission(study: str) -> StudySubmitted:
    return StudySubmitted(study=study, spec={"name": study}, at=AT)


def add(log: EventLog, *studies: str, stream: str = "p", at: float = AT) -> None:
    log.append(stream, [submission(each) for each in studies], expected=None, at=at)


@pytest.mark.parametrize("others", [(), ("other",), ("other", "third")], ids=["shorter", "as long", "longer"])
def test_a_plan_with_lost_events_is_read_anew(
    log: EventLog, others: tuple[str, ...], caplog: pytest.LogCaptureFixture
) -> None:
    add(log, "s1")
    plans = Plans(log)
    with lose_appends(log):
        add(log, "s2")
        plans.get("p")
    if others:
        add(log, *others, at=AT + 9)
    with caplog.at_level(logging.ERROR), pytest.raises(LostCommits) as raised:
        plans.get("p")
    assert str(raised.value) == (
        "the database has lost its last commits: event 2 of plan p, recorded at 2025-11-29 14:02:11 UTC, is not in the"
        " log any more; later steps are trained again, and later requests of users must be sent again."
    )
    assert caplog.messages == [str(raised.value)]
    assert plans.get("p") == fold(each.event for each in log.read("p"))
    assert plans.losses == 1


def test_a_loss_in_one_plan_drops_all_plans(log: EventLog) -> None:
    """Also while no caller reads the plan that has lost events."""
    forgotten: list[str] = []
    add(log, "s1")
    plans = Plans(log, on_loss=lambda: forgotten.append("all"))
    with lose_appends(log):
        add(log, "s2", stream="q")
        plans.get("p")
        plans.get("q")
        plans.check_log()
    with pytest.raises(LostCommits):
        plans.check_log()
    assert plans.names() == [] and forgotten == ["all"]
    plans.check_log()
    assert plans.get("q").version == 0


def test_a_complete_log_has_no_loss(log: EventLog) -> None:
    add(log, "s1")
    plans = Plans(log)
    plans.get("p")
    add(log, "s2")
    plans.get("p")
    add(log, "s3", stream="q")
    plans.check_log()
    assert plans.get("p").version == 2 and plans.losses == 0


def test_no_decision_rests_on_lost_events(log: EventLog) -> None:
    """After any number of lost races, and under the lock of the stream."""
    add(log, "s1")
    plans = Plans(log)
    with lose_appends(log):
        add(log, "s2")
        plans.get("p")
    seen: list[list[str]] = []

    def decide(plan: SearchPlan) -> list[Event]:
        seen.append(list(plan.studies))
        return [submission("mine")]

    write = Write(stream="p", decide=decide, at=AT, is_known=True)
    with pytest.raises(LostCommits):
        transact(log, plans, write, pause=lambda seconds: None)
    assert log.version("p") == 1
    transact(log, plans, write, pause=lambda seconds: None)
    assert seen[-1] == ["s1"] and list(plans.get("p").studies) == ["s1", "mine"]


def test_a_decision_for_a_longer_stream_is_a_conflict(log: EventLog) -> None:
    add(log, "s1")
    with pytest.raises(VersionConflict, match="at version 1, before 2"):
        log.write(Append(stream="p", decide=lambda news: [submission("mine")], expected=2, at=AT))
