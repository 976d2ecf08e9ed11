"""The kinds of GPU that train a study: the named ones, and one kind within a trial, unless it names several."""

from __future__ import annotations

import pytest
from scenes import Scene, rates
from stacks import Json

from app.domain import events as e
from app.domain.slots import gpu_of, matches_device

A100, H100, L40S = "NVIDIA A100-SXM4-80GB", "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
VALUES: Json = {"family": "values", "values": [0.1, 0.2], "milestones": [4]}
BRANCHING = rates(VALUES, VALUES | {"values": [0.1, 0.3]}, steps=8)


def cluster(**kinds: str) -> Scene:
    scene = Scene(slots=0)
    for slot, kind in kinds.items():
        scene.register(slot, kind=kind)
    return scene


def assignments(scene: Scene) -> list[tuple[str, int]]:
    """To which slot each chain went, and where it began."""
    return [(event.slot, event.stages[0].start) for event in scene.events(e.ChainAssigned)]


@pytest.mark.parametrize(
    ("kind", "devices", "is_so"),
    [
        (H100, ["H100"], True),
        (A100, ["H100"], False),
        (A100, ["h100", "a100 80gb"], True),
        (A100, ["A100 40GB"], False),
        (L40S, ["L4"], False),
        (f"{A100}, a share of 2", ["A100"], True),
        ("CPU", ["cpu"], True),
        ("", ["H100"], False),
        ("", [], True),
    ],
)
def test_a_kind_is_named_word_by_word(kind: str, devices: list[str], is_so: bool) -> None:
    assert matches_device(kind, devices) is is_so


@pytest.mark.parametrize(
    ("kind", "gpu"),
    [
        (A100, A100),
        (f"{A100}, a share of 4", A100),
        (f"{A100}, several machines", A100),
        ("CPU", ""),
        ("GPU", ""),
        ("", ""),
    ],
)
def test_shares_and_gangs_are_of_the_kind_of_their_gpu(kind: str, gpu: str) -> None:
    assert gpu_of(kind) == gpu


def test_only_slots_of_the_kinds_that_a_study_names_train_it() -> None:
    scene = cluster(gpu0=A100, gpu1=H100, gpu2=A100)
    scene.submit(rates(0.1, 0.2), devices=["H100"])
    scene.run()
    assert scene.slots_of() == ["gpu1", "gpu1"]


def test_a_trial_stays_on_the_kind_on_which_it_began() -> None:
    """The other slot is free, and waits."""
    scene = cluster(gpu0=A100)
    scene.submit(BRANCHING)
    scene.scheduler.tick()
    scene.register("gpu1", kind=H100)
    scene.train()
    scene.run()
    assert [slot for slot, _ in assignments(scene)] == ["gpu0", "gpu0"]
    assert scene.study().is_final


def test_a_trial_may_change_between_the_kinds_that_its_study_names() -> None:
    scene = cluster(gpu0=A100)
    scene.submit(BRANCHING, devices=["A100", "H100"])
    scene.scheduler.tick()
    scene.register("gpu1", kind=H100)
    scene.train()
    with scene.records.write() as rows:
        rows.slots.retire("gpu0", "anna")
    scene.run()
    assert [slot for slot, _ in assignments(scene)] == ["gpu0", "gpu1"]


def test_a_trial_may_start_on_any_kind_and_stays_on_it() -> None:
    scene = cluster(gpu0=A100, gpu1=H100)
    scene.submit(rates(0.1, 0.2, 0.3, 0.4))
    scene.run()
    assert {slot for slot, _ in assignments(scene)} == {"gpu0", "gpu1"}


@pytest.mark.parametrize("kinds", [("CPU", "CPU"), ("", A100), ("GPU", "CPU")])
def test_where_the_kind_is_none_or_unknown_nothing_waits(kinds: tuple[str, str]) -> None:
    scene = cluster(gpu0=kinds[0])
    scene.submit(BRANCHING)
    scene.scheduler.tick()
    scene.register("gpu1", kind=kinds[1])
    scene.train()
    with scene.records.write() as rows:
        rows.slots.retire("gpu0", "anna")
    scene.run()
    assert scene.study().is_final


def test_a_later_study_of_several_kinds_resumes_from_trained_steps() -> None:
    """So a study whose kind of GPU has gone is cancelled, and submitted again, and nothing is lost."""
    scene = cluster(gpu0=A100)
    scene.submit(BRANCHING)
    scene.scheduler.tick()
    scene.train()
    with scene.records.write() as rows:
        rows.slots.retire("gpu0", "anna")
    scene.register("gpu1", kind=H100)
    scene.scheduler.tick()
    assert assignments(scene) == [("gpu0", 0)], "it waits for another A100"
    scene.submit(BRANCHING, "wider", devices=["A100", "H100"])
    scene.run()
    assert [slot for slot, _ in assignments(scene)] == ["gpu0", "gpu1"] and assignments(scene)[1][1] == 4
    assert scene.study("wider").is_final
