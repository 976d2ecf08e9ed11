"""A trial that comes while a worker is in the middle of what it needs."""

from __future__ import annotations

from typing import Any

from scenes import Scene, trials

from app.domain import events as e


def test_what_a_worker_has_passed_is_trained_anew_at_once() -> None:
    scene = Scene(slots=2)
    chain = scene.running()
    scene.beat(chain, 6)
    scene.submit(trials(4), "late")
    scene.scheduler.tick()
    scene.scheduler.tick()
    assert scene.assigned() == [(0, 10), (0, 4)]


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
        assert rows.chains.flags(chain, 1).extra_eval_steps == (4,)
    scene.beat(chain, 6, 4)
    scene.scheduler.tick()
    assert scene.assigned() == [(0, 10)]


def test_what_a_worker_passed_without_having_heard_of_it_is_trained_anew() -> None:
    scene = Scene(slots=2)
    chain = scene.running()
    scene.beat(chain, 3)
    scene.submit(trials(4), "late")
    scene.scheduler.tick()
    scene.beat(chain, 6)
    scene.scheduler.tick()
    assert scene.assigned() == [(0, 10), (0, 4)]


HALVES: Any = {"family": "values", "values": [0.1, 0.2], "milestones": [4]}


def on_the_way(*asked: int) -> Scene:
    """A worker that has trained the trunk to step 4 and goes on behind a branch; it was asked to keep these steps."""
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
    scene.record(chain, facts, lambda rows: rows.chains.advance(chain, 1, 1))
    scene.beat(chain, 7, *asked)
    return scene


def test_what_is_kept_behind_a_branch_is_not_on_its_way_in_the_trunk() -> None:
    scene = on_the_way(6)
    scene.submit(trials(6), "late")
    scene.scheduler.tick()
    assert scene.assigned()[2:] == [(4, 6)]


def test_what_is_on_record_is_not_on_its_way_any_more() -> None:
    """It was kept without having been evaluated, which is done at once and not when the chain is over."""
    scene = on_the_way(2)
    scene.submit(trials(2), "late")
    scene.scheduler.tick()
    assert scene.assigned()[2:] == [(2, 2)]
