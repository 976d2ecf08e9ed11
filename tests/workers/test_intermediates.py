"""Checkpoints inside a stage: by time, the newest, and no more bytes than were given."""

from __future__ import annotations

from pathlib import Path

from cluster import LEASE, Cluster
from studies import spec

from app.domain import events as e
from app.events.database import Database

SIZE = 18_300
"""Bytes of a state of the toy, about."""


def long_stage(database: Database, tmp_path: Path, seconds: float, room: int) -> Cluster:
    """One stage of 12 steps, each of so many seconds; keeping one costs next to nothing here."""
    cluster = Cluster(database, tmp_path, overhead=0.01, room=room)

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


def test_older_ones_make_room_for_newer_ones(database: Database, tmp_path: Path) -> None:
    cluster = long_stage(database, tmp_path, seconds=6.0, room=2 * SIZE)
    cluster.run(cluster.submit(spec(({}, 12))))
    assert len(steps(cluster)) > 4
    dropped = cluster.events(e.CheckpointDropped)
    assert {event.reason for event in dropped} == {"replaced"}
    assert len(steps(cluster)) - len(dropped) == 2
    assert dropped[-1].step < max(steps(cluster)) - 1
    [node] = cluster.plan.nodes.values()
    assert cluster.plan.intermediate_bytes <= 2 * SIZE
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
