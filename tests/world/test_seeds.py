"""What the seeds of a night choose: no kind of trouble is left out, or so rare that it shows nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from random import Random

from tests.world.fault_alphabet import RATES
from tests.world.history import faults_of
from tests.world.settings import Setting, setting

SEEDS = range(2000)
LEAST = len(SEEDS) // 25


def shapes(its: Setting) -> Iterator[str]:
    """What this history has."""
    yield from (name for name in ("packing", "ranks") if any(name in spec for spec in its.studies))
    yield f"{its.schedulers} schedulers"
    yield f"{its.apis} APIs"
    yield from (name for name in ("archives", "proofs") if getattr(its, name))
    yield from ("averages" for _ in filter(None, its.averages[:1]))


def test_every_shape_and_every_fault_is_chosen_often() -> None:
    seen = Counter[str]()
    for seed in SEEDS:
        seen.update(shapes(setting(Random(seed))))
        seen.update(faults_of(seed))
    wanted = {*RATES, "packing", "ranks", "2 schedulers", "2 APIs", "archives", "proofs", "averages"}
    assert {name: seen[name] for name in wanted if seen[name] < LEAST} == {}
