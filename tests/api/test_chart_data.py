"""What pictures are drawn from: complete, small, and made once for each moment."""

from __future__ import annotations

import gzip
import json

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from app.api.services import ResponseCache
from app.domain.events import Evaluated
from app.service.views.importance import FEWEST, importance
from app.service.views.pictures import downsample, tree
from app.service.views.trial_order import columns
from tests.api.world import Workers
from tests.plans import METRIC, Story

PICTURES = ("tree", "rungs", "timeline", "history", "trials:columns", "importance")
points = st.lists(st.floats(-1e6, 1e6), max_size=300).map(lambda values: list(enumerate(values)))


@given(points, st.integers(4, 60))
def test_a_thinned_curve_keeps_its_ends_and_its_extremes(curve: list[tuple[int, float]], most: int) -> None:
    found = list(downsample(curve, most))
    assert len(found) <= most or found == curve
    assert found == sorted(set(found)) and set(found) <= set(curve)
    if curve:
        values = [value for _, value in curve]
        assert (found[0], found[-1]) == (curve[0], curve[-1])
        assert {min(values), max(values)} <= {value for _, value in found}


def test_the_tree_has_what_trials_share_once(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    tree = http.get(f"/studies/{tuned_study}/tree").json()
    nodes = tree["nodes"]
    assert nodes["parent"] == [-1, 0, 0] or nodes["parent"].count(-1) == 1
    assert (nodes["trials"][0], sum(nodes["trials"][1:])) == (2, 2 if len(nodes["trials"]) == 3 else 1)
    assert tree["trials"]["steps"] == [40, 40]
    assert nodes["values"][tree["trials"]["node"][0]][-1] == 0.5


def test_the_timeline_says_what_each_slot_did(http: TestClient, tuned_study: str, workers: Workers) -> None:
    chain = workers.assign(tuned_study, 0, members=("gpu1",))
    running = http.get(f"/studies/{tuned_study}/timeline").json()["spans"]
    assert (running["slot"], running["ended"], running["outcome"]) == (["gpu0"], [None], ["running"])
    assert running["members"] == [["gpu1"]]
    workers.finish(tuned_study, chain, {"accuracy": 0.5})
    workers.fail(tuned_study, workers.assign(tuned_study, 1, "gpu1"), "ValueError: no")
    spans = http.get(f"/studies/{tuned_study}/timeline").json()["spans"]
    assert spans["outcome"][-1] == "failed" and spans["slot"][-1] == "gpu1"
    assert set(spans["outcome"][:-1]) == {"done"} and None not in spans["ended"]


def test_history_tells_decisions_with_their_events(http: TestClient, tuned_study: str, workers: Workers) -> None:
    workers.finish(tuned_study, workers.assign(tuned_study, 0), {"accuracy": 0.5})
    history = http.get(f"/studies/{tuned_study}/history").json()
    decisions = history["decisions"]
    assert decisions["kind"][:2] == ["start", "start"] and decisions["trial"][:2] == [0, 1]
    for position, trial in zip(decisions["position"], decisions["trial"], strict=True):
        [event] = http.get(f"/studies/{tuned_study}/events", params={"after": position - 1, "limit": 1}).json()["items"]
        assert (event["position"], event["data"]["trial"]) == (position, trial)
    [best] = history["best"]
    assert (best["trial"], best["value"], best["slot_seconds"]) == (0, 0.5, pytest.approx(3.0))


def test_schedules_are_the_values_of_the_sequences(http: TestClient, tuned_study: str) -> None:
    lr, bs = http.get(f"/studies/{tuned_study}/trials/0/schedules", params={"points": 4}).json()["items"]
    assert (lr["name"], lr["steps"]) == ("lr", [0, 13, 26, 39])
    assert lr["values"] == pytest.approx([0.1, 0.1, 0.01, 0.01])
    assert bs["values"] == [64] * 4


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES)
def test_a_picture_is_sent_once_for_each_moment(
    http: TestClient, tuned_study: str, workers: Workers, picture: str
) -> None:
    path = f"/studies/{tuned_study}/{picture}"
    tag = http.get(path).headers["ETag"]
    again = http.get(path, headers={"If-None-Match": tag})
    assert (again.status_code, again.content) == (304, b"")
    workers.assign(tuned_study, 0)
    assert http.get(path, headers={"If-None-Match": tag}).status_code == 200


