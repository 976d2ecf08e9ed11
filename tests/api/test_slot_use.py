"""What a study's result says of slots that shared a GPU, and of packs."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from fastapi.testclient import TestClient
from stacks import Json

from app.cli.preview import memory_text
from app.cli.result import packing_text, sharing_text
from app.cli.slots import estimate_error_text
from app.domain import events as e
from app.domain.events import WITHOUT_PACK
from app.domain.terms import ChainId, ChainOutcome, NodeId, StudyId
from app.service.services import Services
from app.service.views.progress import packing
from tests.api.world import Workers, study_file

Timed = tuple[float, e.Event]


def ran(
    study: str, node: NodeId, slot: str, steps: tuple[int, int], time: tuple[float, float], peak: int = 0
) -> list[Timed]:
    """The events at the beginning and the end of a stage."""
    chain, (begun_at, ended_at) = ChainId(f"{slot} at {time}"), time
    stage = e.Stage(node=node, start=steps[0], end=steps[1], study=StudyId(study))
    return [
        (begun_at, e.ChainAssigned(chain=chain, slot=slot, stages=(stage,), at=begun_at)),
        (ended_at, e.StageCompleted(chain=chain, index=0, seconds=ended_at - begun_at, peak_bytes=peak)),
        (ended_at, e.ChainEnded(chain=chain, outcome=ChainOutcome.DONE)),
    ]


def tell(use: Services, stream: str, told: Sequence[Timed]) -> None:
    for at, event in sorted(told, key=lambda each: each[0]):
        use.log.append(stream, [event], expected=None, at=at)


@pytest.fixture
def study_on_shared_gpu(tuned_study: str, use: Services, workers: Workers) -> str:
    """A study of which a beginning of 20 steps was trained alone in 10 s, and two ends side by side in 13 s."""
    root, branch = workers.plan(tuned_study).nodes
    told = ran(tuned_study, root, "gpu0a", (0, 20), (0.0, 10.0))
    told += ran(tuned_study, root, "gpu0a", (20, 40), (10.0, 23.0))
    told += ran(tuned_study, branch, "gpu0b", (20, 40), (10.0, 23.0))
    tell(use, workers.stream(tuned_study), told)
    return tuned_study


def sharing(http: TestClient, study: str) -> list[Json]:
    found: list[Json] = http.get(f"/studies/{study}").json().get("gpu_sharing", [])
    return found


def test_the_result_says_what_sharing_a_gpu_cost_and_gained(http: TestClient, study_on_shared_gpu: str) -> None:
    (found,) = sharing(http, study_on_shared_gpu)
    assert found == {"gpu": "gpu0", "slots": 2, "times_slower": 1.3, "gain": 1.54}
    assert sharing_text(found).endswith("takes 1.3 times as long, so together they train 1.54 times as fast as one")
    slower = sharing_text(found | {"times_slower": 2.5, "gain": 0.8})
    assert slower.endswith("which is slower: fewer --slots-per-gpu are better")


def test_a_slot_that_trained_another_plan_meanwhile_was_a_neighbour(
    http: TestClient, use: Services, study_on_shared_gpu: str, workers: Workers
) -> None:
    other = http.post("/studies", json=study_file(seed=7)).json()["study"]
    workers.tune(other)
    root = next(iter(workers.plan(other).nodes))
    tell(use, workers.stream(other), ran(other, root, "gpu0c", (0, 20), (0.0, 10.0)))
    assert sharing(http, study_on_shared_gpu) == []


def test_of_slots_that_share_nothing_nothing_is_said(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    assert http.get(f"/studies/{tuned_study}").json().get("gpu_sharing") is None


def test_slots_say_how_far_estimates_were_off_once_they_had_a_few(
    http: TestClient, tuned_study: str, use: Services, workers: Workers
) -> None:
    """Stages of five steps at 0.5 s a step, and at last one that takes three times as long."""
    root = next(iter(workers.plan(tuned_study).nodes))
    with use.records.write() as rows:
        for slot in ("gpu0", "gpu1"):
            rows.slots.take(slot, "worker", instead_of=None, device="cuda:0", host="here", pid=1)
    for number, seconds in enumerate((2.5, 2.5, 2.5, 2.5, 2.5)):
        begun_at = 10.0 * number
        stage = ran(tuned_study, root, "gpu0", (5 * number, 5 * number + 5), (begun_at, begun_at + seconds))
        assert http.get("/slots?estimates=true").json()["items"][0]["estimate_error"] is None
        tell(use, workers.stream(tuned_study), stage)
    tell(use, workers.stream(tuned_study), ran(tuned_study, root, "gpu1", (25, 30), (60.0, 67.5)))
    first, second = http.get("/slots?estimates=true").json()["items"]
    assert first["estimate_error"] == {"error": 0.0, "stages": 4}, "the first had no estimate"
    assert second["estimate_error"] is None and estimate_error_text(second) is None, "one stage is too few for an error"
    assert estimate_error_text(first) == "0% (4 stages)"
    assert estimate_error_text({"estimate_error": {"error": 1.5, "stages": 9}}) == "more than itself (9 stages)"
    assert http.get("/slots").json()["items"][0]["estimate_error"] is None, "estimates were not requested"


def test_a_preview_says_how_much_memory_such_batches_took(
    http: TestClient, tuned_study: str, use: Services, workers: Workers
) -> None:
    root = next(iter(workers.plan(tuned_study).nodes))
    assert http.post("/studies:preview", json=study_file()).json()["memory"] == []
    tell(use, workers.stream(tuned_study), ran(tuned_study, root, "gpu0", (0, 20), (0.0, 10.0), peak=3 * 2**30))
    (memory,) = http.post("/studies:preview", json=study_file()).json()["memory"]
    assert memory == {"gpu": "", "bytes": 3 * 2**30, "seen": 1, "sizes": 1}
    assert memory_text(memory) == "about 3 GiB, the most that stages here took with such batches"
    on_a_gpu = memory_text(memory | {"gpu": "NVIDIA H100", "sizes": 3})
    assert on_a_gpu == "about 3 GiB on NVIDIA H100, the most that stages here took with 1 of 3 sizes of such batches"
    assert http.post("/studies:preview", json=study_file(packing=2)).json()["memory"] == []


def test_the_result_says_how_full_packs_were(http: TestClient, use: Services, workers: Workers) -> None:
    """Of a pack of two, one was trained for 20 steps more: 60 steps in 40 passes."""
    study = http.post("/studies", json=study_file(packing=4)).json()["study"]
    workers.tune(study)
    root, branch = workers.plan(study).nodes
    measured = {"0": 1.0, "2": 0.75, "4": 2.0}
    profile = e.PackingProfiled(device="the CPU", batch_seconds=measured, peak_bytes={})
    told = [
        (0.0, profile),
        *ran(study, root, "cpu0", (0, 20), (0.0, 40.0)),
        *ran(study, branch, "cpu0", (0, 40), (0.0, 80.5)),
    ]
    tell(use, workers.stream(study), told)
    shown = http.get(f"/studies/{study}").json()["packing"]
    assert shown["at_once"] == 1.5
    (device,) = shown["devices"]
    assert (device["device"], device["lanes"], device["exact"]) == ("the CPU", 4, False)
    assert packing_text(device, 1.5) == (
        "1.5 of 4 lanes had a trial on the CPU: 0.75 times as fast as alone; with `packing: 2` it would be 2.0 times"
    )
    alone = device | {"better": {"packing": 0, "times_faster": 1.0}}
    assert packing_text(alone, 1.5).endswith(", which is slower: it would be faster without `packing`")
    (full,) = packing(workers.plan(study))["devices"]
    assert packing_text(full, None).startswith("4 of 4 lanes had a trial on the CPU: 2.0 times as fast as alone; with")


def test_what_was_trained_without_its_pack_fills_no_lane(http: TestClient, use: Services, workers: Workers) -> None:
    study = http.post("/studies", json=study_file(packing=4)).json()["study"]
    workers.tune(study)
    root, branch = workers.plan(study).nodes
    lost = e.ExactnessLost(node=branch, step=1, reason=WITHOUT_PACK)
    told = [*ran(study, root, "cpu0", (0, 20), (0.0, 40.0)), *ran(study, branch, "cpu0", (0, 40), (0.0, 80.5))]
    tell(use, workers.stream(study), [*told, (60.0, lost)])
    assert http.get(f"/studies/{study}").json()["packing"]["at_once"] == 1.0


def test_why_packs_are_as_wide_as_they_are_is_told_where_it_was_chosen(
    http: TestClient, use: Services, workers: Workers
) -> None:
    study = http.post("/studies", json=study_file(packing="auto")).json()["study"]
    assert "packing" not in http.get(f"/studies/{study}").json(), "no pack is profiled yet"
    profile = e.PackingProfiled(device="the CPU", batch_seconds={"0": 1.0, "2": 1.0}, peak_bytes={})
    tell(use, workers.stream(study), [(0.0, profile), (0.0, e.PackingChosen(width=2, reason="for a reason"))])
    shown = http.get(f"/studies/{study}").json()["packing"]
    assert (shown["width"], shown["chosen"], shown["devices"][0]["lanes"]) == (2, "for a reason", 2)
    kinds = [item["type"] for item in http.get(f"/studies/{study}/events").json()["items"]]
    assert kinds == ["StudySubmitted", "PackingProfiled", "PackingChosen"]


def test_of_a_study_for_which_no_packs_were_chosen_no_figures_are_told(
    http: TestClient, use: Services, workers: Workers
) -> None:
    study = http.post("/studies", json=study_file(packing="auto")).json()["study"]
    tell(use, workers.stream(study), [(0.0, e.PackingChosen(width=0, reason="for a reason"))])
    assert http.get(f"/studies/{study}").json()["packing"] == {
        "width": 0,
        "at_once": None,
        "devices": [],
        "chosen": "for a reason",
    }


@pytest.mark.parametrize("packing", ["wide", 65, -1, 2.5, None])
def test_a_width_that_is_none_is_refused_in_a_sentence(http: TestClient, packing: object) -> None:
    refused = http.post("/studies", json=study_file(packing=packing))
    assert refused.status_code == 422
    assert "packing" in refused.text and "must be true, auto or a whole number from 0 to 64" in refused.text
