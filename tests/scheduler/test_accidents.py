"""An accident outside a study ends no study: of the database, other writers, other plans."""

from __future__ import annotations

import gc
from typing import NoReturn

import pytest
from scenes import AWAY, LOST_RACE, ONE, RANDOM, Scene, times, trials

from app.domain.search_plan import Node, SearchPlan
from app.events.memory import MemoryRecords
from app.events.plans import MAX_IDLE, Plans
from app.scheduling.costs import Costs
from app.scheduling.frontier import Frontier
from app.search.replay import replay
from app.search.tuners import TUNERS
from app.search.tuners.sha import Asha

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 4, "reduction_factor": 2}


def test_a_database_outage_at_any_moment_of_a_tick() -> None:
    """The finished part of a tick stands; the next tick does the rest."""
    calm = Scene(slots=2)
    calm.submit(ASHA)
    calm.run()
    for moment in range(40):
        scene = Scene(slots=2)
        scene.submit(ASHA)
        writes = iter(range(moment))
        scene.records.before_write = lambda append, writes=writes: _once(writes)
        scene.scheduler.tick()
        scene.records.before_write = lambda append: None
        scene.run()
        assert (scene.study().state, scene.study().executed) == ("completed", calm.study().executed)


def _once(writes: object) -> None:
    if next(writes, None) is None:  # type: ignore[call-overload]
        raise AWAY


def test_after_a_lost_race_only_new_events_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """A history of a thousand lines is not read again because another writer was faster once."""
    seen: list[int] = []
    observe = Asha.observe
    monkeypatch.setattr(Asha, "observe", lambda self, event: (seen.append(event.trial), observe(self, event))[1])
    scene = Scene(slots=3)
    scene.submit(ASHA | {"num_trials": 200})
    scene.records.before_write = lambda append: times(len(seen) % 3 == 0, LOST_RACE)()
    scene.scheduler.tick()
    scene.records.before_write = times(5, LOST_RACE)
    scene.run(1000)
    assert scene.study().state == "completed"
    assert len(seen) == len(scene.study().history)


def test_what_a_tuner_raises_fails_its_study(monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken(Asha):
        def suggest(self) -> NoReturn:
            raise ZeroDivisionError("no rung is left")

    monkeypatch.setitem(TUNERS, "asha", Broken)
    scene = Scene()
    scene.submit(ASHA, "broken")
    scene.submit(RANDOM, "sound")
    scene.run()
    assert scene.study("broken").state == "failed"
    assert "the tuner failed: ZeroDivisionError: no rung is left" in (scene.study("broken").error or "")
    assert scene.study("sound").state == "completed"


def test_an_estimate_that_fails_holds_up_its_plan_alone_and_forgets_nothing() -> None:
    broken = {"lame"}

    class Estimates(Costs):
        def seconds_per_step(self, node: Node, gpu: str | None = None) -> float:
            if broken and node.steps_run:
                raise OverflowError("a number too large")
            return super().seconds_per_step(node)

    scene = Scene(make_costs=Estimates)
    scene.submit(trials(3), "lame", "lame")
    scene.run()
    scene.submit(trials(9), "longer", "lame")
    scene.submit(RANDOM, "sound", "sound")
    scene.run()
    assert scene.study("sound", "sound").state == "completed"
    assert scene.study("longer", "lame").state == "running"
    assert scene.scheduler.problems() == {"lame": "plan lame cannot be scheduled: OverflowError: a number too large"}
    broken.clear()
    scene.run()
    assert scene.study("longer", "lame").state == "completed"
    assert not scene.scheduler.problems()


def test_a_broker_that_is_away_holds_up_a_tick_once_however_many_slots_are_free() -> None:
    asked, refusals = list[str](), times(1, OSError("no broker"))

    def publish(chain: str, stages: int, slot: str) -> None:
        asked.append(slot)
        refusals()

    scene = Scene(slots=3, publish=publish)
    scene.submit()
    scene.scheduler.tick()
    assert len(asked) == 1 and len(scene.slots_of()) == 3
    scene.scheduler.tick()
    assert sorted(asked[1:]) == ["gpu0", "gpu1", "gpu2"]


def test_a_scheduler_that_was_started_anew_goes_on() -> None:
    scene = Scene(slots=2)
    scene.submit(ASHA)
    for _ in range(100):
        scene.scheduler = scene.make_scheduler()
        scene.scheduler.tick()
        while scene.messages:
            scene.train()
    study = scene.study()
    assert (study.state, study.executed) == ("completed", study.unique)
    log = [(each.version, each.event) for each in scene.records.log.read("plan")]
    assert replay(log, study.id).identical


def test_plans_that_are_over_are_let_go() -> None:
    scene = Scene()
    for number in range(30):
        scene.submit(name=f"s{number}", plan=f"p{number}")
        scene.run()
    assert scene.study("s29", "p29").state == "completed"
    assert len(scene.scheduler_plans.names()) <= MAX_IDLE + 1


@pytest.mark.slow
def test_nothing_holds_on_to_a_plan_that_was_let_go() -> None:
    scene, kinds = Scene(), (SearchPlan, Frontier)
    before = alive(*kinds)
    for number in range(30):
        scene.submit(ASHA, name=f"s{number}", plan=f"p{number}")
        scene.run()
    scene.plans = Plans(scene.records.log)
    scene.scheduler.tick()  # which finds that the last one is over
    assert alive(*kinds) - before <= len(scene.scheduler_plans.names()) <= MAX_IDLE + 1


def alive(*kinds: type) -> int:
    gc.collect()
    return sum(isinstance(each, kinds) for each in gc.get_objects())


def test_an_idle_tick_is_one_read() -> None:
    scene = Scene()
    for number in range(5):
        scene.submit({"kind": "external"}, f"s{number}", f"p{number}")
    scene.scheduler.tick()
    reads: list[int] = []
    log_reads = scene.records.inner.log.read
    scene.records.before_read = lambda: reads.append(1)
    scene.records.before_write = lambda append: pytest.fail("nothing is to be written")
    assert isinstance(scene.records.inner, MemoryRecords)
    scene.records.inner.log.read = lambda *a, **k: (reads.append(2), log_reads(*a, **k))[1]  # type: ignore[method-assign]
    scene.scheduler.tick()
    assert reads == [1]


def patience(scene: Scene) -> bool:
    """Of the chain that was sent last."""
    return scene.assignment(scene.messages[-1][0]).patient


def test_a_step_that_is_slower_than_all_before_is_not_taken_for_a_hang_twice() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    assert not patience(scene)
    scene.fail("hang")
    scene.scheduler.tick()
    assert patience(scene)


def test_a_step_that_is_not_tried_again_is_waited_for() -> None:
    scene = Scene()
    scene.submit(ONE, max_restarts=0)
    scene.scheduler.tick()
    assert patience(scene)
