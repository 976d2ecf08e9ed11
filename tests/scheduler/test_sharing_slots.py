"""The scheduler asks only slots that the waiting study could use to make room."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import RANDOM, Scene

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId
from app.events.log import Append, VersionConflict
from app.scheduling.fair_share import POLICIES
from app.scheduling.preemption import LEAST_SECONDS
from app.workers.scheduler.sharing import SHOW_SECONDS

MANY = RANDOM | {"num_trials": 8, "max_steps": 400}


def scene(slots: int = 2, **ports: Any) -> Scene:
    """Some slots, all of them busy with one study for a while."""
    made = Scene(slots=slots, **{"policy": POLICIES["fair_share"], "turn_seconds": 60.0} | ports)
    made.submit(MANY, name="large")
    made.scheduler.tick()
    made.at += LEAST_SECONDS + 1
    return made


def preempt_flags(made: Scene) -> list[bool]:
    with made.records.read() as rows:
        return sorted(row.preempt for row in rows.chains.live())


def test_a_study_that_comes_gets_one_of_two_slots() -> None:
    made = scene()
    made.scheduler.tick()
    assert preempt_flags(made) == [False, False]
    made.submit(name="small", plan="other")
    for _ in range(3):
        made.scheduler.tick()
        assert preempt_flags(made) == [False, True], "the slot is not asked again"


def test_so_it_is_with_a_scheduler_that_was_started_anew() -> None:
    made = scene()
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    made.make_scheduler().tick()
    assert preempt_flags(made) == [False, True]


def test_other_policies_stop_nobody() -> None:
    made = scene(turn_seconds=None)
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    assert preempt_flags(made) == [False, False]


def test_a_free_slot_is_taken_before_anybody_is_asked() -> None:
    made = scene()
    made.register("gpu2")
    made.submit(MANY, name="small", plan="other")
    made.scheduler.tick()
    with made.records.read() as rows:
        assert {slot.name: bool(slot.chain) for slot in rows.slots.all()} == {"gpu0": True, "gpu1": True, "gpu2": True}
    assert preempt_flags(made) == [False, False, False]


def test_a_free_slot_whose_chain_could_not_be_put_on_record_yet_is_as_good_as_taken() -> None:
    made = scene()
    made.at -= LEAST_SECONDS + 1
    made.submit(name="small", plan="other")
    made.scheduler.tick()  # too early to take a slot back
    made.at += LEAST_SECONDS + 1
    made.register("gpu2")

    def lose(append: Append) -> None:
        if append.stream == "other":
            raise VersionConflict("another was faster")

    made.records.before_write = lose
    made.scheduler.tick()
    assert preempt_flags(made) == [False, False]
    made.records.before_write = lambda append: None
    made.scheduler.tick()
    assert [event.slot for event in made.events(e.ChainAssigned, "other")] == ["gpu2"]


def preempted_slots(made: Scene) -> list[str]:
    with made.records.read() as rows:
        return [row.slot for row in rows.chains.live() if row.preempt]


def test_a_slot_that_is_given_nothing_is_not_asked_for() -> None:
    made = scene(slots=4)
    for slot in ("gpu0", "gpu1", "gpu3"):
        with made.records.write() as rows:
            rows.slots.quarantine(slot, "anna", seconds=300.0, reason="it fails")
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    assert preempted_slots(made) == ["gpu2"]


@pytest.mark.parametrize(("without", "asked"), [(["gpu0"], ["gpu1"]), (["gpu0", "gpu1"], [])])
def test_the_slot_that_is_asked_for_is_one_that_has_the_trainer(without: list[str], asked: list[str]) -> None:
    made = scene()
    for slot in without:
        with made.records.write() as rows:
            rows.slots.describe(slot, "anna", trainers={"toy": "2"}, note=None)
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    assert preempted_slots(made) == asked


def due(made: Scene) -> dict[str, float | None]:
    with made.records.read() as rows:
        return {row.id: row.slots_due for row in rows.studies.page()}


def test_what_is_due_is_shown_when_it_changes_and_not_more_often_than_each_second() -> None:
    made = scene()
    made.scheduler.tick()
    assert due(made) == {"large": None}
    made.submit(MANY, name="small", plan="other")
    made.scheduler.tick()
    assert due(made) == {"large": 1.0, "small": 1.0}
    made.at += SHOW_SECONDS
    made.scheduler.tick()
    changes = made.records.changes
    made.at += SHOW_SECONDS
    made.scheduler.tick()
    assert made.records.changes == changes  # there is nothing new to show
    made.submit(MANY, name="third", plan="third", priority=2)
    made.scheduler.tick()
    first = due(made)
    made.at += SHOW_SECONDS / 2
    made.give(c.CancelStudy(study=StudyId("third"), at=made.at), plan="third")
    made.scheduler.tick()
    assert due(made) == first
    made.at += SHOW_SECONDS / 2
    made.scheduler.tick()
    assert due(made) == {"large": 1.0, "small": 1.0, "third": None} != first
    made.give(c.CancelStudy(study=StudyId("small"), at=made.at), plan="other")
    made.scheduler.tick()
    assert {*due(made).values()} == {None}  # at once: no other study competes any more
