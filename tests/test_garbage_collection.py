"""The garbage collector where plans are held: it scans new objects; old ones are set aside and still freed."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator

import pytest

from app.domain.schedule import path
from app.domain.terms import NodeId
from app.process import garbage_collection
from app.scheduling.demands import Ranking


class Thing:
    """Something that the collector tracks, and that may refer to itself."""

    def __init__(self) -> None:
        self.me: Thing | None = None


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """Nothing is set aside by earlier tests, and the collector makes no pass of its own accord.

    A server that another test left open in this process would set aside what outlives a pass that is long here.
    """
    before = list(gc.callbacks)
    gc.callbacks.clear()
    gc.unfreeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()
    gc.callbacks[:] = before


@pytest.fixture
def set_aside(unfrozen: None) -> None:
    garbage_collection.freeze_survivors()


@pytest.mark.slow
def test_objects_that_outlive_a_full_pass_are_set_aside(set_aside: None) -> None:
    kept = Thing()
    gc.collect()
    assert gc.get_freeze_count() > 0
    assert not any(each is kept for each in gc.get_objects())


def test_objects_set_aside_are_freed_with_their_last_reference(set_aside: None) -> None:
    kept = Thing()
    gone = weakref.ref(kept)
    gc.collect()
    del kept
    assert gone() is None


def test_objects_are_not_set_aside_before_a_full_pass(set_aside: None) -> None:
    gc.collect(0)
    gc.collect(1)
    assert gc.get_freeze_count() == 0


def test_a_full_pass_frees_garbage_before_it_sets_aside_what_is_left(set_aside: None) -> None:
    thing = Thing()
    thing.me, gone = thing, weakref.ref(thing)
    del thing
    gc.collect()
    assert gone() is None


def test_new_garbage_is_freed(set_aside: None) -> None:
    thing = Thing()
    thing.me, gone = thing, weakref.ref(thing)
    del thing
    garbage_collection.collect_young()
    assert gone() is None


MANY = 1000


def ranking_nodes() -> Callable[[int], object]:
    ranking = Ranking[NodeId]()
    return lambda number: ranking.set_urgency(NodeId(f"node {number}"), (1.0, float(number)))


def reading_sequences() -> Callable[[int], object]:
    return lambda number: path({"lr": 0.5 + number}, 10, "")


@pytest.mark.slow
@pytest.mark.parametrize("make", [ranking_nodes, reading_sequences])
def test_structures_over_all_trials_are_not_scanned_for_each_new_trial(
    set_aside: None, make: Callable[[], Callable[[int], object]]
) -> None:
    """Dicts of plain tuples were scanned: a decision took longer the more trials there were."""
    add = make()
    for number in range(MANY):
        add(number)
    gc.collect()
    add(MANY)
    assert not [each for each in gc.get_objects() if isinstance(each, dict) and len(each) >= MANY]


def test_a_long_pass_is_not_made_twice(unfrozen: None) -> None:
    """Once each pass over a large plan delayed all requests of a server."""
    kept, before = Thing(), list(gc.callbacks)
    with garbage_collection.freeze_after_long_passes(seconds=0.0):
        gc.collect(1)
        assert gc.get_freeze_count() == 0
        gc.collect()
        assert not any(each is kept for each in gc.get_objects())
    assert gc.callbacks == before


def test_a_short_pass_sets_nothing_aside(unfrozen: None) -> None:
    with garbage_collection.freeze_after_long_passes(seconds=3600.0):
        gc.collect()
        assert gc.get_freeze_count() == 0
