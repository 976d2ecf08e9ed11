"""Which checkpoints are deleted, in which order, and which plans are not read for it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, cast

import pytest
from assignments import work
from scenes import LEASE, Json, Scene, times
from test_idle import Counted

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.search_plan import PlacedCheckpoint, SearchPlan
from app.domain.terms import StudyId
from app.events.log import Append, Archived
from app.events.plans import PlanUnusable
from app.scheduling.retention import checkpoints_to_release
from app.storage.object_store import ObjectStore
from app.workers.scheduler.retention import MAX_OBJECTS, MAX_PLANS, Retention


class Store:
    """Lists deleted keys; its hook raises the errors of a store's client."""

    def __init__(self) -> None:
        self.deleted: list[str] = []
        self.before: Callable[[], None] = lambda: None

    def delete(self, key: str) -> None:
        self.before()
        self.deleted.append(key)


class Deleting:
    """A scene, each of whose checkpoints is of one byte, and what deletes them."""

    def __init__(self, budget: int | None = None) -> None:
        self.scene, self.store, self.said = Scene(), Store(), list[str]()
        self.plans = Counted(self.scene.records.log)
        self.plans.looked_at = []
        self.retention = Retention(
            self.scene.records,
            self.plans,
            cast(ObjectStore, self.store),
            budget,
            lambda: self.scene.at,
            self.said.append,
        )

    def train(self, name: str, trials: int = 1, steps: int = 4, plan: str = "", **fields: Any) -> None:
        """A study of its own plan, trained to its end."""
        listed = [{"hp": {"lr": float(number)}, "steps": steps} for number in range(trials)]
        spec: Json = {"kind": "trials", "trials": listed}
        self.scene.submit(spec, name, plan or name, **{"keep_best": 0, **fields})
        self.scene.run()
        self.scene.at += 1.0

    def give_up(self, name: str, plan: str = "") -> None:
        self.scene.give(c.DeleteStudy(study=StudyId(name), at=self.scene.at), plan=plan or name)

    def begin(self, name: str, trained: int) -> None:
        """A study that takes more trials; this many are trained, and the last one is to be trained on."""
        self.scene.submit({"kind": "external"}, name, name, keep_best=0)
        self.ask(name, *((float(number), 4) for number in range(trained)))
        self.scene.run()
        self.ask(name, (0.0, 9))
        self.scene.scheduler.tick()
        self.scene.claim()

    def ask(self, name: str, *trials: tuple[float, int]) -> None:
        for lr, steps in trials:
            hp: Json = {"lr": {"family": "constant", "value": lr}}
            self.scene.give(c.AddTrial(study=StudyId(name), hp=hp, steps=steps), plan=name)

    def looks(self) -> set[str]:
        """The plans at which one more look looks."""
        self.plans.looked_at.clear()
        self.retention.look()
        return {*self.plans.looked_at}

    def kept_keys(self, plan: str) -> list[str]:
        return [kept.key for kept in checkpoint_needs.checkpoints(self.scene.plan(plan))]


def test_plans_in_which_nothing_goes_on_come_first_the_oldest_of_them_first() -> None:
    world = Deleting(budget=0)
    world.scene.submit({"kind": "external"}, "open", "open", keep_best=0)
    world.ask("open", (0.1, 4), (0.2, 4), (0.3, 4))
    world.scene.run()
    world.begin("busy", 2)
    world.scene.give(c.CancelStudy(study=StudyId("busy"), at=world.scene.at), plan="busy")
    world.scene.register("gpu1")
    world.train("old")
    world.train("new")
    world.retention.survey()
    chosen = world.retention.choose()
    assert list(chosen) == ["old", "new", "open", "busy"]
    assert len(chosen["busy"]) == 1  # that with which the chain has begun stays


def test_where_nothing_has_changed_nothing_is_looked_at() -> None:
    world = Deleting()
    for name in ("a", "b"):
        world.train(name)
    assert world.looks() == {"a", "b"}
    assert world.looks() == set()
    world.train("c", plan="b")
    assert world.looks() == {"b"}


