"""Who is really lost, and which slot gets what."""

from __future__ import annotations

from typing import Any

import pytest
from scenes import AWAY, LEASE, RANDOM, Scene, times

from app.domain import events as e
from app.domain.ids import StudyId
from app.domain.search_plan import Node
from app.domain.states import ChainOutcome
from app.simulation.simulator import Simulator
from app.simulation.virtual_chain import Fault
from tests.tuners.worlds import STUDY, spec, submit

ONE = {"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": 10}]}


def outcomes(scene: Scene) -> list[str]:
    return [event.outcome for event in scene.events(e.ChainEnded)]


def running(slots: int = 1) -> tuple[Scene, str]:
    """A scene in which a worker of gpu0 has begun a chain, and a scheduler that has looked at it for a while."""
    scene = Scene(slots=slots)
    scene.submit(ONE)
    scene.scheduler.tick()
    chain, _ = scene.claim()
    return scene, chain


def beat(scene: Scene, chain: str, step: int, *kept: int) -> None:
    with scene.records.write() as rows:
        rows.chains.heartbeat(chain, 1, LEASE, step, kept)


def test_a_worker_that_is_gone_is_lost_with_the_time_it_took() -> None:
    scene, chain = running()
    scene.at += 30.0
    beat(scene, chain, 6)
    scene.at += LEASE + 1
    scene.scheduler.tick()
    (ended,) = scene.events(e.ChainEnded)
    assert ended == e.ChainEnded(chain=chain, outcome=ChainOutcome.LOST, steps=6, seconds=30.0)
    assert sum(node.seconds / node.steps_run for node in scene.plan().nodes.values()) == 5.0


def ask(scene: Scene, steps: int) -> StudyId:
    return scene.submit({"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": steps}]}, name=f"to {steps}")


def test_what_a_worker_has_passed_is_trained_anew_at_once() -> None:
    scene, chain = running(slots=2)
    beat(scene, chain, 6)
    ask(scene, 4)
    scene.scheduler.tick()
    scene.scheduler.tick()
    assert [(stage.start, stage.end) for _, stage in assigned(scene)] == [(0, 10), (0, 4)]


def test_what_a_worker_will_pass_or_is_about_to_report_is_not() -> None:
    scene, chain = running(slots=2)
    beat(scene, chain, 3)
    ask(scene, 4)
    scene.scheduler.tick()
    with scene.records.read() as rows:
        assert rows.chains.flags(chain, 1).extra_eval_steps == (4,)
    beat(scene, chain, 6, 4)
    scene.scheduler.tick()
    assert [(stage.start, stage.end) for _, stage in assigned(scene)] == [(0, 10)]


def test_what_a_worker_passed_without_having_heard_of_it_is_trained_anew() -> None:
    scene, chain = running(slots=2)
    beat(scene, chain, 3)
    ask(scene, 4)
    scene.scheduler.tick()
    beat(scene, chain, 6)
    scene.scheduler.tick()
    assert [(stage.start, stage.end) for _, stage in assigned(scene)] == [(0, 10), (0, 4)]


def assigned(scene: Scene) -> list[tuple[str, e.Stage]]:
    return [(event.slot, stage) for event in scene.events(e.ChainAssigned) for stage in event.stages]


def test_a_worker_that_is_alive_and_has_its_slot_was_interrupted() -> None:
    scene, chain = running()
    beat(scene, chain, 6)
    scene.at += LEASE + 1
    scene.touch("gpu0")
    scene.scheduler.tick()
    assert outcomes(scene) == ["interrupted"]
    assert not any(node.lost for node in scene.plan().nodes.values())


def test_a_worker_that_waits_for_its_next_message_is_not_to_blame() -> None:
    scene, chain = in_two_stages()
    beat(scene, chain, 4)
    scene.at += LEASE + 1
    scene.touch("gpu0")
    scene.scheduler.tick()
    assert outcomes(scene) == ["undelivered"]


def in_two_stages() -> tuple[Scene, str]:
    """A worker that has begun the second of two stages, which ends at step 8."""
    scene = Scene()
    scene.submit({"kind": "trials", "trials": [{"hp": {"lr": 0.1}, "steps": steps} for steps in (4, 8)]})
    scene.scheduler.tick()
    chain, _ = scene.claim()
    done = e.StageCompleted(chain=chain, index=0, seconds=1.0)
    scene.record(chain, [done], lambda rows: rows.chains.advance(chain, 1, 1))
    return scene, chain


def test_a_worker_in_the_middle_of_its_second_stage_waits_for_nothing() -> None:
    scene, chain = in_two_stages()
    beat(scene, chain, 6)
    scene.at += LEASE + 1
    scene.touch("gpu0")
    scene.scheduler.tick()
    assert outcomes(scene) == ["interrupted"]


def test_a_worker_that_was_interrupted_in_its_first_step_waited_for_no_message() -> None:
    scene, chain = running()
    beat(scene, chain, 0)
    scene.at += LEASE + 1
    scene.touch("gpu0")
    scene.scheduler.tick()
    assert outcomes(scene) == ["interrupted"]


