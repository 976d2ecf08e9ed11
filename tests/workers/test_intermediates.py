"""Checkpoints inside a stage: by time, the newest, the most useful, and within the byte limit."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import pytest
from cluster import LEASE, Cluster
from in_process import InProcess
from studies import spec
from toys import switch

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import NodeId, StudyId
from app.events.database import Database
from app.workers.slot.intermediates import IntermediateState, cheapest_to_drop

SIZE = 18_500
"""Bytes of a state of the toy, about."""


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """When states are kept is the same with each kind of database."""
    return sqlite_url


def long_stage(database: Database, tmp_path: Path, seconds: float, room: int, overhead: float = 0.01) -> Cluster:
    """One stage of 12 steps, each of this many seconds; keeping one costs next to nothing here."""
    cluster = Cluster(database, tmp_path, overhead=overhead, room=room)

    def script(slot: str, process: object, what: str, step: int) -> None:
        if what == "train":
            cluster.slots[slot].drain(60.0)
            cluster.clock.wait(seconds)

    cluster.script = script
    return cluster


def steps(cluster: Cluster) -> list[int]:
    return [event.step for event in cluster.events(e.CheckpointKept) if event.intermediate]


def test_none_is_kept_at_once(database: Database, tmp_path: Path) -> None:
    """The first is due after five seconds, a hundred times what keeping one is taken to cost."""
    cluster = long_stage(database, tmp_path, seconds=2.0, room=2**20)
    cluster.run(cluster.submit(spec(({}, 12))))
    assert steps(cluster)[0] == 3
    cluster.close()


def test_others_make_room_for_newer_ones_and_those_left_are_far_apart(database: Database, tmp_path: Path) -> None:
    cluster = long_stage(database, tmp_path, seconds=6.0, room=3 * SIZE)
    cluster.run(cluster.submit(spec(({}, 12))))
    assert len(steps(cluster)) > 4
    dropped = cluster.events(e.CheckpointDropped)
    assert {event.reason for event in dropped} == {"replaced"}
    assert set(steps(cluster)) - {event.step for event in dropped} == {4, 7, 11}
    [node] = cluster.plan.nodes.values()
    assert cluster.plan.intermediate_bytes <= 3 * SIZE
    stored = {path.name for path in (cluster.folder / "checkpoints").rglob("*.safetensors")}
    assert stored == {Path(checkpoint.key).name for checkpoint in node.checkpoints.values()}
    cluster.close()


def test_the_newest_is_kept_however_large_it_is(database: Database, tmp_path: Path) -> None:
    cluster = long_stage(database, tmp_path, seconds=6.0, room=1)
    cluster.run(cluster.submit(spec(({}, 12))))
    assert len(steps(cluster)) - len(cluster.events(e.CheckpointDropped)) == 1
    cluster.close()


def test_a_worker_that_dies_in_a_long_stage_costs_what_came_after_the_last_one(
    database: Database, tmp_path: Path
) -> None:
    cluster = long_stage(database, tmp_path, seconds=6.0, room=2**20)
    slow = cluster.script

    def script(slot: str, process: object, what: str, step: int) -> None:
        slow(slot, process, what, step)  # type: ignore[arg-type]
        if what == "train" and step == 9:
            raise KeyboardInterrupt  # as if the process were gone

    cluster.script = script
    study = cluster.submit(spec(({}, 12)))
    cluster.ticker.tick()
    try:
        cluster.deliver()
    except KeyboardInterrupt:
        cluster.slots["gpu0"].drain(60.0)
    last = max(steps(cluster))
    cluster.script = lambda *_: None
    cluster.slots["gpu0"] = cluster.make_slot("gpu0")
    cluster.clock.wait(LEASE + 1)
    cluster.run(study)
    trained = [event for event in cluster.events(e.ChainAssigned) if event.stages[0].start]
    assert trained[0].stages[0].start == last
    cluster.close()


# ----------------------------------------------------------------------------------------------- which make room


def remaining_steps(room: int, steps: int, branches: tuple[int, ...] = (), needed: int | None = None) -> list[int]:
    """The kept steps after each step of a stage, where there is room for this many."""
    kept: list[IntermediateState] = []
    for step in range(1, steps + 1):
        fact = e.CheckpointKept(node=NodeId("n"), step=step, key=str(step), sha256="", size=1, intermediate=True)
        kept.append(IntermediateState(fact, 0, branches))
        while len(kept) > room and (old := cheapest_to_drop(kept, set() if needed is None else {needed})) is not None:
            kept.remove(old)
    return [each.step for each in kept]


@pytest.mark.parametrize("room", [4, 8, 20])
def test_a_late_branch_costs_little_wherever_it_is(room: int) -> None:
    """Half of the stage was trained again, when the oldest had to go."""
    places = [0, *remaining_steps(room, 1000)]
    assert places[-1] == 1000
    assert max(after - before for before, after in pairwise(places)) <= 2.5 * 1000 / room


def test_early_branch_points_of_a_long_trunk_stay() -> None:
    assert {10, 20} <= set(remaining_steps(4, 1000, branches=(10, 20)))
    assert 10 not in remaining_steps(4, 1000)


def test_where_there_is_no_room_for_all_branch_points_the_least_is_trained_again() -> None:
    """From 50, what parts at 51 is one step away; from 10, forty-one."""
    assert remaining_steps(3, 100, branches=(10, 50, 51))[:2] == [10, 50]


def test_the_first_state_of_a_chain_stays() -> None:
    assert 3 in remaining_steps(2, 100, needed=3)
    assert remaining_steps(1, 5) == [5]


EXTERNAL = {"name": "study", "trainer": "toy", "metric": "score", "mode": "max", "tuner": {"kind": "external"}}


def ask(cluster: Cluster, study: StudyId, *actions: c.Start | c.Extend) -> None:
    cluster.give(c.AskForTrials(study=study, actions=actions))


def test_a_slot_keeps_the_state_where_a_waiting_trial_will_part(database: Database, tmp_path: Path) -> None:
    """Though none is kept for accidents; a longer request resumes the trial from there."""
    cluster = long_stage(database, tmp_path, seconds=1.0, room=2**20, overhead=0.0)
    study = cluster.submit(EXTERNAL)
    ask(cluster, study, c.Start(hp={"lr": switch(0.1, 0.2, 6)}, steps=2), c.Start(hp={"lr": 0.1}, steps=9))
    cluster.round()
    cluster.round()
    assert steps(cluster) == [6]
    ask(cluster, study, c.Extend(trial=0, steps=8))
    cluster.round()
    assert [event.stages[0].start for event in cluster.events(e.ChainAssigned)][-1] == 6
    found = cluster.study(study)
    assert found.active == 0 and found.executed == found.unique == 11
    cluster.close()


def test_a_slot_keeps_the_state_where_a_trial_will_part_that_comes_while_it_trains(
    database: Database, tmp_path: Path
) -> None:
    cluster = long_stage(database, tmp_path, seconds=1.0, room=2**20, overhead=0.0)
    study = cluster.submit(EXTERNAL)
    ask(cluster, study, c.Start(hp={"lr": 0.1}, steps=12))
    slow = cluster.script

    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        slow(slot, process, what, step)
        if (what, step) == ("train", 4):
            ask(cluster, study, *(c.Start(hp={"lr": switch(0.1, 0.2, at)}, steps=1) for at in (3, 8)))
            cluster.ticker.tick()
            cluster.beat()

    cluster.script = script
    cluster.round()
    assert steps(cluster) == [8]
    ask(cluster, study, c.Extend(trial=2, steps=10))
    cluster.round()
    assert [event.stages[0].start for event in cluster.events(e.ChainAssigned)][-1] == 8
    cluster.close()
