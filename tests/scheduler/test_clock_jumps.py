"""A clock of the database that jumps: no living worker loses a lease, and no dead one is waited for longer."""

from __future__ import annotations

import pytest
from scenes import LEASE, ONE, Scene

from app.domain import events as e

HOUR = 3600.0


class Jumping:
    """A scene in which the clock of the database and the facts jumps; `wait` lets time go by everywhere."""

    def __init__(self, slots: int = 1) -> None:
        self.elapsed = 0.0
        self.scene = Scene(slots=slots, elapsed=lambda: self.elapsed)
        self.scene.submit(ONE)
        self.scene.scheduler.tick()
        self.wait(LEASE)

    def wait(self, seconds: float) -> None:
        self.scene.at += seconds
        self.elapsed += seconds
        self.scene.scheduler.tick()


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_clock_jump_ends_no_live_lease(jump: float) -> None:
    world = Jumping(slots=2)
    chain, _ = world.scene.claim()
    world.wait(1.0)
    world.scene.at += jump
    world.wait(1.0)
    world.scene.touch("gpu0")
    world.scene.beat(chain, 6)
    world.wait(LEASE)
    assert world.scene.outcomes() == []


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
def test_a_worker_dead_at_a_clock_jump_is_lost_after_a_lease(jump: float) -> None:
    world = Jumping(slots=2)
    world.scene.claim()
    world.wait(1.0)
    world.scene.at += jump
    world.wait(1.0)
    world.scene.touch("gpu1")
    world.wait(LEASE - 1.0)
    assert world.scene.outcomes() == []
    world.wait(2.0)
    (ended,) = world.scene.events(e.ChainEnded)
    assert (ended.outcome, ended.seconds) == ("lost", 0.0)
    world.scene.touch("gpu1")
    world.wait(1.0)
    assert world.scene.slots_of() == ["gpu0", "gpu1"]


@pytest.mark.parametrize("jump", [HOUR, -HOUR])
@pytest.mark.parametrize("beats_again", [False, True])
def test_the_time_of_a_lost_chain_does_not_include_a_clock_jump(jump: float, beats_again: bool) -> None:
    world = Jumping(slots=2)
    chain, _ = world.scene.claim()
    world.wait(10.0)
    world.scene.beat(chain, 6)
    world.wait(1.0)
    world.scene.at += jump
    if beats_again:
        world.scene.beat(chain, 6)
    while not world.scene.outcomes():
        world.scene.touch("gpu1")
        world.wait(LEASE / 4)
    (ended,) = world.scene.events(e.ChainEnded)
    assert (ended.outcome, ended.steps) == ("lost", 6)
    assert ended.seconds == pytest.approx(LEASE + 10.0 + beats_again)  # since it was given to its slot