def test_an_answer_is_made_once() -> None:
    made: list[int] = []

    def make() -> list[int]:
        made.append(1)
        return made

    answers = ResponseCache()
    first = answers.get(("a",), 1, make)
    assert answers.get(("a",), 1, make) is first and json.loads(gzip.decompress(first.packed)) == [1]
    assert answers.get(("a",), 2, make) is not first and len(made) == 2


def test_cached_answers_are_bounded() -> None:
    answers = ResponseCache(most=2_000)
    first = answers.get((0,), 1, lambda: list(range(1000)))
    for number in range(1, 5):
        answers.get((number,), 1, lambda: list(range(1000)))
    assert answers.get((0,), 1, lambda: list(range(1000))) is not first


def test_ten_thousand_trials_of_twenty_hyper_parameters_are_less_than_a_megabyte() -> None:
    rows = [
        {"trial": number, "state": "completed", "value": number * 0.7123 % 1, "rung": number % 5, "rank": number}
        | {"steps": 4, "hp": {f"p{place}": round((number * (place + 3)) * 0.61803 % 1, 5) for place in range(20)}}
        for number in range(10_000)
    ]
    packed = ResponseCache().get(("columns",), 1, lambda: columns(rows)).packed
    assert len(packed) < 1_000_000


def test_importance_ranks_the_relevant_hyper_parameter_first() -> None:
    column = [number * 0.61803 % 1 for number in range(60)]
    others = {"hp.noise": [number * 0.7549 % 1 for number in range(60)], "hp.kind": ["a", "b", None] * 20}
    found = importance({"hp.lr": column, **others, "trial": list(range(60))}, column, "max")
    assert found["items"][0]["name"] == "hp.lr" and found["note"] is None
    assert sum(item["importance"] for item in found["items"]) == pytest.approx(1, abs=1e-4)
    intervals = [(*item["interval"], item["importance"]) for item in found["items"]]
    assert all(0 <= low <= share <= high <= 1 for low, high, share in intervals)


def test_importance_of_noise_has_a_wide_interval() -> None:
    """Noise had the same confidence as a parameter that mattered: 94 % for one of two that did nothing."""
    column = [number * 0.61803 % 1 for number in range(40)]
    noise = {
        "hp.a": [number * 0.7549 % 1 for number in range(40)],
        "hp.b": [number * 0.3247 % 1 for number in range(40)],
    }
    found = importance(noise, column, "max")
    assert all(item["interval"][1] - item["interval"][0] > 0.5 for item in found["items"])


def test_importance_of_many_trials_is_asked_of_some_of_every_rank(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand took five seconds, most of which Optuna copied them."""
    column = [number * 0.61803 % 1 for number in range(600)]
    columns = {"hp.lr": column, "hp.noise": [number * 0.7549 % 1 for number in range(600)]}
    whole = importance(columns, column, "max").to_json()
    monkeypatch.setattr("app.service.views.importance.MOST", 200)
    some = importance(columns, column, "max").to_json()
    assert some != whole and some["trials"] == whole["trials"] == 600
    assert some["items"][0]["importance"] == pytest.approx(whole["items"][0]["importance"], abs=0.1)


def test_importance_says_why_there_is_none() -> None:
    note = "Importance needs at least 30 trials with a result; "
    assert importance({"hp.lr": [0.1, 0.2]}, [1.0, None], "min")["note"] == note + "1 has one at the trial's end."
    assert importance({"hp.lr": [0.1, 0.2]}, [1.0, 2.0], "min", 3)["note"] == note + "2 have one at rung 3."
    assert "varies" in importance({"hp.lr": [0.1] * FEWEST}, [1.0] * FEWEST, "min")["note"]


def test_the_tree_has_the_means_of_repeats_at_the_nodes_of_the_first() -> None:
    story = Story()
    lr = {"family": "multistep", "init": 0.1, "milestones": [3], "gamma": 0.1}
    study = story.submit(({"lr": lr}, 5), repeats={"seeds": 2, "from": "branch"})
    trial = story.plan.studies[study].trials[0]
    for value, node in enumerate(story.plan.nodes_of(trial, 5)):
        story.happen(Evaluated(node=node.id, step=5, metrics={METRIC: float(value)}))
    drawn = tree(story.plan, story.plan.studies[study], 100)
    [first], [[second]] = drawn.trials.node, drawn.trials.repeats
    assert [drawn.nodes.parent[each] for each in (first, second)] == [0, 0]
    assert drawn.nodes.means[first] == [[5, 0.5, pytest.approx(0.5**0.5)]] and drawn.nodes.means[second] == []
    assert (drawn.nodes.values[first], drawn.nodes.values[second]) == ([0.0], [1.0])
