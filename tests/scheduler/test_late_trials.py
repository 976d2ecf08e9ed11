"""A trial that comes while a worker trains the steps that it needs."""

from __future__ import annotations

from typing import Any

import pytest
from assignments import FENCE
from hypothesis import example, given
from hypothesis import strategies as st
from scenes import Scene, rates, trials

from app.domain import events as e
from app.domain.terms import ChainId
from app.workers.scheduler.cluster import Cluster
from app.workers.scheduler.ports import FrontierCache


@pytest.mark.parametrize("seen", [[6], [3, 6]], ids=["before the request", "before the slot reads the request"])
def test_what_a_worker_has_passed_is_trained_anew(seen: list[int]) -> None:
    """seen: the steps of its heartbeats, the first before the next request."""
    scene = Scene(slots=2)
    chain = scene.running()
    scene.beat(chain, seen[0])
    scene.submit(trials(4), "late")
    scene.scheduler.tick()
    for step in seen[1:]:
        scene.beat(chain, step)
    scene.scheduler.tick()
    assert scene.assigned_stages() == [(0, 10), (0, 4)]


def test_a_worker_is_told_only_what_is_new_for_it() -> None:
    told = list[str]()
    scene = Scene(notify=lambda chain, slot: told.append(chain))
    chain = scene.running(trials(10))
    scene.submit(trials(10), "the same")
    scene.scheduler.tick()
    assert told == []
    scene.submit(trials(4), "shorter")
    scene.scheduler.tick()
    assert told == [chain]


def test_what_a_worker_will_pass_or_is_about_to_report_is_not() -> None:
    scene = Scene(slots=2)
    chain = scene.running()
    scene.beat(chain, 3)
    scene.submit(trials(4), "late")
    scene.scheduler.tick()
    with scene.records.read() as rows:
        assert rows.chains.flags(chain, FENCE).extra_eval_steps == (4,)
    scene.beat(chain, 6, 4)
    scene.scheduler.tick()
    assert scene.assigned_stages() == [(0, 10)]


HALVES: Any = {"family": "values", "values": [0.1, 0.2], "milestones": [4]}


def on_the_way(*asked: int) -> Scene:
    """A worker that has trained the trunk to step 4 and continues behind a branch, asked to keep these steps."""
    scene = Scene(slots=2)
    listed = [{"hp": {"lr": lr}, "steps": steps} for lr, steps in ((0.1, 4), (HALVES, 8))]
    scene.submit({"kind": "trials", "trials": listed})
    scene.scheduler.tick()
    chain, (trunk, _) = scene.claim()
    with scene.records.write() as rows:
        rows.chains.ask_evaluation(chain, asked)
    facts: list[e.Event] = [e.Evaluated(node=trunk.node, step=4, metrics={"loss": 0.5})]
    facts.append(e.StageCompleted(chain=chain, index=0, seconds=1.0))
    kept = {step: e.CheckpointKept(node=trunk.node, step=step, key=f"{step}", sha256="", size=1) for step in (2, 4)}
    facts += [kept[step] for step in (*asked, 4) if step in kept]
    scene.record(chain, facts, lambda rows: rows.chains.advance(chain, FENCE, 1))
    scene.beat(chain, 7, *asked)
    return scene


@pytest.mark.parametrize(("step", "stage"), [(6, (4, 6)), (2, (2, 2))], ids=["behind a branch", "on record"])
def test_what_is_not_on_its_way_in_the_trunk_is_given_at_once(step: int, stage: tuple[int, int]) -> None:
    """Step 2 was kept without having been evaluated, which does not wait until the chain is over."""
    scene = on_the_way(step)
    scene.submit(trials(step), "late")
    scene.scheduler.tick()
    assert scene.assigned_stages()[2:] == [stage]


HAPPENS = st.sampled_from(["beat", "late trial", "evaluate", "keep", "complete"])


@pytest.mark.slow
@given(st.lists(st.tuples(HAPPENS, st.integers(1, 6)), min_size=3, max_size=15))
@example([("beat", 6), ("beat", 6), ("complete", 1), ("keep", 1)])
def test_who_takes_in_only_what_is_new_knows_as_much_as_who_looks_for_the_first_time(
    happens: list[tuple[str, int]],
) -> None:
    scene = Scene(slots=2)
    chain = scene.running(HALF_WAY)
    seen, kept = FrontierCache(scene.ports()), Cluster(scene.ports())
    for steps in (2, 4, 7):
        scene.submit(trials(steps), f"late {steps}")
    for kind, number in happens:
        happen(scene, chain, kind, number)
        scene.scheduler.tick()
        first, new = FrontierCache(scene.ports()), Cluster(scene.ports())
        for cache, cluster in ((seen, kept), (first, new)):
            cluster.look()
            cache.update(cluster.versions, cluster.live, cluster.changed_chains)
        assert chain_progress(seen) == chain_progress(first)


HALF_WAY = rates(HALVES | {"milestones": [10]}, steps=20)


def happen(scene: Scene, chain: str, kind: str, number: int) -> None:
    """One thing that a worker or a user does, if it can be done now."""
    with scene.records.read() as rows:
        row = rows.chains.get(chain)
    at = scene.plan().chains.get(ChainId(chain))
    if kind == "late trial":
        scene.submit(trials(number), f"later {len(scene.plan().studies)}")
    if row is None or at is None or at.is_trained:
        return
    stage, kept = at.stages[at.index], [step for step in row.extra_eval_steps if step <= row.step]
    if kind == "beat":
        scene.beat(chain, min(stage.end, max(row.step, stage.start) + number), *row.extra_eval_steps)
    elif kind == "evaluate":
        scene.record(chain, [e.Evaluated(node=stage.node, step=step, metrics={"loss": 1.0}) for step in kept], None)
    elif kind == "keep":  # also in a stage that is completed
        places = [(stage.node, step) for stage in at.stages for step in kept if stage.start < step <= stage.end]
        facts = [e.CheckpointKept(node=node, step=step, key=f"{step}", sha256="", size=1) for node, step in places]
        scene.record(chain, [*facts], None)
    elif row.step >= stage.end:
        with scene.records.write() as rows:
            rows.chains.advance(chain, FENCE, at.index + 1)
        scene.record(chain, [e.StageCompleted(chain=ChainId(chain), index=at.index, seconds=1.0)], None)


def chain_progress(cache: FrontierCache) -> Any:
    """How far chains are whose stages are trained; and the states on their way, of stages that were."""
    frontiers = cache.usable()
    coming = [frontier.in_flight for frontier in frontiers]
    chains = (chain for frontier in frontiers for chain in frontier.plan.chains.values() if not chain.is_trained)
    return coming, {chain.id: [frontier.progress.get(chain.id) for frontier in frontiers] for chain in chains}
