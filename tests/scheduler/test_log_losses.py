"""A scheduler under which the database lost its last commits: it says so, and begins with the log that is there."""

from __future__ import annotations

import logging
from collections.abc import Callable

import pytest
from scenes import ONE, Scene

from tests.world.replica import copy_records


def lose(scene: Scene, do: Callable[[], object]) -> None:
    """Call `do`, and lose its commits."""
    put_back = copy_records(scene.records.inner)
    do()
    put_back()


def test_what_was_assigned_is_assigned_again(caplog: pytest.LogCaptureFixture) -> None:
    scene = Scene()
    scene.submit(ONE)
    lose(scene, scene.scheduler.tick)
    assert scene.assigned_stages() == [] and len(scene.messages) == 1
    with caplog.at_level(logging.ERROR):
        assert not scene.scheduler.tick()
    assert "the database has lost its last commits: event " in caplog.text
    assert scene.scheduler.tick()
    assert len(scene.assigned_stages()) == 1 and len(scene.messages) == 2


def test_what_others_have_recorded_since_is_not_taken_for_what_was_lost() -> None:
    """The log is as long as before when the scheduler looks at it."""
    scene = Scene()
    scene.submit(ONE)
    before = scene.records.log.head()
    lose(scene, scene.scheduler.tick)
    scene.at += 1
    other = scene.make_scheduler()
    while scene.records.log.head() == before:
        other.tick()
    assert not scene.scheduler.tick() and scene.scheduler.tick()
    assert len(scene.assigned_stages()) == 1
