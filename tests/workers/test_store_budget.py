"""The store stays under its budget while a study runs, and later requests find their states, or train them again."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster
from studies import BRANCHES, spec

from app.domain import checkpoint_needs, results
from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId
from app.events.database import Database
from app.storage.owned_store import find_orphans
from app.workers.scheduler.retention import Retention
from app.workers.slot.checkpoint_store import CheckpointStore

SIZE = 18_500
"""Bytes of a state of the toy, about."""
ASHA = {"kind": "asha", "num_trials": 12, "min_steps": 1, "max_steps": 9, "reduction_factor": 3, "sampling_seed": 1}
SPACE = {"lr": {"loguniform": [1e-3, 1.0]}}


def asha(**fields: Any) -> dict[str, Any]:
    study = {"name": "asha", "trainer": "toy", "metric": "score", "mode": "max"}
    return {**study, "space": SPACE, "tuner": ASHA, **fields}


def stored_files(cluster: Cluster) -> set[str]:
    root = cluster.folder / "checkpoints"
    return {str(path.relative_to(root)) for path in root.rglob("*.safetensors")}


def bytes_of(cluster: Cluster) -> int:
    return sum((cluster.folder / "checkpoints" / key).stat().st_size for key in stored_files(cluster))


def run(cluster: Cluster, study: StudyId, deleting: Retention) -> list[int]:
    """Rounds until the study is over; how much was stored after each."""
    sizes = []
    for _ in range(200):
        cluster.round()
        while not deleting.look().is_done:
            pass
        sizes.append(bytes_of(cluster))
        if cluster.study(study).is_final:
            return sizes
    raise AssertionError("the study does not come to an end")


@pytest.mark.slow
def test_the_store_stays_under_the_budget_and_no_result_is_another(database: Database, tmp_path: Path) -> None:
    budget = 6 * SIZE
    free = Cluster(database, tmp_path / "free", slots=2)
    study = free.submit(asha(trainer_args={"tag": "free"}))
    free.run(study)
    wanted, without = free.values(study), bytes_of(free)
    free.close()
    cluster = Cluster(database, tmp_path / "budget", slots=2)
    study = cluster.submit(asha(keep_best=2))
    sizes = run(cluster, study, cluster.deleting(budget))
    assert cluster.values(study) == wanted
    assert max(sizes) <= budget < without / 2
    for trial, result in results.rank_trials(cluster.plan, cluster.study(study))[:2]:
        kept = checkpoint_needs.states_of(cluster.plan, trial)[result.step]
        state = CheckpointStore(cluster.store).read(kept.key, kept.checkpoint.sha256)
        assert state.size == kept.checkpoint.size
        state.close()
    assert stored_files(cluster) == {kept.key for kept in checkpoint_needs.checkpoints(cluster.plan)}
    cluster.close()


@pytest.mark.slow
def test_slots_wait_until_there_is_room_for_what_they_write(database: Database, tmp_path: Path) -> None:
    """Also where checkpoints are deleted so late that a slot waits for it."""
    budget, cluster = 10 * SIZE, Cluster(database, tmp_path, slots=2)
    deleting = cluster.retention = cluster.deleting(budget)
    study, waited = cluster.submit(asha()), 0
    for number in range(200):
        cluster.round()
        assert bytes_of(cluster) <= budget
        if deleting.has_waiting_slots or number < 2:  # the size of a state is unknown before
            waited += deleting.has_waiting_slots
            while not deleting.look().is_done:
                pass
        if cluster.study(study).is_final:
            break
    assert cluster.study(study).is_final and waited
    cluster.close()


def test_no_slot_waits_when_no_state_may_be_deleted(cluster: Cluster) -> None:
    deleting = cluster.retention = cluster.deleting(budget=1)
    cluster.run(cluster.submit(spec(({}, 4), keep_best=1)))
    while not deleting.look().is_done:
        pass
    assert deleting.chain_quota({}, 0, 2) == 2
    assert not deleting.has_waiting_slots


@pytest.mark.slow
def test_deleted_states_are_retrained_on_request(cluster: Cluster) -> None:
    whole = cluster.submit(spec(({}, 8), ({"lr": 0.2}, 8), trainer_args={"tag": "calm"}))
    cluster.run(whole)
    wanted = cluster.values(whole)
    cluster.run(cluster.submit(spec(({}, 4), ({"lr": 0.2}, 4), keep_best=0)))
    cluster.run(cluster.submit(spec(({}, 2), keep_best=0)))
    deleting = cluster.deleting(budget=1)
    while deleting.look().objects:
        pass
    assert len(stored_files(cluster)) == 1  # that of the best of the first study
    longer = cluster.submit(spec(({}, 8), ({"lr": 0.2}, 8), keep_best=0))
    cluster.run(longer)
    assert cluster.study(longer).executed == 16  # no state was left to resume from
    assert cluster.values(longer) == wanted


def test_a_crash_between_the_two_steps_is_made_up_for(cluster: Cluster) -> None:
    cluster.run(cluster.submit(spec(({}, 4), keep_best=0)))
    [kept] = checkpoint_needs.checkpoints(cluster.plan)
    cluster.give(c.ReleaseCheckpoints(checkpoints=(kept,), reason="budget"))
    assert stored_files(cluster)
    freed = cluster.deleting(budget=None).look()
    assert (freed.objects, freed.is_done) == (1, True)
    assert not stored_files(cluster) and not cluster.plan.released
    assert [event.reason for event in cluster.events(e.CheckpointDropped)] == ["deleted"]


def test_a_deleted_study_takes_its_own_with_it_and_leaves_the_others_theirs(cluster: Cluster) -> None:
    gone = cluster.submit(spec(({}, 4), ({"lr": 0.2}, 4)))
    cluster.run(gone)
    stays = cluster.submit(spec(({}, 4), ({"lr": 0.3}, 4)))
    cluster.run(stays)
    values = cluster.values(stays)
    cluster.give(c.DeleteStudy(study=gone, at=1.0))
    assert cluster.deleting(budget=None).look().objects == 1
    assert cluster.values(stays) == values
    assert stored_files(cluster) == {kept.key for kept in checkpoint_needs.checkpoints(cluster.plan)}
    with cluster.records.read() as rows:
        assert rows.studies.find(gone) is None and rows.studies.find(stays) is not None


@pytest.mark.slow
@pytest.mark.parametrize("merge", [True, False])
def test_states_kept_on_purpose_survive_the_end_any_budget_and_gc_and_others_do_not(
    cluster: Cluster, merge: bool
) -> None:
    study = cluster.submit({**BRANCHES, "merge": merge, "keep_at": [3], "keep_every": 6, "keep_best": 0})
    deleting = cluster.deleting(budget=1)
    run(cluster, study, deleting)
    trials = cluster.study(study).trials
    assert [sorted(checkpoint_needs.states_of(cluster.plan, trial)) for trial in trials] == [[3, 6]] * 2
    there = {kept.key for kept in checkpoint_needs.checkpoints(cluster.plan)}
    assert there == stored_files(cluster) and len(there) == (3 if merge else 4)
    stray = cluster.folder / "checkpoints" / cluster.stream / "stray.safetensors"
    stray.write_bytes(b"of a worker that was killed")
    os.utime(stray, (0, 0))
    orphans = [each.key for each in find_orphans(cluster.records, cluster.plans, cluster.store, age=0.0)]
    assert orphans == [f"{cluster.stream}/stray.safetensors"]
    stray.unlink()
    cluster.give(c.DeleteStudy(study=study, at=cluster.clock.now()))
    while not deleting.look().is_done:
        pass
    assert not stored_files(cluster)
