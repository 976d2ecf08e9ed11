"""A study as of each of its events: every reading route answers with the answer of that time."""

from __future__ import annotations

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient
from stacks import Json

from app.domain import events as e
from app.domain.terms import StudyId
from app.events import Snapshots
from app.process.sandbox import SandboxLimits, run_in_sandbox
from app.service.services import Services
from tests.api.world import STUDY, Workers

PATHS = (
    "",
    "/trials",
    "/trials:columns",
    "/trials/1",
    "/plan",
    "/stage-tree",
    "/tree",
    "/rungs",
    "/timeline",
    "/history",
)
GOES_ON = ("wall_seconds", "seconds_left", "slots", "progress", "at")
"""The fields of an old answer that depend on the time of the request."""


def answers(http: TestClient, study: str, at: int | None = None) -> dict[str, Json]:
    found = {path: http.get(f"/studies/{study}{path}", params={} if at is None else {"at": at}) for path in PATHS}
    assert {answer.status_code for answer in found.values()} == {200}, found
    return {path: drop_time(answer.json()) for path, answer in found.items()}


def drop_time(answer: Json) -> Json:
    return {name: value for name, value in answer.items() if name not in GOES_ON}


def position(http: TestClient, study: str) -> int:
    return int(http.get(f"/studies/{study}/history").json()["position"])


@pytest.fixture
def answers_by_position(http: TestClient, tuned_study: str, workers: Workers) -> dict[int, dict[str, Json]]:
    """The answers at several moments of a study, by the position of the last event of each."""
    found = {position(http, tuned_study): answers(http, tuned_study)}
    chain = workers.assign(tuned_study, 0)
    found[position(http, tuned_study)] = answers(http, tuned_study)
    workers.finish(tuned_study, chain, {"accuracy": 0.5})
    found[position(http, tuned_study)] = answers(http, tuned_study)
    workers.fail(tuned_study, workers.assign(tuned_study, 1), "ValueError: no")
    workers.close(tuned_study)
    found[position(http, tuned_study)] = answers(http, tuned_study)
    return found


def test_an_earlier_moment_is_answered_as_it_was_then(
    http: TestClient, tuned_study: str, answers_by_position: dict[int, dict[str, Json]]
) -> None:
    for at in [*answers_by_position, *reversed(answers_by_position)]:  # forwards folds on, backwards begins anew
        assert answers(http, tuned_study, at) == answers_by_position[at]


def test_moments_are_looked_at_in_any_order(use: Services, tuned_study: str, workers: Workers) -> None:
    """Though fewer of them are kept than there are."""
    moments, stream, last = Snapshots(use.log, kept=2), workers.stream(tuned_study), workers.plan(tuned_study).version
    for at in [*range(last, 0, -1), *range(1, last + 1)]:
        with moments.holding(stream, at) as plan:
            assert plan.version == at


