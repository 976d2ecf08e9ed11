"""When tuners decide, and by which scheduler their studies are tuned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from scenes import PLAN, Scene, rates

from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.terms import StudyId
from app.events.log import Append
from app.search.replay import replay
from app.search.tuners.driver import make_driver
from app.workers.scheduler.tuning import Tuning
from stagetree.limits import LIMITS

STUDY = StudyId("study")
FOUR = {"kind": "random", "num_trials": 4, "max_steps": 4}


def once(do: Callable[[], None]) -> Callable[[object], None]:
    """Before the first write."""
    left = [do]

    def accident(append: object) -> None:
        while left:
            left.pop()()

    return accident


def test_a_study_that_is_paused_is_asked_for_nothing() -> None:
    scene = Scene()
    scene.submit(FOUR)
    scene.give(c.PauseStudy(study=STUDY))
    assert scene.scheduler.tick()
    assert not scene.study().trials and not scene.messages


def test_a_study_that_is_paused_while_its_tuner_thinks_is_paused_and_nothing_else() -> None:
    scene = Scene()
    scene.submit(FOUR)
    paused = [e.StudyPaused(study=STUDY)]
    scene.records.before_write = once(lambda: scene.records.log.append("plan", paused, expected=None, at=0.0) and None)
    assert scene.scheduler.tick()
    assert (scene.study().state, scene.study().trials) == ("paused", [])


def test_a_study_that_was_reopened_meanwhile_is_tuned_by_what_it_is_now() -> None:
    scene = Scene()
    scene.submit(FOUR)
    first = scene.scheduler
    first.tick()
    scene.scheduler = scene.make_scheduler()
    scene.run()
    scene.give(c.ReopenStudy(study=STUDY, trials=6, at=0.0))
    scene.scheduler = first
    scene.run()
    assert (scene.study().state, len(scene.study().trials)) == ("completed", 6)


def test_a_slot_that_is_new_is_given_trials_although_nothing_else_happened() -> None:
    scene = Scene()
    scene.submit(FOUR)
    for _ in range(3):
        scene.scheduler.tick()
    scene.register("gpu1")
    scene.register("gpu2")
    scene.scheduler.tick()
    assert sorted({*scene.slots_of()}) == ["gpu0", "gpu1", "gpu2"]


def test_a_tuner_is_made_once_and_asked_when_something_happened(monkeypatch: pytest.MonkeyPatch) -> None:
    made, asked = list[StudyId](), list[StudyId]()

    def make(study: StudyId, spec: object) -> object:
        made.append(study)
        driver = make_driver(study, spec)  # type: ignore[arg-type]
        suggest = driver.suggest
        driver.suggest = lambda room: (asked.append(study), suggest(room))[1]  # type: ignore[method-assign]
        return driver

    scene = Scene(make_driver=make)
    scene.submit(FOUR)
    for _ in range(3):
        scene.scheduler.tick()
    before = len(asked)
    scene.scheduler.tick()
    assert (len(made), len(asked)) == (1, before)


def test_a_study_that_fails_too_much_is_given_nothing_more_in_the_same_tick() -> None:
    scene = Scene(slots=2)
    scene.submit(rates(0.1, 0.2, 0.3), max_failures=0)
    scene.scheduler.tick()
    for _ in range(20):
        scene.fail()
        if scene.study().failed:
            break
        scene.scheduler.tick()
    given = len(scene.slots_of())
    scene.scheduler.tick()
    assert scene.study().state == "failed"
    assert len(scene.slots_of()) == given


def test_a_study_that_moves_all_the_time_is_tuned_all_the_same() -> None:
    """A user adds trials between any two attempts: after some lost races, the scheduler decides under a lock."""
    scene = Scene()
    scene.submit({**FOUR, "num_trials": 40})
    moves = iter(range(100))

    def move(append: object) -> None:
        hp = {"lr": {"family": "constant", "value": 1.0 + next(moves)}}
        own = c.AddTrial(study=STUDY, hp=hp, steps=4)
        plan = scene.plans.get("plan")
        scene.records.log.append("plan", list(decide(plan, own)), expected=None, at=0.0)

    scene.records.before_write = move
    scene.scheduler.tick()
    scene.records.before_write = lambda append: None
    assert any(trial.hp["lr"]["value"] < 1.0 for trial in scene.study().trials)


def test_a_study_whose_time_is_over_ends_though_nothing_has_happened() -> None:
    scene = Scene()
    scene.submit({"kind": "external"}, max_time=100.0)
    scene.at = 0.0
    for at, state in ((99.0, "running"), (101.0, "completed")):
        scene.at = at
        assert scene.scheduler.tick()
        assert scene.study().state == state


def test_tuners_are_asked_again_for_more_room_and_not_for_less() -> None:
    scene = Scene(slots=0)
    scene.submit(FOUR)
    tuning = Tuning(scene.ports())
    tuning.tune("plan", 2)
    version = scene.plan().version
    assert [tuning.was_asked("plan", version, room) for room in (1, 2, 3)] == [True, True, False]
    assert not tuning.was_asked("plan", version + 1, 2)


def test_what_came_while_another_study_was_tuned_in_vain_is_still_to_be_seen() -> None:
    """The tuner that ran first has not seen it."""
    scene = Scene(slots=0)
    scene.submit(FOUR, "other")
    scene.submit(FOUR)
    tuning = Tuning(scene.ports())
    paused = [e.StudyPaused(study=STUDY), e.StudyPaused(study=StudyId("other"))]
    scene.records.before_write = once(lambda: scene.records.log.append("plan", paused, expected=None, at=0.0) and None)
    tuning.tune("plan", 2)
    assert not scene.study().trials
    assert not tuning.was_asked("plan", scene.plan().version, 2)


def test_a_tuner_that_asks_for_what_may_not_be_fails_its_study() -> None:
    scene = Scene(limits=replace(LIMITS, trials=3))
    scene.submit(FOUR)
    assert scene.scheduler.tick()
    assert scene.study().state == "failed" and "asks for what may not be" in (scene.study().error or "")


def test_what_nobody_disturbs_is_decided_at_the_first_attempt() -> None:
    pauses = list[int]()
    scene = Scene(pause=pauses.append)
    scene.submit(FOUR)
    scene.run()
    assert scene.study().state == "completed" and pauses == []


def test_a_study_that_is_paused_when_its_time_is_over_is_not_ended() -> None:
    scene = Scene()
    scene.submit({"kind": "external"}, max_time=100.0)
    scene.at = 101.0
    paused = [e.StudyPaused(study=STUDY)]
    scene.records.before_write = once(lambda: scene.records.log.append("plan", paused, expected=None, at=0.0) and None)
    assert scene.scheduler.tick()
    assert scene.study().state == "paused"


def reopener(scene: Scene, **fields: Any) -> Callable[[], None]:
    """Another process has ended the study, and reopened it as another one."""

    def happen() -> None:
        over = e.StudyCompleted(study=STUDY, at=scene.at)
        again = e.StudyReopened(study=STUDY, spec={**scene.study().spec.json, **fields}, at=scene.at)
        scene.records.log.append("plan", [over, again], expected=None, at=scene.at)

    return happen


def test_what_a_tuner_wants_of_a_study_that_is_another_by_now_is_not_done() -> None:
    scene = Scene()
    scene.submit(FOUR)
    scene.records.before_write = once(reopener(scene, space={"lr": {"uniform": [5.0, 6.0]}}))
    scene.run()
    rates = [trial.hp["lr"]["value"] for trial in scene.study().trials]
    assert len(rates) == 4 and min(rates) >= 5.0


def test_the_end_of_a_study_that_is_another_by_now_is_not_its_end() -> None:
    scene = Scene()
    scene.submit({"kind": "external"}, max_time=100.0)
    scene.at = 101.0
    scene.records.before_write = once(reopener(scene, max_time=1000.0))
    assert scene.scheduler.tick()
    assert scene.study().state == "running"


def test_trials_for_idle_slots_are_put_on_record_at_once() -> None:
    """Each was a transaction of its own: on PostgreSQL 500 slots waited for the last of 500 of them."""
    scene = Scene(slots=6)
    scene.submit({"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3})
    written = list[int]()

    def count(append: Append) -> None:
        written.append(sum(isinstance(event, e.TrialAdded) for event in append.events))

    scene.records.before_write = count
    scene.scheduler.tick()
    assert [trials for trials in written if trials] == [6]


def test_a_trial_whose_result_is_there_is_ranked_before_the_next_one_is_begun() -> None:
    """As if each was requested alone, so that the promotions follow from the log."""
    asha = {"kind": "asha", "num_trials": 6, "min_steps": 2, "max_steps": 8, "reduction_factor": 2}
    scene = Scene(slots=4)
    scene.submit(asha)
    scene.run()
    scene.submit(asha, name="again")
    scene.run()
    log = [(each.position, each.event) for each in scene.records.log.read(PLAN)]
    for name in ("study", "again"):
        assert replay(log, StudyId(name)).identical
