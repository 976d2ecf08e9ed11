"""Only objects that no process can name any more are deleted from the store, through any actions of others."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NoReturn, cast

import pytest
from assignments import WORK
from hypothesis import example, given
from hypothesis import strategies as st
from scenes import LEASE, ONE, Scene

from app.domain import checkpoint_needs
from app.domain import events as e
from app.events.plans import PlanUnusable
from app.events.rows import Fenced, LeaseFence
from app.storage.object_store import ObjectStat, ObjectStore, StoreUnavailable
from app.storage.owned_store import find_orphans

AGE = 100.0
SLOTS = 2
Move = tuple[str, int]
"""What happens, and to which worker."""


class Store:
    """Objects by name. meanwhile: called once the store is listed, before anything else is looked at."""

    prefix = ""

    def __init__(self) -> None:
        self.objects: dict[str, ObjectStat] = {}
        self.meanwhile: Callable[[], None] = lambda: None

    def all_keys(self) -> Iterator[str]:
        keys = [*self.objects]
        self.meanwhile()
        return iter(keys)

    def stat(self, key: str) -> ObjectStat:
        if key not in self.objects:
            raise FileNotFoundError(key)
        return self.objects[key]


class World(Scene):
    """A plan, and workers that write and say so, or do not, and come back late: each about the chain it had last."""

    def __init__(self) -> None:
        super().__init__(slots=0)
        self.store = Store()
        self.submit(ONE)
        self.scheduler.tick()  # it adds the trial, and assigns no chain
        for worker in range(SLOTS):
            self.register(f"gpu{worker}")
        (self.node,) = self.plan().nodes
        self.given: dict[int, str] = {}
        self.fences: dict[int, LeaseFence] = {}
        self.unsaid: dict[int, list[str]] = {worker: [] for worker in range(SLOTS)}

    def do_all(self, moves: Sequence[Move]) -> None:
        for what, worker in moves:
            getattr(self, what)(worker)

    def begin(self, worker: int) -> None:
        chain = f"chain{len(self.store.objects)}-{self.at}-{worker}"
        with self.records.write() as rows:
            slot = rows.slots.get(f"gpu{worker}")
            if slot is None or slot.chain is not None:
                return
            rows.chains.assign(chain, "plan", f"gpu{worker}", WORK, LEASE)
            self.fences[worker] = rows.chains.claim(chain, "anna", LEASE).fence
        self.given[worker], self.unsaid[worker] = chain, []

    def write(self, worker: int) -> None:
        """A worker whose chain was taken away does not know, and writes as well."""
        if worker in self.given:
            key = f"plan/node/{len(self.store.objects)}"
            self.store.objects[key] = ObjectStat(1, self.at)
            self.unsaid[worker].append(key)

    def say(self, worker: int) -> None:
        """Everything that was written, in order; void when the chain is over."""
        if (chain := self.given.get(worker)) is None:
            return
        kept = [e.CheckpointKept(node=self.node, step=1, key=key, sha256="", size=1) for key in self.unsaid[worker]]
        try:
            self.record(chain, list(kept), lambda rows: rows.chains.report(chain, self.fences[worker]))
        except Fenced:
            return
        self.fences[worker] = self.fences[worker].reported
        self.unsaid[worker].clear()

    def end(self, worker: int) -> None:
        """The scheduler takes the chain away."""
        if worker in self.given:
            try:
                with self.records.write() as rows:
                    rows.chains.end(self.given[worker])
            except Fenced:
                return

    def wait(self, worker: int) -> None:
        """Longer than the age, or not."""
        self.at += AGE * (1.5 if worker else 0.3)

    def sweep(self) -> list[str]:
        found = find_orphans(self.records, self.plans, cast("ObjectStore", self.store), AGE)
        return [orphan.key for orphan in found]


MOVES = st.tuples(st.sampled_from(["begin", "write", "say", "end", "wait"]), st.integers(0, SLOTS - 1))


SOME = st.lists(MOVES, max_size=6)


WRITTEN: list[Move] = [("begin", 0), ("write", 0), ("wait", 1)]


@example(before=WRITTEN, listed=[], looked_at=[("say", 0), ("end", 0)], after=[])
@example(before=WRITTEN, listed=[], looked_at=[], after=[("say", 0)])
@given(before=st.lists(MOVES, max_size=12), listed=SOME, looked_at=SOME, after=SOME)
def test_objects_named_in_the_log_stay(
    before: list[Move], listed: list[Move], looked_at: list[Move], after: list[Move]
) -> None:
    """listed: what happens once the store is listed. looked_at: before the rows of chains are."""
    world = World()
    world.do_all(before)

    def look() -> None:
        world.records.before_read = lambda: None
        world.do_all(looked_at)

    def list_all() -> None:
        world.do_all(listed)
        world.records.before_read = look

    world.store.meanwhile = list_all
    gone = world.sweep()
    world.do_all(after)
    for worker in range(SLOTS):
        world.say(worker)
    assert not checkpoint_needs.recorded_keys(world.plan()) & set(gone)


@given(st.lists(MOVES, max_size=12))
def test_unnamed_objects_are_deleted(moves: list[Move]) -> None:
    world = World()
    world.do_all(moves)
    for worker in range(SLOTS):
        world.end(worker)
    world.at += AGE + 1
    assert set(world.sweep()) == world.store.objects.keys() - checkpoint_needs.recorded_keys(world.plan())


def test_objects_of_other_logs_stay() -> None:
    world = World()
    world.store.objects |= {"another/node/1": ObjectStat(1, 0.0), "notes.txt": ObjectStat(1, 0.0)}
    assert world.sweep() == []


@pytest.fixture
def world_with_orphan() -> World:
    world = World()
    world.store.objects["plan/node/1"] = ObjectStat(1, 0.0)
    assert world.sweep() == ["plan/node/1"]
    return world


def test_objects_deleted_since_the_listing_are_skipped(world_with_orphan: World) -> None:
    world_with_orphan.store.meanwhile = world_with_orphan.store.objects.clear
    assert world_with_orphan.sweep() == []


@pytest.mark.parametrize("asked", ["all_keys", "stat"])
def test_an_unavailable_store_is_reported(
    world_with_orphan: World, monkeypatch: pytest.MonkeyPatch, asked: str
) -> None:
    def away(*_: str) -> NoReturn:
        raise ConnectionError("no route")

    monkeypatch.setattr(world_with_orphan.store, asked, away)
    with pytest.raises(StoreUnavailable, match="ConnectionError: no route"):
        world_with_orphan.sweep()


def test_objects_of_an_unreadable_plan_stay(world_with_orphan: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def unusable(stream: str) -> NoReturn:
        raise PlanUnusable("an event of a later version")

    monkeypatch.setattr(world_with_orphan.plans, "holding", unusable)
    assert world_with_orphan.sweep() == []
