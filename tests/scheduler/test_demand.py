"""How many more slots would have work, and which have none: what autoscalers go by."""

from __future__ import annotations

import pytest
from scenes import ONE, RANDOM, Scene
from stacks import Json

from app.domain import commands as c
from app.domain.terms import StudyId
from app.events.database import Database
from app.events.memory import MemoryRecords
from app.events.records import Records
from app.events.sql_log import SqlRecords


def grid(*rates: float, steps: int = 4) -> Json:
    return {"kind": "trials", "trials": [{"hp": {"lr": rate}, "steps": steps} for rate in rates]}


def demand(scene: Scene) -> tuple[int, int, list[str]]:
    scene.scheduler.tick()
    said = scene.scheduler.demand()
    return said["busy"], said["more"], said["idle"]


PARTING = {
    "kind": "trials",
    "trials": [
        {"hp": {"lr": {"family": "values", "milestones": [2], "values": [0.1, later]}}, "steps": 4}
        for later in (0.2, 0.3, 0.4)
    ],
}


@pytest.mark.parametrize(
    ("slots", "tuners", "fields", "wanted"),
    [
        pytest.param(2, [], {}, (0, 0, ["gpu0", "gpu1"]), id="without work every slot may go"),
        pytest.param(2, [grid(0.1, 0.2, 0.3, 0.4, 0.5)], {}, (2, 3, []), id="a slot for each path"),
        pytest.param(0, [grid(0.1, 0.2, 0.3)], {}, (0, 3, []), id="a cluster grows from nothing"),
        pytest.param(0, [PARTING], {}, (0, 1, []), id="one slot for a shared beginning"),
        pytest.param(1, [grid(0.1, 0.2, 0.3, 0.4)], {"max_slots": 2}, (1, 1, []), id="what a study may have"),
        pytest.param(0, [grid(0.1, 0.2), grid(0.2, 0.3)], {}, (0, 3, []), id="a path of two studies once"),
        pytest.param(4, [RANDOM | {"num_trials": 3}], {}, (3, 0, ["gpu3"]), id="a tuner that has no more"),
        pytest.param(0, [grid(0.1, 0.2)], {"ranks": 4, "shards": 4}, (0, 8, []), id="paths of several slots"),
    ],
)
def test_so_many_more_slots_would_have_work(
    slots: int, tuners: list[Json], fields: Json, wanted: tuple[int, int, list[str]]
) -> None:
    scene = Scene(slots=slots)
    for number, tuner in enumerate(tuners):
        scene.submit(tuner, f"study {number}", **fields)
    assert demand(scene) == wanted


def test_a_study_that_is_paused_wants_nothing() -> None:
    scene = Scene(slots=1)
    scene.submit(ONE)
    scene.give(c.PauseStudy(study=StudyId("study")))
    assert demand(scene) == (0, 0, ["gpu0"])


def test_a_tuner_that_decides_trial_by_trial_would_have_one_more() -> None:
    scene = Scene(slots=2)
    asha = {"kind": "asha", "num_trials": 20, "max_steps": 9, "min_steps": 1, "sampling_seed": 1}
    scene.submit(asha)
    assert demand(scene) == (2, 1, [])
    scene.register("gpu2")
    assert demand(scene) == (3, 1, [])


def test_work_is_wanted_by_kind() -> None:
    """What a study names first, or where a trial began; the rest is for any kind."""
    scene = Scene(slots=0)
    scene.register("gpu0", kind="NVIDIA A100-SXM4-80GB")
    scene.submit(grid(0.1), "begun", "one", devices=["A100"])
    scene.scheduler.tick()
    scene.submit(grid(0.2, 0.3), "waiting", "two", devices=["H100", "A100"])
    scene.submit(grid(0.4), "any", "three")
    assert demand(scene) == (1, 3, [])
    said = scene.scheduler.demand()
    assert said["busy_by_kind"] == {"NVIDIA A100-SXM4-80GB": 1}
    assert said["more_by_kind"] == {"H100": 2, "": 1}


def test_a_trial_that_has_begun_wants_the_kind_on_which_it_did() -> None:
    scene = Scene(slots=0)
    scene.register("gpu0", kind="NVIDIA A100-SXM4-80GB")
    scene.submit(PARTING)
    scene.scheduler.tick()
    scene.train()
    assert demand(scene) == (1, 1, [])
    assert scene.scheduler.demand()["more_by_kind"] == {"NVIDIA A100-SXM4-80GB": 1}


def test_where_slots_wait_for_room_in_the_store_more_of_them_would_too() -> None:
    scene = Scene(slots=1, chain_quota=lambda plans, live, wanted: 0)
    scene.submit(grid(0.1, 0.2))
    busy, more, _ = demand(scene)
    assert (busy, more) == (0, 0)


def test_the_last_scheduler_to_tick_says_what_counts(database: Database) -> None:
    at = [0.0]
    database.clock = lambda: at[0]  # its own counts milliseconds, and two ticks may come in one
    for records in [SqlRecords(database), MemoryRecords(lambda: at[0])]:
        _check_rows(records, at)


def _check_rows(records: Records, at: list[float]) -> None:
    with records.write() as rows:
        assert rows.schedulers.last_report() == (None, {})
        rows.schedulers.record_tick("one", "here", 1, {"busy": 1, "more": 2, "idle": []})
    at[0] += 1.0
    with records.write() as rows:
        rows.schedulers.record_tick(
            "other",
            "here",
            2,
            {"busy": 1, "more": 0, "idle": ["gpu1"]},
            held_up={"a": "waits"},
            memory_bytes=2**33,
        )
    with records.read() as rows:
        assert rows.schedulers.last_report() == ({"busy": 1, "more": 0, "idle": ["gpu1"]}, {"a": "waits"})
        assert rows.schedulers.memory(60.0) == {"here-2": 2**33}
        assert rows.schedulers.memory(0.0) == {}, "it may be gone"
