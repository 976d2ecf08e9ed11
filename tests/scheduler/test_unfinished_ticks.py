"""Work that a tick cannot do is logged or left to the next one; the rest of the tick is done."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from assignments import FENCE
from scenes import LOST_RACE, ONE, Scene, times, trials

from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import SearchPlan
from app.domain.terms import ChainId, ChainOutcome, StudyId
from app.events.housekeeping import strike
from app.events.log import Append
from app.events.plans import Plans, PlanUnusable
from app.outages import LostRace
from app.scheduling.fair_share import POLICIES
from app.search.tuners.driver import make_driver
from app.workers.scheduler.cluster import DISPATCH_AGAIN_SECONDS
from stagetree.spec import SpecError, StudySpec


def silent() -> tuple[Scene, str]:
    """A scene in which a worker has begun a chain, and was not heard of for more than a lease."""
    scene = Scene()
    chain = scene.running()
    scene.expire()
    return scene, chain


def test_a_chain_with_a_heartbeat_during_its_end_continues() -> None:
    scene, chain = silent()
    scene.records.before_write = lambda append: scene.beat(chain, 6)
    assert scene.scheduler.tick()
    assert scene.outcomes() == []
    with scene.records.read() as rows:
        assert [row.chain for row in rows.chains.live()] == [chain]


def test_a_study_that_is_cancelled_while_its_path_is_chosen_gets_no_chain() -> None:
    """Found by a simulated history, seed 33517: the scheduler's look ended with a ValueError."""

    def choosing(*given: Any) -> Any:
        choice = POLICIES["critical_path"](*given)
        if choice is not None:
            scene.give(c.CancelStudy(study=StudyId("study"), at=scene.at))
            scene.scheduler_plans.get("plan")
        return choice

    scene = Scene(policy=choosing)
    scene.submit(ONE)
    assert scene.scheduler.tick()
    assert scene.assigned_stages() == [] and scene.study().state == "cancelled"


def test_a_chain_of_an_unreadable_plan_delays_no_other() -> None:
    scene, _ = silent()
    unknown = e.ChainEnded(chain="unknown", outcome="done")
    scene.records.log.append("plan", [unknown], expected=None, at=0.0)
    scene.register("gpu1")
    scene.submit(name="sound", plan="sound")
    assert scene.scheduler.tick()
    assert list(scene.scheduler.problems()) == ["plan"]
    assert "plan plan cannot be used: KeyError" in scene.scheduler.problems()["plan"]
    assert [slot for _, _, slot in scene.messages] == ["gpu1"]


def test_a_chain_that_cannot_be_ended_for_lost_races_is_ended_at_the_next_tick() -> None:
    scene, _ = silent()
    scene.records.before_write = times(1000, LOST_RACE)
    assert scene.scheduler.tick()
    assert scene.outcomes() == []
    scene.records.before_write = lambda append: None
    scene.scheduler.tick()
    assert scene.outcomes() == ["lost"]


def test_a_look_that_lost_a_race_is_made_again() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.records.before_read = times(1, LostRace("a deadlock"))
    assert not scene.scheduler.tick()
    assert scene.scheduler.tick()
    assert len(scene.messages) == 1


def test_a_study_of_another_version_waits_alone_and_is_reported() -> None:
    unreadable = {StudyId("newer")}

    def make(study: StudyId, spec: StudySpec) -> Any:
        if study in unreadable:
            raise SpecError([], "newer.yaml")
        return make_driver(study, spec)

    scene = Scene(make_driver=make)
    scene.submit(name="newer")
    scene.submit(name="known")
    scene.run()
    assert (scene.study("known").state, scene.study("newer").state) == ("completed", "running")
    assert "this version does not read its study file" in scene.scheduler.problems()["newer"]
    unreadable.clear()
    scene.submit(ONE, name="later")  # the plan moves
    scene.run()
    assert scene.study("newer").state == "completed"
    assert not scene.scheduler.problems()


def test_an_unopened_plan_delays_no_other() -> None:
    scene = Scene()
    scene.submit(ONE)
    submitted = next(iter(scene.events(e.StudySubmitted)))
    stray = replace(submitted, study=StudyId("stray"))
    scene.records.log.append("odd", [stray], expected=None, at=0.0)
    assert scene.scheduler.tick()
    assert len(scene.messages) == 1


def test_a_message_that_the_broker_did_not_take_again_is_not_counted_as_sent() -> None:
    """The process that was to send it again is gone: another scheduler does so at once."""
    messages, refuse = list[str](), list[bool]()

    def publish(chain: str, stages: int, slot: str) -> None:
        if refuse:
            raise OSError("no broker")
        messages.append(chain)

    scene = Scene(publish=publish)
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.at += DISPATCH_AGAIN_SECONDS + 1
    refuse.append(True)
    scene.scheduler.tick()
    refuse.clear()
    scene.make_scheduler().tick()
    assert len(messages) == 2 and len({*messages}) == 1


def test_a_new_scheduler_does_not_know_the_progress_of_chains() -> None:
    scene = Scene()
    chain = scene.running()
    scene.beat(chain, 6)
    assert scene.make_scheduler().tick()


