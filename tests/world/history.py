"""One history of a simulated world, made from a seed alone."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from random import Random
from unittest.mock import patch
from uuid import UUID

from tests.world.fault_alphabet import HELD, PAUSE, RATES, choose_faults
from tests.world.oracle import LOOK, check, check_lent, standing
from tests.world.settings import STEP, Setting, long_setting, setting
from tests.world.surroundings import folder_of_world
from tests.world.system import LEASE, World

LEASES = 12
"""Leases after that, by the end of which all must be over."""


@dataclass(eq=False)
class Violation(Exception):
    """A broken rule in the history of a seed, with its events."""

    seed: int
    sentence: str
    story: tuple[str, ...]

    def __str__(self) -> str:
        return "\n".join((f"seed {self.seed}: {self.sentence}", *self.story))


def faults_of(seed: int) -> list[str]:
    """The faults that a seed chooses; without retries, none that count against a trial."""
    chance = Random(seed)
    never = HELD if any(spec.get("max_restarts") == 0 for spec in setting(chance).studies) else set()
    return [fault for fault in choose_faults(chance) if fault not in never]


def play(seed: int, faults: Sequence[str] | None = None, kill_at: str = "") -> World:
    """The history of a seed. faults: instead of the seed's own. kill_at: as in `Faults`. Raises `Violation`."""
    chance = Random(seed)
    return _play_world(seed, chance, setting(chance), faults_of(seed) if faults is None else faults, kill_at)


def play_long(seed: int, hours: float) -> World:
    """A history of some hours, with faults of all kinds. Raises `Violation`."""
    return _play_world(seed, Random(seed), long_setting(hours), list(RATES))


def _play_world(seed: int, chance: Random, its: Setting, wrong: Sequence[str], kill_at: str = "") -> World:
    with folder_of_world() as folder, errors() as said, names(chance):
        world = World(seed, its, wrong, folder)
        world.faults.kill_at = kill_at
        try:
            _play(world)
            check(world, said)
        except Exception as broken:  # also unexpected errors of a part of the world
            raise Violation(
                seed, str(broken) or repr(broken), (f"faults: {', '.join(wrong)}", str(its), *world.faults.told)
            ) from broken
        finally:
            world.end()
    return world


def _play(world: World) -> None:
    """Until all is over, and has been for a while."""
    calm = 200 * STEP * len(world.setting.studies) + world.setting.faults_until
    until = world.setting.faults_until + LEASES * LEASE + calm
    while world.time.now < until and not world.is_over():
        world.time.run(world.time.now + LOOK)
        check_lent(world)
    assert world.is_over(), f"not over {LEASES} leases after the last fault: {standing(world)}"
    world.faults.until = 0.0
    for server in (world.database, world.objects, world.broker):
        server.come_back()
    world.end_twins()
    until = world.time.now + PAUSE + 2 * LEASE
    while world.time.now < until and not world.is_at_rest():
        world.time.run(world.time.now + LOOK)
    world.time.run(world.time.now + 2 * LEASE)


@contextmanager
def names(chance: Random) -> Iterator[None]:
    """Random names follow from the chance of that world."""

    def uuid() -> UUID:
        return UUID(int=chance.getrandbits(128))

    with ExitStack() as patched:
        for module in ("slot.checkpoint_store", "ownership"):
            patched.enter_context(patch(f"app.workers.{module}.uuid4", uuid))
        yield


class _Errors(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.said = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(self.format(record))


@contextmanager
def errors() -> Iterator[list[str]]:
    """The logged errors: each is a bug of ours."""
    handler, root = _Errors(), logging.getLogger()
    root.addHandler(handler)
    try:
        yield handler.said
    finally:
        root.removeHandler(handler)
