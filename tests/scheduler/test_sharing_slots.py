"""Which slots are asked to make room: those that the waiting study could use."""

from __future__ import annotations

from typing import Any

from scenes import RANDOM, Scene

from app.scheduling.policies import POLICIES
from app.scheduling.preemption import LEAST_SECONDS

MANY = RANDOM | {"num_trials": 8, "max_steps": 400}


def scene(**ports: Any) -> Scene:
    """Two slots, both of them busy with one study for a while."""
    made = Scene(slots=2, **{"policy": POLICIES["fair_share"], "turn_seconds": 60.0} | ports)
    made.submit(MANY, name="large")
    made.scheduler.tick()
    made.at += LEAST_SECONDS + 1
    return made


def asked(made: Scene) -> list[bool]:
    with made.records.read() as rows:
        return sorted(row.preempt for row in rows.chains.live())


def test_a_study_that_comes_gets_one_of_two_slots() -> None:
    made = scene()
    made.scheduler.tick()
    assert asked(made) == [False, False]
    made.submit(name="small", plan="other")
    for _ in range(3):
        made.scheduler.tick()
        assert asked(made) == [False, True], "what was asked for is on its way"


def test_so_it_is_with_a_scheduler_that_was_started_anew() -> None:
    made = scene()
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    made.make_scheduler().tick()
    assert asked(made) == [False, True]


def test_a_slot_without_the_trainer_goes_on() -> None:
    made = scene()
    for slot in ("gpu0", "gpu1"):
        with made.records.write() as rows:
            rows.slots.describe(slot, "anna", trainers={"toy": "2"}, note=None)
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    assert asked(made) == [False, False]


def test_other_policies_stop_nobody() -> None:
    made = scene(turn_seconds=None)
    made.submit(name="small", plan="other")
    made.scheduler.tick()
    assert asked(made) == [False, False]


def test_a_free_slot_is_taken_before_anybody_is_asked() -> None:
    made = scene()
    made.register("gpu2")
    made.submit(MANY, name="small", plan="other")
    made.scheduler.tick()
    with made.records.read() as rows:
        assert {slot.name: bool(slot.chain) for slot in rows.slots.all()} == {"gpu0": True, "gpu1": True, "gpu2": True}
    assert asked(made) == [False, False, False]
