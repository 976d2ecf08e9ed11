"""Workers that are lost, and workers that were only interrupted or never began."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from assignments import FENCE, WORK
from scenes import AWAY, LEASE, ONE, Scene, rates, times, trials
from transactions import free_slots

from app.domain import events as e
from app.domain.search_plan import MAX_LOST
from app.domain.terms import ChainOutcome


def test_a_worker_that_is_gone_is_lost_with_the_time_it_took() -> None:
    scene = Scene()
    chain = scene.running()
    scene.at += 30.0
    scene.beat(chain, 6)
    scene.expire()
    scene.scheduler.tick()
    (ended,) = scene.events(e.ChainEnded)
    assert ended == e.ChainEnded(chain=chain, outcome=ChainOutcome.LOST, steps=6, seconds=30.0)
    assert sum(node.seconds / node.steps_run for node in scene.plan().nodes.values()) == 5.0


def test_a_worker_that_died_between_its_sign_of_life_and_the_renewal_of_its_chain_is_lost() -> None:
    """Its slot was heard of one heartbeat later than its chain, and was taken for a worker that lives on."""
    scene = Scene()
    chain = scene.running()
    scene.beat(chain, 6)
    scene.at += LEASE / 6
    scene.touch("gpu0")
    scene.at += LEASE * 5 / 6 + 1e-3
    scene.scheduler.tick()
    assert scene.outcomes() == ["lost"]


def two_stage_scene() -> tuple[Scene, str]:
    """A worker that has begun the second of two stages, which ends at step 8."""
    scene = Scene()
    chain = scene.running(trials(4, 8))
    done = e.StageCompleted(chain=chain, index=0, seconds=1.0)
    scene.record(chain, [done], lambda rows: rows.chains.advance(chain, FENCE, 1))
    return scene, chain


def one_stage_scene() -> tuple[Scene, str]:
    scene = Scene()
    return scene, scene.running()


@pytest.mark.parametrize(
    ("begun", "step", "outcome"),
    [
        (one_stage_scene, 0, "interrupted"),
        (one_stage_scene, 6, "interrupted"),
        (two_stage_scene, 4, "undelivered"),  # it waits for its next message
        (two_stage_scene, 6, "interrupted"),
    ],
)
def test_a_worker_that_is_alive_and_has_its_slot_is_not_to_blame(
    begun: Callable[[], tuple[Scene, str]], step: int, outcome: str
) -> None:
    scene, chain = begun()
    scene.beat(chain, step)
    scene.expire("gpu0")
    scene.scheduler.tick()
    assert scene.outcomes() == [outcome]
    assert not any(node.lost for node in scene.plan().nodes.values())


def test_a_worker_that_is_saving_waits_for_nothing() -> None:
    """Its last heartbeat was at the beginning of the stage that it has completed since."""
    scene, chain = two_stage_scene()
    scene.beat(chain, 4)
    done = e.StageCompleted(chain=chain, index=1, seconds=1.0)
    scene.record(chain, [done], lambda rows: rows.chains.release(chain, FENCE, None))
    assert scene.scheduler.tick()
    scene.expire("gpu0")
    scene.scheduler.tick()
    (ended,) = scene.events(e.ChainEnded)
    assert ended == e.ChainEnded(chain=chain, outcome=ChainOutcome.INTERRUPTED)  # no step of it was lost


def test_a_new_scheduler_ends_unclaimed_chains() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.expire()
    scene.make_scheduler().tick()
    assert scene.outcomes() == ["undelivered"]


def test_a_chain_that_no_plan_knows_of_holds_up_nothing() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.register("gpu1")
    with scene.records.write() as rows:
        rows.chains.assign("ghost", "plan", "gpu1", WORK, 0.0)
        rows.chains.claim("ghost", "anna", 0.0)
    scene.at += 1.0
    assert scene.scheduler.tick()
    scene.at += LEASE
    assert scene.scheduler.tick()
    with scene.records.read() as rows:
        assert "ghost" not in {row.chain for row in rows.chains.live()}


def test_a_chain_that_another_scheduler_assigned_is_not_known_yet() -> None:
    scene = Scene(slots=0)
    scene.submit(ONE)
    first = scene.scheduler
    first.tick()
    scene.register("gpu0")
    scene.make_scheduler().tick()
    scene.claim()
    assert first.tick()


def test_a_slot_that_has_a_chain_is_not_asked_to_take_another() -> None:
    scene = Scene()
    scene.running()
    scene.submit(rates(0.5, steps=9), name="other")
    scene.scheduler.tick()
    scene.records.before_write = lambda append: pytest.fail("nothing can be assigned")
    assert scene.scheduler.tick()


def test_a_slot_that_was_taken_meanwhile_is_passed_over_and_the_others_get_work() -> None:
    scene = Scene(slots=2)
    scene.submit(rates(0.1, 0.2, steps=9))

    def take(append: object) -> None:
        with scene.records.write() as rows:
            free = free_slots(rows, LEASE)
            if len(free) == 2 and len(scene.plan().nodes) == 2:
                rows.chains.assign("other's", "elsewhere", free[0], WORK, LEASE)

    scene.records.before_write = take
    assert scene.scheduler.tick()
    assert len(scene.slots_of()) == 1


def test_a_slot_that_another_worker_took_lost_its_chain_at_once() -> None:
    scene = Scene()
    scene.running()
    scene.register("gpu0", "berta")
    scene.scheduler.tick()
    assert scene.outcomes() == ["lost"]


def kill_worker(scene: Scene, by: str) -> None:
    """The process that has the oldest message's chain dies; the slot is another's from here on."""
    with scene.records.read() as rows:
        slot = rows.slots.get("gpu0")
    assert slot is not None
    scene.claim(slot.owner)
    scene.register("gpu0", by)
    scene.scheduler.tick()


def test_a_stage_whose_process_dies_alone_too_often_is_trained_by_itself_and_then_fails() -> None:
    scene = Scene(slots=0)
    scene.register("gpu0", "lock:worker:0")
    scene.submit(trials(4, 8))
    scene.scheduler.tick()
    for number in range(MAX_LOST):
        assert scene.assigned_stages()[-2:] == [(0, 4), (4, 8)]
        kill_worker(scene, f"lock:worker:{number + 1}")
    assert scene.assigned_stages()[-2:] == [(4, 8), (0, 4)], "what follows waits for it"
    kill_worker(scene, "lock:worker:9")
    (failed,) = scene.events(e.StageFailed)
    assert failed.kind == "poison" and [trial.state for trial in scene.study().trials] == ["failed", "failed"]


@pytest.mark.parametrize("owner", ["lock:other{}:0", "elsewhere{}:worker:0", "of-an-older-version-{}"])
def test_a_worker_that_is_gone_as_a_whole_does_not_speak_against_its_stage(owner: str) -> None:
    """Such as one of `stagetree run`, killed three times and started again, or on a machine that is taken away."""
    scene = Scene(slots=0)
    scene.register("gpu0", "lock:worker:0")
    scene.submit(ONE)
    scene.scheduler.tick()
    for number in range(3 * MAX_LOST):
        kill_worker(scene, owner.format(number))
    assert scene.outcomes() == ["lost"] * 3 * MAX_LOST
    scene.run()
    assert scene.study().state == "completed" and not scene.study().failed


def test_a_stack_that_was_killed_and_started_again_does_not_speak_against_its_stage() -> None:
    """It knows that all the slots on record are dead, and forgets them."""
    scene = Scene(slots=0)
    scene.submit(ONE)
    for number in range(3 * MAX_LOST):
        with scene.records.write() as rows:
            rows.slots.forget_all()
        scene.register("gpu0", f"lock:worker{number}:0")
        scene.scheduler.tick()
        scene.claim(f"lock:worker{number}:0")
    assert scene.outcomes() == ["lost"] * (3 * MAX_LOST - 1) and not scene.study().failed


def test_after_a_database_outage_no_worker_is_lost_for_a_lease() -> None:
    """No worker could renew a lease; living ones do so as soon as the database answers."""
    scene = Scene(slots=2)
    chain = scene.running()
    scene.at += LEASE
    scene.records.before_read = times(1, AWAY)
    scene.scheduler.tick()
    scene.at += 5 * LEASE  # the length of the outage
    scene.scheduler.tick()
    assert scene.outcomes() == []
    scene.touch("gpu0")
    scene.beat(chain, 6)
    scene.at += LEASE
    scene.touch("gpu0")
    scene.beat(chain, 9)
    scene.scheduler.tick()
    assert scene.outcomes() == []


def test_a_worker_silent_for_a_lease_after_an_outage_is_lost() -> None:
    scene = Scene(slots=2)
    scene.running()
    scene.records.before_read = times(1, AWAY)
    scene.scheduler.tick()
    scene.at += 5 * LEASE
    scene.scheduler.tick()
    scene.at += LEASE
    scene.scheduler.tick()
    assert scene.outcomes() == ["lost"]


def test_a_read_only_database_is_an_outage() -> None:
    """It can be read, as on a standby: no worker could renew a lease, and living ones do so afterwards."""
    accidents = [lambda: None]
    scene = Scene(slots=2, show=lambda: accidents[0]())
    chain = scene.running()
    accidents[0] = times(1, AWAY)
    scene.at += LEASE - 1
    scene.scheduler.tick()
    scene.at += 2
    scene.scheduler.tick()
    assert scene.outcomes() == []
    scene.at += LEASE
    scene.touch("gpu0")
    scene.beat(chain, 6)
    scene.scheduler.tick()
    assert scene.outcomes() == []


@pytest.mark.parametrize("passed", [LEASE + 1, -3600.0], ids=["a lease", "a clock that goes back"])
def test_an_unclaimed_chain_goes_to_another_slot(passed: float) -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.at += passed
    scene.register("gpu1")
    scene.scheduler.tick()
    assert scene.outcomes() == ["undelivered"]
    assert scene.slots_of() == ["gpu0", "gpu1"]


def hears(scene: Scene, *slots: str) -> None:
    """The workers of these slots begin their messages, and beat; the others hear nothing."""
    with scene.records.write() as rows:
        for row in rows.chains.live():
            if row.slot in slots and row.state == "ready":
                rows.chains.claim(row.chain, "anna", LEASE)
            elif row.slot in slots:
                rows.chains.heartbeat(row.chain, row.lease.fence, LEASE, row.step + 1)


def a_lease(scene: Scene, *hearing: str) -> None:
    for _ in range(4):
        scene.at += LEASE / 4 + 1
        for slot in ("gpu0", "gpu1"):
            scene.touch(slot)
        hears(scene, *hearing)
        scene.scheduler.tick()


def quarantined_slots(scene: Scene) -> list[str]:
    with scene.records.read() as rows:
        return [row.name for row in rows.slots.all() if row.quarantined_until is not None]


def test_a_worker_that_begins_nothing_while_another_does_is_passed_over_and_shown() -> None:
    """Its heartbeat said that it was well, and it was sent the same work for ever."""
    scene = Scene(slots=2)
    scene.submit(rates(0.1, 0.2, steps=1000))
    scene.scheduler.tick()
    a_lease(scene, "gpu1")
    assert quarantined_slots(scene) == []
    for _ in range(3):
        a_lease(scene, "gpu1")
    assert quarantined_slots(scene) == ["gpu0"]
    with scene.records.read() as rows:
        note = rows.slots.get("gpu0").note  # type: ignore[union-attr]
    assert note == "2 chains in a row were sent here, and its worker began none: it may hear nothing"
    sent = scene.slots_of().count("gpu0")
    a_lease(scene, "gpu1")
    assert scene.slots_of().count("gpu0") == sent
    scene.register("gpu0", owner="the next worker")
    assert quarantined_slots(scene) == []


def test_no_worker_is_to_blame_where_none_is_sent_anything() -> None:
    scene = Scene(slots=2)
    scene.submit(rates(0.1, 0.2, steps=1000))
    scene.scheduler.tick()
    for _ in range(5):
        a_lease(scene)
    assert len(scene.outcomes()) > 4 and quarantined_slots(scene) == []


def test_no_worker_is_blamed_for_messages_that_the_broker_refused() -> None:
    """With the broker away for two leases, each slot in turn was given nothing for five minutes."""

    def publish(chain: str, stages: int, slot: str) -> None:
        if slot == "gpu0":
            raise ConnectionError("The broker is away.")

    scene = Scene(slots=2, publish=publish)
    scene.submit(rates(0.1, 0.2, steps=1000))
    scene.scheduler.tick()
    for _ in range(5):
        a_lease(scene, "gpu1")
    assert scene.outcomes().count("undelivered") > 2 and quarantined_slots(scene) == []
