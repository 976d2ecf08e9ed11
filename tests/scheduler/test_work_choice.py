"""Which slot gets what."""

from __future__ import annotations

from typing import Any
from zlib import crc32

import pytest
from assignments import FENCE
from scenes import ONE, RANDOM, Scene
from stacks import Json

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.search_plan import Node
from app.domain.terms import ChainId, ChainOutcome
from app.simulation.pace import Fault
from app.simulation.simulator import Simulator
from tests.tuners.worlds import STUDY, spec


def test_a_node_that_failed_on_one_slot_goes_to_another() -> None:
    scene = Scene()
    scene.submit(ONE)
    scene.scheduler.tick()
    scene.fail()
    scene.register("gpu1")
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu1"]


def test_work_for_a_busy_slot_waits_behind_other_work() -> None:
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
def test_a_slot_without_the_trainer_gets_no_work_and_it_is_reported(trainers: dict[str, Any], sentence: str) -> None:
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


def test_an_assignment_names_its_study() -> None:
    scene = Scene()
    chain = scene.running()
    given = scene.assignment(chain)
    assert (given.study, given.trial, given.hp) == ("study", 0, {"lr": {"family": "constant", "value": 0.1}})


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kind", ["random", "asha"])
def test_beside_a_sound_slot_a_sick_one_fails_no_trial(seed: int, kind: str) -> None:
    """In virtual time: on gpu0 the user's code raises for all work."""
    tuner = {"kind": kind, "num_trials": 12, "max_steps": 8} | ({"min_steps": 1} if kind == "asha" else {})

    def measure(node: Node, step: int) -> e.Metrics:
        return {"loss": float(crc32(f"{node.id}/{step}/{seed}".encode()) % 100)}

    def faults(stage: e.Stage, number: int, slot: str) -> Fault | None:
        return Fault.RAISE if slot == "gpu0" else None

    world = Simulator(slots=3, measure=measure, faults=faults)
    world.submit(STUDY, spec(tuner).to_json())
    world.run()
    study = world.plan.studies[STUDY]
    assert (study.state, study.failed) == ("completed", [])
    assert sum(isinstance(event, e.StageFailed) for event in world.events) > 0


def room_of_the_last_chain(scene: Scene) -> int:
    """The bytes that it may keep inside its stages."""
    with scene.records.read() as rows:
        (row,) = rows.chains.live()
    assert isinstance(row.assignment, ChainAssignment)
    return row.assignment.intermediate_bytes


def test_a_chain_may_keep_a_state_although_the_budget_is_spent() -> None:
    """Later chains kept none, and an accident cost their whole stage."""
    scene = Scene(intermediate_bytes=1000)
    chain = scene.running()
    assert room_of_the_last_chain(scene) == 1000
    node = scene.plan().chains[ChainId(chain)].stages[0].node
    kept = e.CheckpointKept(node=node, step=5, key="k", sha256="", size=5000, intermediate=True)
    lost = e.ChainEnded(chain=ChainId(chain), outcome=ChainOutcome.INTERRUPTED, steps=5)
    scene.record(chain, [kept, lost], lambda rows: rows.chains.end(chain, FENCE))
    scene.scheduler.tick()
    assert room_of_the_last_chain(scene) == 1


def test_where_nothing_may_be_spent_nothing_is_kept_inside_a_stage() -> None:
    scene = Scene(intermediate_bytes=0)
    scene.running()
    assert room_of_the_last_chain(scene) == 0


# -------------------------------------------------------------------------------- states that are not in the store yet


def branching(trunk: int, *ends: int) -> Json:
    """Trials that part behind a trunk."""
    values = [{"family": "values", "values": [0.1, 0.2 + number], "milestones": [trunk]} for number in range(len(ends))]
    return {
        "kind": "trials",
        "trials": [{"hp": {"lr": lr}, "steps": end} for lr, end in zip(values, ends, strict=True)],
    }


def trunk_trained(*hosts: str) -> tuple[Scene, str, e.Stage]:
    """A slot of each host, the first of which has trained a trunk: its chain, and that stage. The others are free."""
    scene = Scene(slots=0)
    scene.register("gpu0", host=hosts[0])
    scene.submit(branching(4, 8, 7, 6))
    scene.scheduler.tick()
    chain, stages = scene.claim()
    facts = [e.Evaluated(node=stages[0].node, step=step, metrics={"loss": 0.5}) for step in stages[0].evaluate]
    scene.record(chain, [*facts, e.StageCompleted(chain=ChainId(chain), index=0, seconds=1.0)], proof=None)
    for number, host in enumerate(hosts[1:], 1):
        scene.register(f"gpu{number}", host=host)
    return scene, chain, stages[0]


def state(kind: Any, stage: e.Stage, **more: Any) -> Any:
    return kind(node=stage.node, step=stage.end, key="k", sha256="", size=9, **more)


def test_a_branch_begins_on_the_same_host_while_its_state_is_on_its_way() -> None:
    scene, chain, trunk = trunk_trained("a", "b", "a")
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0"]  # as long as the state is in memory only
    scene.record(chain, [state(e.CheckpointCached, trunk, host="a")], proof=None)
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu2"]
    with scene.records.read() as rows:
        given = [row.assignment for row in rows.chains.live() if row.slot == "gpu2"]
    assert isinstance(given[0], ChainAssignment) and given[0].resume is not None
    assert given[0].resume.is_cached and given[0].resume.key == "k"
    scene.record(chain, [state(e.CheckpointKept, trunk)], proof=None)
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu2", "gpu1"]  # in the store it is there for all machines
    assert not scene.plan().nodes[trunk.node].cached


def test_one_that_did_not_find_it_waits_until_it_is_in_the_store() -> None:
    scene, chain, trunk = trunk_trained("a", "a")
    scene.record(chain, [state(e.CheckpointCached, trunk, host="a")], proof=None)
    scene.scheduler.tick()
    sibling, _ = scene.claim()
    interrupted = e.ChainEnded(chain=ChainId(sibling), outcome=ChainOutcome.INTERRUPTED)
    scene.record(sibling, [interrupted], lambda rows: rows.chains.end(sibling, FENCE))
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu1"]
    assert scene.plan().nodes[trunk.node].saving
    scene.record(chain, [state(e.CheckpointKept, trunk)], proof=None)
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu1", "gpu1"]


def test_after_a_lost_upload_the_trunk_is_trained_again() -> None:
    scene, chain, trunk = trunk_trained("a", "a", "a")
    scene.record(chain, [state(e.CheckpointCached, trunk, host="a")], proof=None)
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu1", "gpu2"]
    others = [scene.claim()[0], scene.claim()[0]]
    scene.expire("gpu1", "gpu2")
    for other in others:
        scene.beat(other, 5)
    scene.scheduler.tick()
    node = scene.plan().nodes[trunk.node]
    assert not node.cached and not node.saving
    assert [chain.slot for chain in scene.plan().chains.values()] == ["gpu1", "gpu2"]
    assert not scene.study().failed


def test_a_state_that_is_kept_already_is_not_one_of_a_host() -> None:
    scene, chain, trunk = trunk_trained("a", "b")
    scene.record(chain, [state(e.CheckpointKept, trunk), state(e.CheckpointCached, trunk, host="a")], proof=None)
    assert not scene.plan().nodes[trunk.node].cached
    scene.scheduler.tick()
    assert scene.slots_of() == ["gpu0", "gpu1"]
