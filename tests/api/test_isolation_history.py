"""Answers about a study whose trials were struck, before and after that; and about slots that only compare."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient
from stacks import Json

from app.domain import events as e
from app.domain.terms import ChainId, ChainOutcome, StudyId, VerificationKind
from app.service.services import Services
from app.service.slot_use import lanes_at_once
from tests.api.test_past_states import answers, position
from tests.api.world import Workers

WHY = "1 of 2 leaves differ, the first is x"


@pytest.fixture
def earlier_answers(tuned_study: str, workers: Workers, http: TestClient) -> tuple[int, dict[str, Json]]:
    """A study with a result, and the answers of that time."""
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.9})
    return position(http, tuned_study), answers(http, tuned_study)


@pytest.fixture
def isolated_study(earlier_answers: object, tuned_study: str, workers: Workers) -> str:
    """The study after its trainer proved inexact: its tuner has begun anew, and one trial is trained."""
    workers.record(tuned_study, e.StudyIsolated(study=StudyId(tuned_study), reason=WHY, at=2.0))
    workers.tune(tuned_study)
    workers.finish(tuned_study, workers.assign(tuned_study, 1), {"accuracy": 0.4})
    return tuned_study


def proof(workers: Workers, study: str, kind: VerificationKind = VerificationKind.WHOLE) -> ChainId:
    """A slot trains the first trial once more, to compare."""
    plan, chain = workers.plan(study), ChainId(f"proof-{kind}")
    first, second = (plan.nodes[name] for name in plan.studies[StudyId(study)].trials[0].path)
    stages = (
        e.Stage(node=first.id, start=0, end=second.start, study=StudyId(study), evaluate=()),
        e.Stage(node=second.id, start=second.start, end=40, study=StudyId(study), evaluate=()),
    )
    workers.record(study, e.ChainAssigned(chain=chain, slot="gpu1", stages=stages, at=2.0, proof=kind))
    return chain


def test_a_verification_is_distinguished_from_training(http: TestClient, tuned_study: str, workers: Workers) -> None:
    """Once the history showed a verification as training, and counted its steps as the study's."""
    workers.tune(tuned_study)
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.9})
    before = http.get(f"/studies/{tuned_study}").json()["progress"]["steps"]
    proof(workers, tuned_study)
    workers.assign(tuned_study, 1)
    progress = http.get(f"/studies/{tuned_study}").json()["progress"]
    told = [(each["slot"], each["proof"], each["trials"]) for each in progress["running"]]
    assert told == [("gpu1", "whole", [0, 1]), ("gpu0", None, [1])]
    assert progress["steps"] == before


def end(workers: Workers, study: str, chain: ChainId) -> None:
    workers.record(study, e.ChainEnded(chain=chain, outcome=ChainOutcome.DONE, steps=40, seconds=6.0))


def test_what_was_struck_is_not_told_of_the_trials_that_bear_its_numbers(http: TestClient, isolated_study: str) -> None:
    found = http.get(f"/studies/{isolated_study}/history").json()
    assert found["decisions"]["kind"] == ["isolate", "start", "start"]
    assert found["decisions"]["reason"][0] == {"difference": WHY}
    assert [(each["trial"], each["value"]) for each in found["best"]] == [(1, 0.4)]
    assert found["best"][0]["slot_seconds"] > 1.5, "the slot time of a struck result counts"


def test_an_earlier_moment_is_shown_unchanged(
    http: TestClient, earlier_answers: tuple[int, dict[str, Json]], isolated_study: str
) -> None:
    at, then = earlier_answers
    assert answers(http, isolated_study, at) == then
    assert http.get(f"/studies/{isolated_study}/history", params={"at": at}).json()["best"][0]["value"] == 0.9
    now = position(http, isolated_study)
    assert answers(http, isolated_study, now) == answers(http, isolated_study)


def test_a_late_result_of_what_was_struck_is_no_result(
    http: TestClient, earlier_answers: object, tuned_study: str, workers: Workers
) -> None:
    under_way = workers.assign(tuned_study, 1)
    workers.record(tuned_study, e.StudyIsolated(study=StudyId(tuned_study), reason=WHY, at=2.0))
    workers.finish(tuned_study, under_way, {"accuracy": 0.99})
    assert http.get(f"/studies/{tuned_study}/history").json()["best"] == []


def test_a_study_says_which_of_its_hyper_parameters_a_script_did_not_read(
    http: TestClient, tuned_study: str, workers: Workers
) -> None:
    assert http.get(f"/studies/{tuned_study}").json()["unread"] == []
    chain, node = proof(workers, tuned_study, VerificationKind.CHECK), next(iter(workers.plan(tuned_study).nodes))
    tested = {"device": "cpu", "begin": 0, "step": 2, "unread": ["bs", "of another study"]}
    workers.record(tuned_study, e.ExactnessTested(chain=chain, proof=VerificationKind.CHECK, node=node, **tested))  # type: ignore[arg-type]
    assert http.get(f"/studies/{tuned_study}").json()["unread"] == ["bs"]


def test_a_slot_that_verifies_is_distinguished(http: TestClient, tuned_study: str, workers: Workers) -> None:
    training = workers.assign(tuned_study, 0)
    end(workers, tuned_study, proof(workers, tuned_study))
    workers.finish(tuned_study, training, {"accuracy": 0.9})
    found = http.get(f"/studies/{tuned_study}/timeline").json()
    spans, marks = found["spans"], found["marks"]
    assert sorted(spans["proof"], key=str) == [None, None, "whole"]
    number = spans["proof"].index("whole")
    assert (spans["start"][number], spans["end"][number], spans["outcome"][number]) == (0, 40, "done")
    assert number not in marks["span"], "what training measured and kept is not the proof's"
    best = http.get(f"/studies/{tuned_study}/history").json()["best"]
    assert best[0]["slot_seconds"] > 6.0, "proofs are paid for"


def test_what_is_trained_to_compare_is_no_lane_of_a_pack(use: Services, tuned_study: str, workers: Workers) -> None:
    chain = workers.assign(tuned_study, 0)
    workers.finish(tuned_study, chain, {"accuracy": 0.9})
    plan = workers.plan(tuned_study)
    with use.plan_histories.holding(workers.stream(tuned_study), plan.version) as found:
        alone = lanes_at_once(plan, found.spans)
    end(workers, tuned_study, proof(workers, tuned_study))
    plan = workers.plan(tuned_study)
    with use.plan_histories.holding(workers.stream(tuned_study), plan.version) as found:
        assert len(found.spans) == 3 and found.spans[-1].seconds == 6.0
        assert lanes_at_once(plan, found.spans) == alone


def test_comparisons_are_told_to_those_who_read_an_isolated_study(
    http: TestClient, earlier_answers: object, tuned_study: str, workers: Workers
) -> None:
    chain, node = proof(workers, tuned_study, VerificationKind.HANDOVER), next(iter(workers.plan(tuned_study).nodes))
    tested = {"device": "cpu", "begin": 10, "step": 20, "difference": WHY}
    workers.record(tuned_study, e.ExactnessTested(chain=chain, proof=VerificationKind.HANDOVER, node=node, **tested))  # type: ignore[arg-type]
    end(workers, tuned_study, chain)
    workers.record(tuned_study, e.StudyIsolated(study=StudyId(tuned_study), reason=WHY, at=2.0))
    told = [each["type"] for each in http.get(f"/studies/{tuned_study}/events").json()["items"]]
    assert "ExactnessTested" in told and "StudyIsolated" in told
