"""Which chains a slot is given together, and what it is told about them."""

from __future__ import annotations

from dataclasses import replace

from scenes import OPENED, Scene

from app.domain import commands as c
from app.domain import events as e
from app.events.rows.ports import ChainRecord

PACKED = replace(OPENED, packing=4)


def given(scene: Scene) -> list[ChainRecord]:
    """The rows of the chains that a tick gives."""
    scene.scheduler.tick()
    with scene.records.read() as rows:
        return list(rows.chains.live())


def test_a_slot_is_given_a_pack_and_measures_what_packs_cost() -> None:
    scene = Scene()
    scene.submit(opened=PACKED)
    chains = given(scene)
    assert len(chains) == 4 and len(scene.messages) == 1
    for chain in chains:
        assert sorted(chain.assignment["pack"]) == sorted(each.chain for each in chains)
        assert chain.assignment["profile"]


def test_what_packs_cost_on_a_device_is_measured_once() -> None:
    scene = Scene()
    scene.submit(opened=PACKED)
    profile = e.PackingProfiled(device="cpu", batch_seconds={"0": 1.0, "2": 1.0, "4": 1.0}, peak_bytes={})
    scene.records.log.append("plan", [profile], expected=None, at=0.0)
    assert not any(chain.assignment["profile"] for chain in given(scene))


def test_where_slots_train_no_packs_chains_are_given_one_by_one() -> None:
    scene = Scene(packs=False)
    scene.submit(opened=PACKED)
    (chain,) = given(scene)
    assert not chain.assignment["pack"] and not chain.assignment["profile"]


def test_the_chain_of_a_plan_without_packs_measures_none() -> None:
    scene = Scene()
    scene.submit()
    (chain,) = given(scene)
    assert not chain.assignment["pack"] and not chain.assignment["profile"]


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
        (chain,) = given(scene)
    given_to_measure = {name: chain.assignment[name] for name in ("measure", "packing", "pack")}
    assert given_to_measure == {"measure": 2, "packing": 1, "pack": (chain.chain,)}
    assert len(chain.assignment["stages"]) == 1


def test_where_slots_train_no_packs_nothing_is_measured() -> None:
    scene = Scene(slots=2, packs=False)
    scene.submit(opened=CHOSEN_LATER)
    assert [chain.assignment["measure"] for chain in given(scene)] == [0, 0]


def test_a_study_that_is_paused_chooses_nothing() -> None:
    scene = Scene()
    study = scene.submit(opened=CHOSEN_LATER)
    scene.give(c.PauseStudy(study=study))
    assert not given(scene) and not scene.events(e.PackingChosen)
