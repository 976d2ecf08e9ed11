"""What a study reads: the weights that its chains begin with, where those lie, and files that change meanwhile."""

from __future__ import annotations

import io
import os
import time
from collections.abc import Iterator
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import torch
from blocked_files import KINDS, block_opening, make, needs_leases
from cluster import Cluster
from stacks import Json
from studies import spec
from toys import switch

from app.domain import checkpoint_needs
from app.domain import commands as c
from app.domain import events as e
from app.domain.decide import decide
from app.domain.terms import StudyId
from app.events.database import Database
from app.input_fingerprints import look
from app.registry import TrainerSource
from app.service.views import documents
from app.storage.owned_store import find_orphans
from app.undeclared_inputs import record_undeclared

HERE = Path(__file__).parent
BRANCHES = spec(({"lr": switch(0.1, 0.2, 4)}, 8), ({"lr": switch(0.1, 0.3, 4)}, 8), trainer="beginner")
FORBIDDEN = "is in no folder that STAGETREE_STUDY_FILES names"
ALONE = {**BRANCHES, "merge": False, "trainer_args": {"tag": "alone"}}


@pytest.fixture
def database_url(sqlite_url: str) -> str:
    """What slots read is the same with each kind of database."""
    return sqlite_url


@pytest.fixture
def cluster(database: Database, tmp_path: Path) -> Iterator[Cluster]:
    made = Cluster(database, tmp_path, slots=2)
    for name in ("beginner", "stubborn"):
        made.sources[name] = TrainerSource(str(HERE / "beginner.py"), "1")
    yield made
    made.close()


def begin(cluster: Cluster, spec: Json, value: float = 100.0, *, image: bytes = b"", state: bool = False) -> StudyId:
    """A study that begins with a weight of that value, which is stored as the server would."""
    file = io.BytesIO()
    torch.save({"weight": torch.full((1,), value)}, file)
    image = image or file.getvalue()
    about = {"file": "/w.pt", "sha256": sha256(image).hexdigest(), "size": len(image), "state": state}
    study = cluster.submit(spec, about)
    cluster.store.write(f"{cluster.stream}/begin-{study}", [memoryview(image)])
    return study


def scores(cluster: Cluster, study: StudyId) -> list[Any]:
    return [metrics and metrics["score"] for _, metrics in cluster.values(study)]


def begins(cluster: Cluster) -> list[str]:
    return sorted(key for key in cluster.store.all_keys() if "/begin-" in key)


def submit_second(first: StudyId, cluster: Cluster) -> c.SubmitStudy:
    """The same study once more, from the weights that the first one brought."""
    study = cluster.study(first)
    return c.SubmitStudy(
        plan=cluster.plan.opened,  # type: ignore[arg-type]
        study=StudyId("second"),
        spec=study.spec.json,
        at=2.0,
        begin=study.begin,
        has_new_weights=False,
    )


@pytest.mark.slow
def test_every_chain_at_step_0_begins_with_the_weights_and_sharing_changes_nothing(cluster: Cluster) -> None:
    shared = scores(cluster, cluster.run(begin(cluster, BRANCHES)).id)
    alone = scores(cluster, cluster.run(begin(cluster, ALONE)).id)
    assert shared == alone
    assert all(100 < score < 110 for score in shared)
    other = scores(cluster, cluster.run(begin(cluster, BRANCHES, 200.0)).id)  # the same file with other content
    assert all(200 < score < 210 for score in other)
    plain = scores(cluster, cluster.run(cluster.submit(BRANCHES)).id)
    assert all(0 < score < 10 for score in plain)


@pytest.mark.slow
def test_a_model_that_is_lost_before_its_first_checkpoint_begins_again(cluster: Cluster) -> None:
    def fail() -> None:
        raise RuntimeError("an accident of ours")

    wanted = scores(cluster, cluster.run(begin(cluster, ALONE)).id)
    cluster.at("train", 2, fail)
    assert scores(cluster, cluster.run(begin(cluster, BRANCHES)).id) == wanted