def test_results_of_trials_that_had_not_come_yet_are_none(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    then = http.get(f"/studies/{tuned_study}/history", params={"at": 1})
    assert (then.status_code, then.json()["best"]) == (200, [])


def test_events_of_then_are_those_up_to_then(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.assign(tuned_study, 0)
    every = http.get(f"/studies/{tuned_study}/events").json()["items"]
    for limit in (1, 2, 100):
        found, cursor = [], None
        while True:
            asked = {"at": 2, "limit": limit} | ({} if cursor is None else {"cursor": cursor})
            page = http.get(f"/studies/{tuned_study}/events", params=asked).json()
            found, cursor = [*found, *page["items"]], page["next_cursor"]
            if cursor is None:
                break
        assert found == [event for event in every if event["position"] <= 2]


def test_a_future_moment_is_refused(http: TestClient, tuned_study: str) -> None:
    for path in PATHS:
        answer = http.get(f"/studies/{tuned_study}{path}", params={"at": 10_000})
        assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "at")


def test_a_moment_counts_from_the_submission_of_the_study(http: TestClient, tuned_study: str, workers: Workers) -> None:
    second = http.post("/studies", json=STUDY).json()["study"]
    workers.tune(second)
    assert http.get(f"/studies/{second}", params={"at": 1}).json()["counts"]["waiting"] == 0
    assert http.get(f"/studies/{second}", params={"at": position(http, second)}).json()["counts"]["waiting"] == 2


@pytest.mark.slow
def test_what_if_is_worked_out_over_what_there_is(http: TestClient, tuned_study: str, workers: Workers) -> None:
    for trial in (0, 1):
        workers.finish(tuned_study, workers.assign(tuned_study, trial), {"accuracy": 0.5})
    workers.close(tuned_study)
    same = http.post(f"/studies/{tuned_study}:what-if", json={"changes": {"tuner.max_steps": 40}}).json()
    assert (same["trials"], same["requested"], same["saved"]) == (2, 80, 0)
    shorter = http.post(f"/studies/{tuned_study}:what-if", json={"changes": {"tuner.max_steps": 20}}).json()
    assert shorter["requested"] == 40 and shorter["saved"] > 0


def test_oversized_replays_are_refused_in_a_sentence(
    http: TestClient, tuned_study: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(run_in_sandbox.__kwdefaults__, "limits", SandboxLimits(seconds=0))
    too_much = "this takes more than 0 s of a processor, or 2 GiB of memory"
    changes = {"changes": {"tuner.max_steps": 20}}
    asked = [(f"/{tuned_study}:what-if", changes), (f"/{tuned_study}:replay", None), (":preview", STUDY)]
    for path, body in asked:
        said = http.post(f"/studies{path}", json=body)
        assert (said.status_code, said.json()["detail"]) == (422, f"{too_much}.")


def test_a_preview_that_takes_too_long_is_refused_in_a_sentence(
    http: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.service.previews.PREVIEW_SECONDS", -1)
    said = http.post("/studies:preview", json=STUDY)
    too_long = "the study must be smaller to be previewed: it takes too long, try fewer trials"
    assert (said.status_code, said.json()["detail"]) == (422, f"{too_long}.")


NOT_OF_A_MOMENT = {
    "/trials/{number}/log": "what a trial printed is a file that grows",
    "/trials/{number}/metrics": "what a trainer logged are rows, and no facts",
    "/trials/{number}/schedules": "what a hyper-parameter does was settled when the trial was added",
    "/environment": "what a plan is trained with is what the first slot of each kind of device saw",
    "/checkpoint": "the stored weights: earlier ones may be deleted",
    "/log": "it is the log itself, each event with its position",
    "/report": "it is a copy of the page as it is now, which has all moments",
}
"""What cannot be looked at as it was, and why."""


def test_every_view_of_a_study_exists_for_any_moment(app: FastAPI) -> None:
    about = "/api/v1/studies/{study}"
    paths = {path.removeprefix(about): methods for path, methods in app.openapi()["paths"].items() if about in path}
    reads = {path: methods["get"]["parameters"] for path, methods in paths.items() if "get" in methods}
    without = {path for path, parameters in reads.items() if "at" not in {each["name"] for each in parameters}}
    assert without == NOT_OF_A_MOMENT.keys()


WRONG = ({}, {"changes": {}}, {"changes": {"space.lr": 1}}, {"changes": {"tuner.max_steps": "x"}}, {"more": 1})


@pytest.mark.slow
@pytest.mark.parametrize("body", WRONG, ids=str)
def test_what_cannot_be_changed_is_refused(http: TestClient, tuned_study: str, body: Json) -> None:
    assert http.post(f"/studies/{tuned_study}:what-if", json=body).status_code == 422


def test_what_was_struck_since_is_no_part_of_an_earlier_moment(
    http: TestClient, use: Services, tuned_study: str, workers: Workers
) -> None:
    """A plan in memory was folded before the strike, and holds what counts no more."""
    second = http.post("/studies", json=STUDY).json()["study"]
    workers.tune(second)
    moments, stream, last = Snapshots(use.log), workers.stream(tuned_study), workers.plan(tuned_study).version
    with moments.holding(stream, last) as plan:
        assert StudyId(second) in plan.studies
    workers.record(tuned_study, e.StudyStruck(study=StudyId(second), reason="harm", at=1.0))
    with moments.holding(stream, last + 1) as plan:
        assert not plan.studies[StudyId(tuned_study)].is_final
        assert StudyId(second) not in plan.studies or not plan.studies[StudyId(second)].trials


def test_a_past_moment_is_computed_once(
    http: TestClient, tuned_study: str, workers: Workers, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Scrubbing visits each moment many times, and going back means folding the log again."""
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    forwards = [http.get(f"/studies/{tuned_study}/tree?at={at}").json() for at in (2, 3, 4)]
    monkeypatch.setattr(Snapshots, "holding", lambda *_: 1 / 0)
    assert [http.get(f"/studies/{tuned_study}/tree?at={at}").json() for at in (2, 3, 4)] == forwards
    with pytest.raises(ZeroDivisionError):
        http.get(f"/studies/{tuned_study}/tree?at=5")
