"""A store that is away, lies or forgets costs time; only lost states are struck, and trained again."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from threading import Event as Flag
from typing import Any

import pytest
from cluster import LEASE, Cluster
from in_process import InProcess
from opened import opened_states
from stacks import wait_for
from studies import BRANCHES, spec
from toys import switch

from app.domain import events as e
from app.domain.terms import StudyState
from app.workers.slot.saver import Saver


class EndpointConnectionError(Exception):
    """As botocore's: no OSError."""


def refuse(key: str) -> None:
    raise EndpointConnectionError("Could not connect to the endpoint URL")


def missing(key: str) -> None:
    raise FileNotFoundError(key)


def ill_for(cluster: Cluster, seconds: float, illness: Callable[[str], None]) -> Callable[[str], None]:
    """From its first use on, for this many seconds."""
    ends_at: list[float] = []

    def hook(key: str) -> None:
        if not ends_at:
            ends_at.append(cluster.clock.now() + seconds)
        if cluster.clock.now() < ends_at[0]:
            illness(key)

    return hook


def test_an_unneeded_chain_waits_for_no_checkpoint(cluster: Cluster) -> None:
    study, cancelled = cluster.submit(BRANCHES), list[str]()

    def away(key: str) -> None:
        if not cancelled:
            cancelled.append(key)
            cluster.cancel(study)
            cluster.ticker.tick()
            cluster.beat()
        refuse(key)

    cluster.store.before_read = away
    cluster.slots["gpu0"] = cluster.make_slot("gpu0", memory_bytes=0)
    assert cluster.run(study).state == StudyState.CANCELLED
    cluster.settle()
    assert cancelled and "stopped" in [event.outcome for event in cluster.events(e.ChainEnded)]


def test_a_folder_that_was_deleted_is_trained_again_and_said(cluster: Cluster) -> None:
    """Deleted to free a disk; every later study on the plan waited for ever."""
    (cluster.folder / "stagetree.db").touch()  # as in the folder of an embedded stack
    cluster.run(cluster.submit(spec(({}, 4))))
    cluster.slots["gpu0"] = cluster.make_slot("gpu0", memory_bytes=0)
    shutil.rmtree(cluster.folder / "checkpoints")
    said = set[str | None]()

    def look(name: str, process: InProcess, what: str, at: int) -> None:
        cluster.beat()
        said.add(cluster.row().note)

    cluster.script = look
    done = cluster.run(cluster.submit(spec(({}, 6))))
    assert (done.state, done.executed) == (StudyState.COMPLETED, 6)
    assert any(text and text.endswith("is not there: its steps are trained again") for text in said)
    cluster.beat()
    assert cluster.row().note is None


def test_a_slot_that_waits_for_the_store_reports_it(cluster: Cluster) -> None:
    notes = list[str | None]()

    def look(waits: int) -> None:
        cluster.slots["gpu0"].heartbeat.round()
        notes.append(cluster.row().note)

    cluster.store.before_write = ill_for(cluster, 30.0, refuse)
    cluster.clock.on_wait = look
    study = cluster.submit(spec(({}, 2)))
    cluster.work()
    cluster.clock.on_wait = lambda waits: None
    assert any(note and "waits for the store" in note and "EndpointConnectionError" in note for note in notes)
    cluster.beat()
    assert cluster.row().note is None
    assert cluster.run(study).state == StudyState.COMPLETED


def test_an_object_that_broke_off_while_it_was_written_is_never_named(cluster: Cluster) -> None:
    """The client fails after some parts: the object is written again, under another key."""
    write, broken = type(cluster.store).write, list[str]()

    def break_off(key: str) -> None:
        if not broken:
            broken.append(key)

            def parts() -> Iterator[memoryview]:
                yield memoryview(b"half")
                raise EndpointConnectionError("reset")

            write(cluster.store, key, parts())

    cluster.store.before_write = break_off
    done = cluster.run(cluster.submit(BRANCHES))
    assert done.executed == done.unique
    assert broken[0] not in {event.key for event in cluster.events(e.CheckpointKept)}
    assert not (cluster.folder / "checkpoints" / broken[0]).exists()