@pytest.mark.slow
def test_all_of_a_state_has_momentum_and_generators(cluster: Cluster) -> None:
    """Trained on from the state of another study, it is the trial that was never broken off, values and all."""
    constant = {**spec(({}, 4), trainer="beginner"), "keep_best": 1}
    first = cluster.run(cluster.submit(constant))
    [before] = scores(cluster, first.id)
    kept = next(iter(checkpoint_needs.states_of(cluster.plan, first.trials[0]).values())).checkpoint
    image = b"".join(cluster.store.read(kept.key))
    longer = scores(cluster, cluster.run(cluster.submit(spec(({}, 7), trainer="beginner"))).id)
    on = spec(({}, 3), trainer="beginner")
    assert scores(cluster, cluster.run(begin(cluster, on, image=image, state=True)).id) == longer
    weights_alone = scores(cluster, cluster.run(begin(cluster, on, image=image)).id)
    assert weights_alone != longer and weights_alone[0] > before


def test_a_trainer_that_cannot_begin_fails_before_it_trains(cluster: Cluster) -> None:
    study = cluster.run(begin(cluster, {**BRANCHES, "trainer": "stubborn", "max_restarts": 0}))
    assert study.state == "failed" and study.executed == 0
    assert "trainer 'stubborn' has no method begin" in str(study.error)


def test_weights_that_are_gone_are_an_error_that_says_so(cluster: Cluster) -> None:
    study = begin(cluster, {**BRANCHES, "max_restarts": 0})
    cluster.store.delete(begins(cluster)[0])
    assert "the weights that it begins from: checkpoint" in str(cluster.run(study).error)


@pytest.mark.slow
def test_packs_begin_with_them_too(packing_cluster: Cluster) -> None:
    cluster = packing_cluster
    trials = [{"hp": {"lr": rate, "bs": 4}, "steps": 1} for rate in (0.01, 0.02)]
    named = {"name": "s", "trainer": "tiny", "metric": "val_loss", "mode": "min"}

    def losses(study: StudyId, packing: int) -> list[float]:
        if packing:
            cluster.state(e.PackingProfiled(device="the CPU", batch_seconds={"0": 1.0, "4": 1.0}, peak_bytes={}))
        return [metrics["val_loss"] for _, metrics in cluster.values(cluster.run(study).id)]

    spec = {**named, "tuner": {"kind": "trials", "trials": trials}}
    long = {**named, "tuner": {"kind": "trials", "trials": [{**trials[0], "steps": 8}]}}
    first = cluster.run(cluster.submit(long))
    kept = next(iter(checkpoint_needs.states_of(cluster.plan, first.trials[0]).values())).checkpoint
    image = b"".join(cluster.store.read(kept.key))
    plain = losses(cluster.submit(spec), 0)
    alone = losses(begin(cluster, spec, image=image), 0)
    packed = losses(begin(cluster, {**spec, "packing": 4}, image=image), 4)
    assert packed == pytest.approx(alone, rel=1e-4)
    assert alone != pytest.approx(plain, rel=1e-3)


# ------------------------------------------------------------------------------------------------------- kept weights


def test_the_weights_stay_while_a_study_needs_them_and_go_with_the_last(cluster: Cluster) -> None:
    first = begin(cluster, BRANCHES)
    cluster.run(first)
    about = cluster.study(first).begin
    cluster.give(submit_second(first, cluster))
    cluster.run(StudyId("second"))
    assert cluster.study(StudyId("second")).executed == 0
    cluster.give(c.DeleteStudy(study=first, at=1.0))
    tight = cluster.deleting(1)
    while not tight.look().is_done:
        pass
    cluster.clock.wait(1e6)
    assert len(begins(cluster)) == 1 and not list(find_orphans(cluster.records, cluster.plans, cluster.store, 0.0))
    cluster.give(c.DeleteStudy(study=StudyId("second"), at=1.0))
    chosen = cluster.deleting()
    chosen.survey()
    assert begins(cluster)[0] in {kept.key for kept in chosen.choose()[cluster.stream]}  # what `gc` says would go
    loose = cluster.deleting()
    while not loose.look().is_done:
        pass
    assert begins(cluster) == [] and [each.key for each in cluster.events(e.WeightsDropped)] == [about["key"]]  # type: ignore[index]
    assert cluster.plan.kept_bytes == 0 and loose.look().objects == 0


def test_a_study_cannot_count_on_weights_that_are_being_deleted(cluster: Cluster) -> None:
    from app.domain.terms import StateConflict

    first = begin(cluster, BRANCHES)
    cluster.run(first)
    cluster.give(c.DeleteStudy(study=first, at=1.0))
    with pytest.raises(StateConflict, match="submit it again"):
        list(decide(cluster.plan, submit_second(first, cluster)))


# ------------------------------------------------------------------------------------------------------------- inputs


def inexact_reasons(cluster: Cluster, study: StudyId) -> list[str]:
    found: list[str] = documents.study(cluster.plan, study, now=0.0)["not_exact"]
    return found


