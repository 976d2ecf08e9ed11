"""Which chains a slot gets together, and their messages."""

from __future__ import annotations

from dataclasses import replace

import pytest
from scenes import LOST_RACE, ONE, OPENED, Scene

from app.domain import commands as c
from app.domain import events as e
from app.events.log import Append
from app.events.rows import ChainRecord
from app.workers.scheduler.gangs import MAX_MEASUREMENTS

PACKED = replace(OPENED, packing=4)


def chains_after_tick(scene: Scene) -> list[ChainRecord]:
    """The rows of the chains that a tick gives."""
    scene.scheduler.tick()
    with scene.records.read() as rows:
        return list(rows.chains.live())


def test_a_slot_is_given_a_pack_and_measures_what_packs_cost() -> None:
    scene = Scene()
    scene.submit(opened=PACKED)
    chains = chains_after_tick(scene)
    assert len(chains) == 4 and len(scene.messages) == 1
    for chain in chains:
        assert sorted(chain.assignment.pack) == sorted(each.chain for each in chains)
        assert chain.assignment.profile


def test_what_packs_cost_on_a_device_is_measured_once() -> None:
    scene = Scene()
    scene.submit(opened=PACKED)
    profile = e.PackingProfiled(device="cpu", batch_seconds={"0": 1.0, "2": 1.0, "4": 1.0}, peak_bytes={})
    scene.records.log.append("plan", [profile], expected=None, at=0.0)
    assert not any(chain.assignment.profile for chain in chains_after_tick(scene))


@pytest.mark.parametrize(
    ("opened", "packs"), [(PACKED, False), (OPENED, True)], ids=["no packs here", "none asked for"]
)
def test_without_packs_chains_are_given_one_by_one_and_measure_none(opened: e.PlanOpened, packs: bool) -> None:
    scene = Scene(packs=packs)
    scene.submit(opened=opened)
    (chain,) = chains_after_tick(scene)
    assert not chain.assignment.pack and not chain.assignment.profile


def test_as_many_trials_are_asked_for_as_slots_can_train_at_once() -> None:
    """One more would be decided before it can be begun, with fewer results than there are by then."""

    def asked_for(opened: e.PlanOpened, packs: bool) -> int:
        scene = Scene(packs=packs)
        scene.submit({"kind": "asha", "num_trials": 20, "min_steps": 1, "max_steps": 4}, opened=opened)
        scene.scheduler.tick()
        return len(scene.events(e.TrialAdded))

    alone = asked_for(OPENED, packs=True)
    assert asked_for(PACKED, packs=False) == alone < asked_for(PACKED, packs=True) == 4 * alone


CHOSEN_LATER = replace(OPENED, packing=None)


def test_until_the_width_is_chosen_one_slot_measures_and_the_others_wait() -> None:
    scene = Scene(slots=2)
    scene.submit(opened=CHOSEN_LATER)
    for _ in range(2):
        (chain,) = chains_after_tick(scene)
    given_to_measure = {name: getattr(chain.assignment, name) for name in ("measure", "packing", "pack")}
    assert given_to_measure == {"measure": 2, "packing": 1, "pack": (chain.chain,)}
    assert len(chain.assignment.stages) == 1


def test_where_slots_train_no_packs_nothing_is_measured() -> None:
    scene = Scene(slots=2, packs=False)
    scene.submit(opened=CHOSEN_LATER)
    assert [chain.assignment.measure for chain in chains_after_tick(scene)] == [0, 0]


def test_a_study_that_is_paused_chooses_nothing() -> None:
    scene = Scene()
    study = scene.submit(opened=CHOSEN_LATER)
    scene.give(c.PauseStudy(study=study))
    assert not chains_after_tick(scene) and not scene.events(e.PackingChosen)


def profile(**seconds: float) -> e.PackingProfiled:
    """Of packs without hyper-parameters that decide the batch: `_0` is one model alone, `_2` a pack of two."""
    by_width = {width.removeprefix("_"): taken for width, taken in seconds.items()}
    return e.PackingProfiled(device="cpu", batch_seconds=by_width, peak_bytes={}, batch={})


def measured_before(scene: Scene, **seconds: float) -> None:
    """Another plan of the trainer has such a profile."""
    scene.records.log.append("before", [replace(CHOSEN_LATER, seed=1), profile(**seconds)], expected=0, at=0.0)


def widths(scene: Scene) -> list[int]:
    return [event.width for event in scene.events(e.PackingChosen)]


def test_what_another_plan_has_measured_decides_at_once() -> None:
    scene = Scene()
    measured_before(scene, _0=1.0, _2=1.0, _4=1.0)
    scene.submit(opened=CHOSEN_LATER)
    assert len(chains_after_tick(scene)) == 4 and widths(scene) == [4]


def test_what_is_known_of_narrower_packs_only_is_measured_anew() -> None:
    scene = Scene()
    measured_before(scene, _0=1.0, _2=1.0)
    scene.submit(opened=CHOSEN_LATER)
    assert [chain.assignment.measure for chain in chains_after_tick(scene)] == [4] and not widths(scene)


def test_nothing_is_chosen_for_slots_that_do_not_have_the_trainer() -> None:
    scene = Scene(slots=0)
    scene.register("gpu0", trainers={"toy": "2"})
    scene.submit(ONE, opened=CHOSEN_LATER)
    assert not chains_after_tick(scene) and not widths(scene)
    scene.register("gpu1")
    assert chains_after_tick(scene) and widths(scene) == [0]


def test_where_slots_train_no_packs_nothing_is_chosen() -> None:
    scene = Scene(packs=False)
    scene.submit(ONE, opened=CHOSEN_LATER)
    assert chains_after_tick(scene) and not widths(scene)


def test_nothing_is_chosen_while_the_last_attempt_to_measure_is_under_way() -> None:
    scene = Scene()
    scene.submit(opened=CHOSEN_LATER)
    for _ in range(MAX_MEASUREMENTS):
        assert len(chains_after_tick(scene)) == len(chains_after_tick(scene)) == 1 and not widths(scene)
        scene.claim()
        scene.expire("gpu0")
    assert chains_after_tick(scene) and widths(scene) == [0]


def test_a_choice_that_others_are_in_the_way_of_holds_up_its_own_plan_only() -> None:
    scene = Scene(slots=0)
    scene.submit(ONE, opened=CHOSEN_LATER)
    scene.submit(ONE, name="other", plan="other")
    scene.scheduler.tick()
    scene.register("gpu0")

    def lose(append: Append) -> None:
        if append.stream != "other":
            raise LOST_RACE

    scene.records.before_write = lose
    assert [chain.stream for chain in chains_after_tick(scene)] == ["other"] and not widths(scene)
    scene.records.before_write = lambda append: None
    scene.scheduler.tick()
    assert widths(scene) == [0]