def test_a_branch_begins_with_what_is_in_memory(cluster: Cluster) -> None:
    """Six branches of one trunk on one slot: the trunk's state is never read from the store."""
    trials = [({"lr": switch(0.1, lr / 10, 4)}, 6) for lr in range(2, 8)]
    done = cluster.run(cluster.submit(spec(*trials)))
    assert done.executed == done.unique
    assert not cluster.store.reads


@pytest.fixture
def saves_by_step(monkeypatch: pytest.MonkeyPatch) -> dict[int, bool]:
    """By the steps at which states were given to savers: whether several stages wait to begin there."""
    found, save = dict[int, bool](), Saver.save

    def note(saver: Saver, claim: Any, place: str, *given: Any, on_cached: Any = None, **_: Any) -> None:
        found[int(place.rpartition("/")[2])] = on_cached is not None
        save(saver, claim, place, *given, on_cached=on_cached)

    monkeypatch.setattr(Saver, "save", note)
    return found


def test_a_saver_is_told_where_several_stages_wait_to_begin(cluster: Cluster, saves_by_step: dict[int, bool]) -> None:
    cluster.run(cluster.submit(BRANCHES))
    assert saves_by_step == {4: True, 8: False}


def test_intermediate_states_are_no_such_place(cluster: Cluster, saves_by_step: dict[int, bool]) -> None:
    cluster.submit(BRANCHES)
    cluster.at("train", 2, lambda: cluster.retiring.add("gpu0"))
    cluster.work()
    assert saves_by_step == {3: False}


def test_the_scheduler_hears_of_an_evaluation_before_its_state_is_stored(cluster: Cluster) -> None:
    """At the end of a stage that is not the last one: who asked for it may have other work for free slots."""
    may_go_on, study = Flag(), cluster.submit(spec(({}, 2), ({}, 4)))

    def hold_up(key: str) -> None:
        may_go_on.wait(60)

    cluster.store.before_write = hold_up
    cluster.ticker.tick()
    cluster.told = 0
    assert cluster.deliver()
    wait_for("the news", lambda: cluster.told)
    assert not cluster.events(e.CheckpointKept)
    may_go_on.set()
    assert cluster.run(study).state == StudyState.COMPLETED


def test_the_scheduler_hears_at_once_of_a_step_that_was_asked_for_on_the_way(cluster: Cluster) -> None:
    may_go_on, heard, study = Flag(), list[int](), cluster.submit(spec(({}, 12)))

    def script(slot: str, process: InProcess, what: str, step: int) -> None:
        if (what, step) == ("train", 2):
            cluster.submit(spec(({"lr": switch(0.1, 0.5, 6)}, 8)))
            cluster.ticker.tick()
            cluster.beat()
            cluster.told = 0
        if (what, step) == ("train", 7):
            heard.append(wait_for("the news", lambda: cluster.told))
            may_go_on.set()

    cluster.store.before_write = lambda key: may_go_on.wait(60)
    cluster.script = script
    cluster.ticker.tick()
    cluster.deliver()
    assert heard
    assert cluster.run(study).state == StudyState.COMPLETED


def test_a_trained_chain_waits_for_the_store_and_for_no_message(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For longer than a lease, which its heartbeat renews. The rest waits while some facts are recorded."""
    monkeypatch.setattr("app.workers.slot.outbox.COALESCE_SECONDS", 0.0)
    may_go_on, study = Flag(), cluster.submit(spec(({}, 2)))

    def hold_up(key: str) -> None:
        may_go_on.wait(60)

    cluster.store.before_write = hold_up
    cluster.ticker.tick()
    cluster.deliver()
    for _ in range(3):
        cluster.clock.wait(LEASE / 2)
        cluster.slots["gpu0"].heartbeat.round()
    may_go_on.set()
    cluster.settle()
    assert len(cluster.events(e.CheckpointKept)) == 1
    assert cluster.run(study).executed == 2


def test_a_slot_that_ends_leaves_no_state_open(cluster: Cluster) -> None:
    before = opened_states()
    cluster.run(cluster.submit(BRANCHES))
    assert opened_states() - before
    cluster.close()
    assert not opened_states() - before