HALVES: Any = {"family": "values", "values": [0.1, 0.2], "milestones": [4]}


def on_the_way(*asked: int) -> Scene:
    """A worker that has trained the trunk to step 4 and goes on behind a branch; it was asked to keep these steps."""
    scene = Scene(slots=2)
    listed = [{"hp": {"lr": lr}, "steps": steps} for lr, steps in ((0.1, 4), (HALVES, 8))]
    scene.submit({"kind": "trials", "trials": listed})
    scene.scheduler.tick()
    chain, (trunk, _) = scene.claim()
    with scene.records.write() as rows:
        rows.chains.ask_evaluation(chain, asked)
    facts: list[e.Event] = [e.Evaluated(node=trunk.node, step=4, metrics={"loss": 0.5})]
    facts.append(e.StageCompleted(chain=chain, index=0, seconds=1.0))
    kept = {step: e.CheckpointKept(node=trunk.node, step=step, key=f"{step}", sha256="", size=1) for step in (2, 4)}
    facts += [kept[step] for step in (*asked, 4) if step in kept]
    scene.record(chain, facts, lambda rows: rows.chains.advance(chain, 1, 1))
    beat(scene, chain, 7, *asked)
    return scene


def test_what_is_kept_behind_a_branch_is_not_on_its_way_in_the_trunk() -> None:
    scene = on_the_way(6)
    ask(scene, 6)
    scene.scheduler.tick()
    assert [(stage.start, stage.end) for _, stage in assigned(scene)[2:]] == [(4, 6)]


def test_what_is_on_record_is_not_on_its_way_any_more() -> None:
    """It was kept without having been evaluated, which is done at once and not when the chain is over."""
    scene = on_the_way(2)
    ask(scene, 2)
    scene.scheduler.tick()
    assert [(stage.start, stage.end) for _, stage in assigned(scene)[2:]] == [(2, 2)]


def test_a_worker_that_is_saving_waits_for_nothing() -> None:
    """Its last heartbeat was at the beginning of the stage that it has completed since."""
    scene, chain = in_two_stages()
    beat(scene, chain, 4)
    done = e.StageCompleted(chain=chain, index=1, seconds=1.0)
    scene.record(chain, [done], lambda rows: rows.chains.release(chain, 1, None))
    assert scene.scheduler.tick()
    scene.at += LEASE + 1
    scene.touch("gpu0")
    scene.scheduler.tick()
    (ended,) = scene.events(e.ChainEnded)
    assert ended == e.ChainEnded(chain=chain, outcome=ChainOutcome.INTERRUPTED)  # no step of it was lost


def test_what_nobody_claimed_is_ended_by_a_scheduler_that_has_just_begun_to_look() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.at += LEASE + 1
    scene.make_scheduler().tick()
    assert outcomes(scene) == ["undelivered"]


def test_a_chain_that_no_plan_knows_of_holds_up_nothing() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.register("gpu1")
    with scene.records.write() as rows:
        rows.chains.assign("ghost", "plan", "gpu1", {"stages": []}, 0.0)
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
    scene, _ = running()
    scene.submit({"kind": "trials", "trials": [{"hp": {"lr": 0.5}, "steps": 9}]}, name="other")
    scene.scheduler.tick()
    scene.records.before_write = lambda append: pytest.fail("nothing can be assigned")
    assert scene.scheduler.tick()


def test_a_slot_that_was_taken_meanwhile_is_passed_over_and_the_others_get_work() -> None:
    scene = Scene(slots=2)
    scene.submit({"kind": "trials", "trials": [{"hp": {"lr": lr}, "steps": 9} for lr in (0.1, 0.2)]})

    def take(append: object) -> None:
        with scene.records.write() as rows:
            free = [slot.name for slot in rows.slots.free(LEASE)]
            if len(free) == 2 and len(scene.plan().nodes) == 2:
                rows.chains.assign("other's", "elsewhere", free[0], {"stages": []}, LEASE)

    scene.records.before_write = take
    assert scene.scheduler.tick()
    assert len(scene.slots_of()) == 1


def test_a_slot_that_another_worker_took_lost_its_chain_at_once() -> None:
    scene, _ = running()
    scene.register("gpu0", "berta")
    scene.scheduler.tick()
    assert outcomes(scene) == ["lost"]


def test_after_the_database_was_away_nobody_is_lost_for_a_lease() -> None:
    """Nobody could renew a lease; whoever lives does so as soon as the database answers."""
    scene, chain = running(slots=2)
    scene.at += LEASE
    scene.records.before_read = times(1, AWAY)
    scene.scheduler.tick()
    scene.at += 5 * LEASE  # so long it was away
    scene.scheduler.tick()
    assert outcomes(scene) == []
    scene.touch("gpu0")
    beat(scene, chain, 6)
    scene.at += LEASE
    scene.touch("gpu0")
    beat(scene, chain, 9)
    scene.scheduler.tick()
    assert outcomes(scene) == []