def told_while_tuners_are_asked(do: Callable[[Scene, str], None]) -> Scene:
    """A tick in which a running chain is to hear of a step on its way, while this happens to it."""
    scene = Scene(slots=2)
    scene.submit({"kind": "external"}, name="own")
    own = c.AddTrial(study=StudyId("own"), hp={"lr": {"family": "constant", "value": 0.1}}, steps=10)
    scene.give(own)
    scene.scheduler.tick()
    chain, _ = scene.claim()
    scene.give(replace(own, steps=4))
    scene.submit(name="asked")

    def happen(append: object) -> None:
        scene.records.before_write = lambda append: None
        do(scene, chain)

    scene.records.before_write = happen
    assert scene.scheduler.tick()
    return scene


def test_a_chain_that_ends_during_tuning_gets_no_requests() -> None:
    def end(scene: Scene, chain: str) -> None:
        ended = e.ChainEnded(chain=ChainId(chain), outcome=ChainOutcome.STOPPED)
        scene.record(chain, [ended], lambda rows: rows.chains.end(chain, FENCE))

    scene = told_while_tuners_are_asked(end)
    assert scene.outcomes() == ["stopped"]
    scene.run()
    assert scene.study("asked").state == "completed"


def test_a_chain_trained_during_tuning_gets_no_requests() -> None:
    def complete(scene: Scene, chain: str) -> None:
        done = e.StageCompleted(chain=chain, index=0, seconds=1.0)
        scene.record(chain, [done], lambda rows: rows.chains.release(chain, FENCE, None))

    scene = told_while_tuners_are_asked(complete)
    with scene.records.read() as rows:
        (saving,) = [row for row in rows.chains.live() if row.state == "saving"]
    assert not saving.extra_eval_steps and not saving.stop


def test_a_plan_that_cannot_be_folded_any_more_is_given_no_slot() -> None:
    """It could be read before, and its work would come first."""
    scene = Scene(slots=0)
    scene.submit(trials(100), "lame", "lame")
    scene.scheduler.tick()
    scene.records.log.append("lame", [e.ChainEnded(chain="unknown", outcome="done")], expected=None, at=0.0)
    scene.submit(name="sound", plan="sound")
    scene.register("gpu0")
    assert scene.scheduler.tick()
    assert [event.slot for event in scene.events(e.ChainAssigned, "sound")] == ["gpu0"]


def test_a_plan_with_a_struck_study_is_read_anew() -> None:
    """The earlier view of its work belongs to another plan."""
    scene = Scene(slots=0)
    scene.submit(ONE, "bad")
    scene.scheduler.tick()
    strike(scene.records, "bad", "it harms the others", scene.at)
    scene.submit(ONE, "sound")
    scene.register("gpu0")
    scene.run()
    assert (scene.study("bad").state, scene.study("sound").state) == ("failed", "completed")


def lame_and_sound(accident: Callable[[Scene], object]) -> Scene:
    """Two plans, and what happens whenever a tuner of the first wants something."""
    scene = Scene()
    scene.submit(name="lame", plan="lame")
    scene.submit(name="sound", plan="sound")
    scene.records.before_write = lambda append: accident(scene) if append.stream == "lame" else None
    assert scene.scheduler.tick()
    assert [event.slot for event in scene.events(e.ChainAssigned, "sound")] == ["gpu0"]
    return scene


def test_races_that_the_tuners_of_a_plan_lose_hold_up_that_plan_alone() -> None:
    scene = lame_and_sound(times(1000, LOST_RACE))  # more often than the scheduler tries
    scene.records.before_write = lambda append: None
    scene.run()
    assert scene.study("lame", "lame").state == "completed"


def test_work_that_cannot_be_given_for_lost_races_is_left_to_the_next_tick() -> None:
    scene = Scene()
    scene.submit(ONE)

    def lose(append: Append) -> None:
        if append.alongside is not None:  # as when a slot is taken
            raise LOST_RACE

    scene.records.before_write = lose
    assert scene.scheduler.tick()  # to its end
    assert not scene.slots_of()
    scene.records.before_write = lambda append: None
    scene.run()
    assert scene.study().state == "completed"


def test_a_plan_that_breaks_while_its_tuners_are_asked_holds_up_itself_alone() -> None:
    unknown = e.ChainEnded(chain="unknown", outcome="done")
    scene = lame_and_sound(lambda scene: scene.records.inner.log.append("lame", [unknown], expected=None, at=0.0))
    assert list(scene.scheduler.problems()) == ["lame"]


class Reluctant(Plans):
    """Plans whose first reads fail, after they took in the new events."""

    refusals = 0

    @contextmanager
    def holding(self, stream: str, *, fresh: bool = True) -> Iterator[SearchPlan]:
        with super().holding(stream, fresh=fresh) as plan:
            if fresh and self.refusals:
                self.refusals -= 1
                raise PlanUnusable(f"plan {stream} cannot be used: not now")
            yield plan


def test_a_plan_that_recovers_at_once_is_read_again() -> None:
    scene = Scene()
    plans = Reluctant(scene.records.log)
    scheduler = scene.make_scheduler(plans)
    scene.submit({"kind": "external"})
    scheduler.tick()
    scene.submit({"kind": "external"}, name="other")  # of which no node hears
    plans.refusals = 1
    scheduler.tick()
    assert list(scheduler.problems()) == ["plan"]
    scheduler.tick()
    assert not scheduler.problems()


def test_a_plan_that_recovers_during_a_tick_is_read_by_the_next() -> None:
    scene = Scene()
    scene.running()
    plans = Reluctant(scene.records.log)
    plans.refusals = 1
    scheduler = scene.make_scheduler(plans)
    assert scheduler.tick() and list(scheduler.problems()) == ["plan"]
    assert scheduler.tick() and not scheduler.problems()
