"""A budget for checkpoints is held while more plans are busy than are looked at in one look."""

from __future__ import annotations

from itertools import count
from typing import cast

from scenes import Json, Scene

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain.terms import StudyId
from app.events.plans import Plans
from app.storage.object_store import ObjectStore
from app.workers.scheduler.retention import MAX_PLANS, Retention

PLANS = [f"plan{number}" for number in range(2 * MAX_PLANS + 1)]


class Store:
    """Deletes every given key."""

    def delete(self, key: str) -> None:
        pass


def test_plans_that_change_all_the_time_are_looked_at_in_turn() -> None:
    scene, numbers = Scene(), count(1)
    deleting = Retention(scene.records, Plans(scene.records.log), cast(ObjectStore, Store()), 0, lambda: scene.at)

    def ask(plan: str) -> None:
        hp: Json = {"lr": {"family": "constant", "value": float(next(numbers))}}
        scene.give(c.AddTrial(study=StudyId(plan), hp=hp, steps=4), plan=plan)

    for plan in PLANS:
        scene.submit({"kind": "external"}, plan, plan, keep_best=0)
        ask(plan)
    scene.run()
    assert all(any(checkpoint_needs.checkpoints(scene.plan(plan))) for plan in PLANS)
    for _ in PLANS:
        for plan in PLANS:
            ask(plan)
        deleting.look()
    assert not any(any(checkpoint_needs.checkpoints(scene.plan(plan))) for plan in PLANS)