def test_who_is_silent_for_a_lease_after_that_is_lost() -> None:
    scene, _ = running(slots=2)
    scene.records.before_read = times(1, AWAY)
    scene.scheduler.tick()
    scene.at += 5 * LEASE
    scene.scheduler.tick()
    scene.at += LEASE
    scene.scheduler.tick()
    assert outcomes(scene) == ["lost"]


def test_a_database_that_takes_nothing_is_away() -> None:
    """It can be read, as on a standby: nobody could renew a lease, and whoever lives does so afterwards."""
    accidents = [lambda: None]
    scene = Scene(slots=2, show=lambda: accidents[0]())
    scene.submit(ONE)
    scene.scheduler.tick()
    chain, _ = scene.claim()
    accidents[0] = times(1, AWAY)
    scene.at += LEASE - 1
    scene.scheduler.tick()
    scene.at += 2
    scene.scheduler.tick()
    assert outcomes(scene) == []
    scene.at += LEASE
    scene.touch("gpu0")
    beat(scene, chain, 6)
    scene.scheduler.tick()
    assert outcomes(scene) == []


def test_a_chain_that_nobody_claimed_goes_to_another_slot() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.at += LEASE + 1
    scene.register("gpu1")
    scene.scheduler.tick()
    assert outcomes(scene) == ["undelivered"]
    assert scene.slots_of() == ["gpu0", "gpu1"]


# ----------------------------------------------------------------------------------------------------------- placement


def test_a_node_that_failed_on_one_slot_goes_to_another() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.fail()
    scene.register("gpu1")
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu1"]


def test_it_waits_for_a_slot_that_is_busy_while_others_work_goes_first() -> None:
    scene = Scene(slots=2)
    scene.submit(
        {"kind": "trials", "trials": [{"hp": {"lr": lr}, "steps": steps} for lr, steps in ((1, 9), (2, 8), (3, 7))]}
    )
    scene.scheduler.tick()
    scene.fail()  # the longest, on gpu0; gpu1 is still at the second
    scene.scheduler.tick()
    (third,) = [chain for chain in scene.plan().chains.values() if chain.slot == "gpu0"]
    assert third.stages[-1].end == 7
    scene.train()
    scene.scheduler.tick()
    assert scene.plan().chains[list(scene.plan().chains)[-1]].stages[-1].end == 9
    assert scene.slots_of()[-1] == "gpu1"


def test_where_it_failed_everywhere_it_is_tried_where_it_failed_least() -> None:
    scene = Scene()
    scene.submit(ONE, max_restarts=5)
    for _ in range(3):
        scene.scheduler.tick()
        scene.fail()
    assert scene.slots_of() == ["gpu0", "gpu0", "gpu0"]


@pytest.mark.parametrize(
    ("trainers", "sentence"),
    [
        ({}, "they do not have it at any version"),
        ({"toy": "2"}, "they have it at version 2"),
        ({"other": "1"}, "they do not have it at any version"),
    ],
)
def test_a_slot_without_the_trainer_is_given_nothing_and_that_is_said(trainers: dict[str, Any], sentence: str) -> None:
    scene = Scene(slots=0)
    scene.register("gpu0", trainers=trainers)
    scene.submit()
    scene.scheduler.tick()
    assert not scene.messages
    (problem,) = scene.scheduler.problems().values()
    assert problem == f"plan plan waits: no slot has trainer toy at version 1: {sentence}"
    scene.register("gpu1")
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu1"]
    assert not scene.scheduler.problems()


def test_a_slot_in_quarantine_is_given_nothing() -> None:
    scene = Scene()
    with scene.records.write() as rows:
        rows.slots.quarantine("gpu0", "anna", seconds=30.0, reason="sick")
    scene.submit(RANDOM)
    scene.scheduler.tick()
    assert not scene.messages
    scene.at += 30.0
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0"]


def test_the_assignment_says_for_whom_it_runs() -> None:
    scene, chain = running()
    with scene.records.read() as rows:
        row = rows.chains.get(chain)
    assert row is not None
    assert (row.assignment["study"], row.assignment["trial"], row.assignment["hp"]) == (
        "study",
        0,
        {"lr": {"family": "constant", "value": 0.1}},
    )


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["random", "asha"])
def test_beside_a_sound_slot_a_sick_one_fails_no_trial(seed: int, kind: str) -> None:
    """In virtual time: on gpu0 the user's code raises, whatever it is given."""
    tuner = {"kind": kind, "num_trials": 12, "max_steps": 8} | ({"min_steps": 1} if kind == "asha" else {})

    def measure(node: Node, step: int) -> e.Metrics:
        return {"loss": float(hash((node.id, step, seed)) % 100)}

    def faults(stage: e.Stage, number: int, slot: str) -> Fault | None:
        return Fault.RAISE if slot == "gpu0" else None

    world = Simulator(slots=3, measure=measure, faults=faults)
    submit(world, spec(tuner), STUDY)
    world.run()
    study = world.plan.studies[STUDY]
    assert (study.state, study.failed) == ("completed", [])
    assert sum(isinstance(event, e.StageFailed) for event in world.events) > 0