def test_nothing_goes_for_the_budget_before_all_plans_were_looked_at() -> None:
    world = Deleting(budget=0)
    plans = [f"plan{number}" for number in range(MAX_PLANS + 1)]
    for name in plans:
        world.train(name)
    first = world.retention.look()
    assert (first.objects, first.is_done) == (0, False)
    second = world.retention.look()
    assert (second.objects, second.bytes, second.is_done) == (len(plans), len(plans), True)
    assert not any(map(world.kept_keys, plans))


def test_so_many_go_in_one_look_and_the_budget_is_not_despaired_of_before_the_last() -> None:
    world = Deleting(budget=0)
    world.train("large", trials=MAX_OBJECTS + 2)
    first = world.retention.look()
    assert (first.objects, first.is_done, world.said) == (MAX_OBJECTS, False, [])
    assert world.retention.chain_quota({}, 0, 3) == 0
    second = world.retention.look()
    assert (second.objects, second.is_done, world.said) == (2, True, [""])


def test_a_tick_beside_a_look_counts_the_plan_that_is_looked_at_again() -> None:
    """The tick is on another thread: it comes at the moment at which the plan is folded."""
    world = Deleting(budget=4)
    world.train("plan", trials=4)
    world.retention.survey()
    assert world.retention.chain_quota({}, 0, 3) == 0
    world.train("longer", trials=4, steps=6, plan="plan")
    holding, fitting = world.plans.holding, list[int]()

    def survey_meanwhile(stream: str, *, fresh: bool = True) -> AbstractContextManager[SearchPlan]:
        fitting.append(world.retention.chain_quota({}, 0, 3))
        return holding(stream, fresh=fresh)

    world.plans.holding = survey_meanwhile  # type: ignore[method-assign]
    world.retention.survey()
    assert fitting == [0]


def test_what_is_garbage_goes_plan_by_plan() -> None:
    world = Deleting()
    world.train("large", trials=MAX_OBJECTS)
    world.train("small")
    for name in ("large", "small"):
        world.give_up(name)
    world.retention.survey()
    assert world.looks() == {"large"}
    assert world.looks() == {"small"}
    assert len(world.store.deleted) == MAX_OBJECTS + 1


def test_no_more_plans_are_looked_at_than_it_takes() -> None:
    world = Deleting(budget=10)
    for name in ("old", "new"):
        world.train(name, trials=6)
    world.retention.survey()
    assert world.looks() == {"old"}
    assert (len(world.kept_keys("old")), len(world.kept_keys("new"))) == (2, 6)


def test_that_the_budget_cannot_be_held_is_said_until_it_can() -> None:
    world = Deleting(budget=1)
    for name in ("a", "b"):
        world.train(name, keep_best=1)
    world.retention.look()
    assert world.said == ["checkpoints take 2 bytes of 1, and none of them may go"]
    world.give_up("a")
    world.retention.look()
    assert world.said[1:] == [""]


def test_of_what_nothing_may_go_is_not_chosen_again_until_something_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    world, chosen = Deleting(budget=1), list[SearchPlan]()

    def choose(plan: SearchPlan, excess: int, most: int) -> list[PlacedCheckpoint]:
        chosen.append(plan)
        return list(checkpoints_to_release(plan, excess, most))

    monkeypatch.setattr("app.workers.scheduler.retention.checkpoints_to_release", choose)
    for name in ("a", "b"):
        world.train(name, keep_best=1)
    for _ in range(3):
        world.retention.look()
    assert len(chosen) == 2
    world.train("c", keep_best=0, plan="b")
    world.retention.look()
    assert len(chosen) == 3 and len(world.kept_keys("b")) == 1