def replace(path: Path, text: str, at: int = 5) -> None:
    path.write_text(text)
    os.utime(path, (at, at))


def test_a_file_that_changes_after_the_submission_is_told_with_every_result(cluster: Cluster, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    replace(data, "one")
    study = cluster.submit(BRANCHES, inputs=[look(str(data))])
    replace(data, "two", 9)
    cluster.run(study)
    assert f"read {data}, which had changed since the study was submitted" in inexact_reasons(cluster, study)[0]
    trial = documents.trial(cluster.plan, cluster.study(study).trials[1])
    assert any("had changed" in each for each in trial["not_exact"])


def test_a_file_that_changes_while_a_chain_trains_is_told(cluster: Cluster, tmp_path: Path) -> None:
    """It was looked at when a chain began, and an answer was kept for 30 s."""
    data = tmp_path / "data.txt"
    replace(data, "one")
    study = cluster.submit(spec(({"lr": 0.1}, 6), trainer="beginner"), inputs=[look(str(data))])
    cluster.at("train", 3, lambda: replace(data, "two", 9))
    cluster.run(study)
    assert inexact_reasons(cluster, study) == [f"1 stage read {data}, which had changed since the study was submitted"]
    [lost] = cluster.events(e.ExactnessLost)
    assert lost.step == 1, "its earlier results are of that chain, too"


def test_a_file_that_was_only_touched_or_written_again_is_the_same(cluster: Cluster, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    replace(data, "one")
    study = cluster.submit(BRANCHES, inputs=[look(str(data))])
    replace(data, "one", 9)
    cluster.run(study)
    assert inexact_reasons(cluster, study) == []


@pytest.mark.parametrize("becomes", ["another", "missing", "copied anew"])
def test_a_file_that_a_trainer_was_seen_to_read_is_told_where_it_is_another(
    cluster: Cluster, tmp_path: Path, becomes: str
) -> None:
    data = tmp_path / "data.txt"
    replace(data, "one")
    study = cluster.submit(BRANCHES, inputs=record_undeclared([str(data)]))
    if becomes == "missing":
        data.unlink()
    else:
        replace(data, "two" if becomes == "another" else "one", 9)
    cluster.run(study)
    since = "which had changed since this trainer was first seen to read it"
    assert [each.split(f"{data}, ")[1] for each in inexact_reasons(cluster, study)] == (
        [since] if becomes == "another" else []
    )


def test_what_only_workers_see_is_recorded_by_them_and_compared(cluster: Cluster, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    replace(data, "one")
    study = cluster.submit(BRANCHES, inputs=[{"path": str(data)}])
    assert inexact_reasons(cluster, study) == [
        "its inputs are unchecked: the server does not see them, and no slot has trained for it yet"
    ]
    cluster.run(study)
    assert (
        inexact_reasons(cluster, study) == [] and cluster.study(study).inputs[0]["sha256"] == look(str(data))["sha256"]
    )
    assert len(cluster.events(e.InputsSeen)) >= 1
    replace(data, "two", 9)
    cluster.clock.wait(100.0)
    again = cluster.submit(spec(({"lr": 0.7}, 2), trainer="beginner"), inputs=[{"path": str(data)}])
    cluster.run(again)
    assert f"{data} was another file when study {study} read it" in inexact_reasons(cluster, again)[0]
    silent = cluster.submit(spec(({"lr": 0.7}, 2), trainer="beginner"), inputs=[{"path": str(data)}])
    cluster.run(silent)  # nothing is trained, and so no slot looks
    assert cluster.study(silent).executed == 0 and "its inputs are unchecked" in inexact_reasons(cluster, silent)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_no_kind_of_file_holds_a_slot(cluster: Cluster, tmp_path: Path, kind: str) -> None:
    """One study with `/dev/zero` took every slot for ever."""
    path = make(kind, tmp_path)
    study = cluster.submit(ALONE, inputs=[{"path": path}])
    assert cluster.run(study).state == "completed"
    [record] = cluster.study(study).inputs
    if "missing" in record:
        assert "cannot be read" in KINDS[kind]
    elif "unread" in record:
        assert record["unread"].startswith(f"{path} {KINDS[kind]}") or record["unread"] == f"{path} {FORBIDDEN}"
        assert inexact_reasons(cluster, study) == [f"its inputs are unchecked: {record['unread']}"]
    else:
        assert kind == "folder of all" and inexact_reasons(cluster, study) == []


def test_what_slots_may_not_read_is_not_said_to_be_there(cluster: Cluster, tmp_path: Path) -> None:
    """Existence, size and hash of any file were a study's for the asking."""
    paths = ["/etc/passwd", "/etc/none", str(tmp_path / "data.txt")]
    replace(tmp_path / "data.txt", "one")
    study = cluster.submit(BRANCHES, inputs=[{"path": path} for path in paths])
    cluster.run(study)
    *others, seen = cluster.study(study).inputs
    assert others == [{"path": path, "unread": f"{path} {FORBIDDEN}"} for path in paths[:2]]
    assert seen["sha256"] == look(paths[2])["sha256"]
    assert inexact_reasons(cluster, study) == [f"its inputs are unchecked: /etc/passwd {FORBIDDEN} (and 1 more)"]
    assert len(cluster.events(e.InputsSeen)) == 1, "later chains have no news"


def test_an_input_that_is_seen_is_compared_though_another_one_is_not(cluster: Cluster, tmp_path: Path) -> None:
    data = tmp_path / "data.txt"
    replace(data, "one")
    study = cluster.submit(BRANCHES, inputs=[{"path": "/etc/passwd"}, {"path": str(data)}])
    cluster.at("train", 5, lambda: replace(data, "two", 9))
    cluster.run(study)
    assert any(f"read {data}, which had changed since" in each for each in inexact_reasons(cluster, study))


@needs_leases
def test_an_input_that_does_not_answer_is_tried_again_and_fails_nothing(database: Database, tmp_path: Path) -> None:
    cluster, data = Cluster(database, tmp_path, reading=1.0), tmp_path / "data.txt"
    cluster.sources["beginner"] = TrainerSource(str(HERE / "beginner.py"), "1")
    replace(data, "one")
    study = cluster.submit(ALONE, inputs=[{"path": str(data)}])
    with block_opening(data):
        assert cluster.run(study).state == "completed"
    assert inexact_reasons(cluster, study) == [f"its inputs are unchecked: {data} was not read within 1 s"]
    longer = {**ALONE, "tuner": {**ALONE["tuner"], "trials": [{**ALONE["tuner"]["trials"][0], "steps": 12}]}}
    again = cluster.submit(longer, inputs=cluster.study(study).inputs)
    cluster.run(again)
    assert (
        cluster.study(again).inputs[0]["sha256"] == look(str(data))["sha256"] and inexact_reasons(cluster, again) == []
    )
    replace(data, "two", 9)
    with block_opening(data):
        last = cluster.submit(spec(({"lr": 0.7}, 2), trainer="beginner"), inputs=cluster.study(again).inputs)
        assert cluster.run(last).state == "completed"
    assert inexact_reasons(cluster, last)[0] == (f"1 stage had an unchecked input: {data} was not read within 1 s")
    cluster.close()


@needs_leases
@pytest.mark.parametrize("at", ["build", "train"])
def test_a_slot_that_must_end_waits_for_no_input(cluster: Cluster, tmp_path: Path, at: str) -> None:
    """The steps trained by then are recorded, and the results say that the input was not checked."""
    data, begun = tmp_path / "data.txt", time.monotonic()
    replace(data, "one")
    study = cluster.submit(ALONE, inputs=[{"path": str(data)} if at == "build" else look(str(data))])

    def retire() -> None:
        waiting.enter_context(block_opening(data))
        os.utime(data, (9, 9))
        cluster.retiring |= set(cluster.slots)

    with ExitStack() as waiting:
        cluster.at(at, 0 if at == "build" else 5, retire)
        cluster.round()
    assert not any(chain.owner for chain in cluster.live()), "other slots were to end before they began"
    assert time.monotonic() - begun < cluster.limits.reading / 2
    unchecked = "had unchecked inputs: the slot had to stop before it had read them"
    assert (unchecked in str(inexact_reasons(cluster, study))) == (at == "train")
    assert (cluster.study(study).executed > 0) == (at == "train")


def test_the_environment_is_recorded_once_on_each_kind_of_device(cluster: Cluster) -> None:
    cluster.run(cluster.submit(BRANCHES))
    cluster.run(cluster.submit(spec(({"lr": 0.9}, 2), trainer="beginner")))
    [seen] = cluster.events(e.EnvironmentSeen)
    assert seen.device == "the CPU" and seen.environment["packages"]["numpy"]
    assert seen.environment["torch"] == torch.__version__
    assert seen.environment["trainer"]["file"].endswith("beginner.py")
