"""Where nothing happens, a tick looks at the rows and at nothing else: a thousand plans cost it next to nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from scenes import PLAN, Scene

from app.domain.search_plan import SearchPlan
from app.events.plans import Plans
from app.workers.scheduler.cluster import DISPATCH_AGAIN_SECONDS, Cluster

EXTERNAL = {"kind": "external"}


class Counted(Plans):
    """Plans that say which of them were looked at."""

    looked_at: list[str]

    @contextmanager
    def holding(self, stream: str, *, fresh: bool = True) -> Iterator[SearchPlan]:
        self.looked_at.append(stream)
        with super().holding(stream, fresh=fresh) as plan:
            yield plan


def watch_plans(scene: Scene) -> Counted:
    """The plans of a scheduler that is started now."""
    plans = Counted(scene.records.log)
    plans.looked_at = []
    scene.scheduler = scene.make_scheduler(plans)
    scene.scheduler.tick()
    return plans


def test_unchanged_plans_are_not_read() -> None:
    scene = Scene()
    for plan in ("a", "b", "c"):
        scene.submit(EXTERNAL, f"study-{plan}", plan)
    plans = watch_plans(scene)
    scene.scheduler.tick()
    plans.looked_at.clear()
    scene.scheduler.tick()
    assert plans.looked_at == []
    scene.submit(EXTERNAL, "late", "b")
    scene.scheduler.tick()
    assert set(plans.looked_at) == {"b"}


def test_plans_that_are_busy_stay_in_memory_however_long_nothing_happens() -> None:
    scene, at = Scene(), [0.0]
    scene.submit(EXTERNAL)
    plans = Counted(scene.records.log, idle_seconds=100.0, clock=lambda: at[0])
    plans.looked_at = []
    scene.scheduler = scene.make_scheduler(plans)
    for _ in range(5):
        at[0] += 90.0
        scene.scheduler.tick()
    plans.get("another")
    assert plans.names() == [PLAN, "another"]


def test_old_and_late_messages_are_handled_in_one_tick() -> None:
    scene = Scene(slots=2)
    scene.submit()
    scene.scheduler.tick()
    chain, _ = scene.claim()
    (other,) = [name for name, _, _ in scene.messages]
    cluster = Cluster(scene.ports())
    cluster.look()
    assert sorted(cluster.live) == sorted([chain, other])
    scene.at += DISPATCH_AGAIN_SECONDS + 1.0
    cluster.look()
    assert ([row.chain for row in cluster.undelivered], cluster.expired) == ([other], [])
    for seconds in (60.0, -600.0):
        scene.at += seconds
        cluster.look()
        assert [row.chain for row in cluster.expired] == sorted([chain, other])