@pytest.mark.parametrize("is_named", [True, False])
def test_what_a_row_names_stays_until_its_chain_is_over(is_named: bool) -> None:
    """The row was there before its chain was in the plan that the release was decided on."""
    world = Deleting()
    world.train("plan")
    world.scene.register("gpu1")
    (kept,) = checkpoint_needs.checkpoints(world.scene.plan("plan"))
    world.scene.give(c.ReleaseCheckpoints(checkpoints=(kept,), reason="budget", assigned_keys=frozenset()))
    with world.scene.records.write() as rows:
        rows.chains.assign("x", "plan", "gpu1", work(resume=kept.key if is_named else None), LEASE)
    world.retention.look()
    assert world.store.deleted == ([] if is_named else [kept.key])
    with world.scene.records.write() as rows:
        rows.chains.end("x")
    world.retention.look()
    assert world.store.deleted == [kept.key]


def test_of_a_deleted_study_stays_what_a_chain_under_way_began_with() -> None:
    world = Deleting()
    world.begin("plan", 1)
    world.scene.give(c.CancelStudy(study=StudyId("plan"), at=1.0))
    world.give_up("plan")
    world.retention.survey()
    assert world.retention.choose() == {}


def test_what_is_garbage_and_dispensable_is_chosen_once() -> None:
    world = Deleting(budget=0)
    world.train("plan", trials=3)
    world.give_up("plan")
    world.retention.survey()
    (chosen,) = world.retention.choose().values()
    assert len(chosen) == len({kept.key for kept in chosen}) == 3


def test_garbage_frees_its_bytes_once() -> None:
    """All that may go must go, though some of it goes anyway."""
    world = Deleting(budget=0)
    world.train("gone", trials=6, plan="plan")
    world.train("stays", trials=3, plan="plan")
    world.give_up("gone", plan="plan")
    world.retention.survey()
    (chosen,) = world.retention.choose().values()
    assert {kept.key for kept in chosen} == set(world.kept_keys("plan"))


@pytest.mark.parametrize("is_known", [False, True], ids=["before it was looked at", "after that"])
def test_a_plan_that_cannot_be_folded_keeps_what_it_has_and_holds_up_no_other(is_known: bool) -> None:
    world = Deleting()
    for name in ("lame", "sound"):
        world.train(name)
        world.give_up(name)
    if is_known:
        world.retention.survey()
    unknown = e.ChainEnded(chain="unknown", outcome="done")
    world.scene.records.log.append("lame", [unknown], expected=None, at=0.0)
    assert world.retention.look().objects == 1
    assert world.retention.look().objects == 0
    assert world.kept_keys("sound") == []


def test_a_plan_that_cannot_be_used_when_it_comes_to_deleting_holds_up_no_other() -> None:
    world = Deleting()
    for name in ("lame", "sound"):
        world.train(name)
        world.give_up(name)
    world.retention.survey()
    holding = world.plans.holding

    def some(stream: str, *, fresh: bool = True) -> AbstractContextManager[SearchPlan]:
        if stream == "lame":
            raise PlanUnusable("by this version")
        return holding(stream, fresh=fresh)

    world.plans.holding = some  # type: ignore[method-assign]
    assert world.retention.look().objects == 1
    assert world.kept_keys("sound") == []


@pytest.mark.parametrize("fact", [e.CheckpointReleased, e.CheckpointDropped])
def test_a_plan_that_is_archived_in_that_moment_holds_up_no_other(fact: type) -> None:
    """It was an error in the log, and what other plans had to delete waited."""
    world = Deleting()
    for name in ("archived", "sound"):
        world.train(name)
        world.give_up(name)

    def put_away(append: Append) -> None:
        if append.stream == "archived" and isinstance(append.events[0], fact):
            raise Archived("archived")

    world.scene.records.before_write = put_away
    assert world.retention.look().objects == 1
    assert world.kept_keys("sound") == []


@pytest.mark.parametrize(("problem", "looks"), [(FileNotFoundError("no such object"), 1), (OSError("no route"), 2)])
def test_what_is_gone_already_is_deleted_and_what_cannot_be_deleted_comes_again(problem: Exception, looks: int) -> None:
    world = Deleting()
    world.train("plan")
    world.give_up("plan")
    world.store.before = times(1, problem)
    assert [world.retention.look().objects for _ in range(looks)][-1] == 1
    assert not world.scene.plan("plan").released
