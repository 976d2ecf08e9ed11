"""The tools for agents about trials: why one was pruned, how two differ, and what a further one costs."""

from __future__ import annotations

from typing import Any

import pytest

from app.agents.trials import difference_text
from app.domain import commands as c
from app.domain.terms import StudyId
from stagetree.client import Client
from stagetree.models.studies import StudyAnswer
from stagetree.models.trials import TrialDetail
from tests.api.agent import Refusal, call
from tests.api.world import STUDY, Workers, study_file

ASHA = study_file(
    space={"lr": {"uniform": [0.01, 0.1]}, "bs": 64},
    tuner={"kind": "asha", "num_trials": 4, "min_steps": 10, "max_steps": 40, "reduction_factor": 2},
)


@pytest.fixture
def study(server: str, workers: Workers) -> str:
    """A study of two trials that part at step 20, both with a result."""
    found = str(call(server, "submit", spec=STUDY)["study"])
    workers.tune(found)
    for trial in range(2):
        workers.finish(found, workers.assign(found, trial), {"accuracy": 0.5 + trial / 4})
    return found


def test_a_trial_has_its_curve_and_its_decisions_with_their_events(server: str, workers: Workers) -> None:
    study = call(server, "submit", spec=ASHA)["study"]
    workers.tune(study)
    workers.finish(study, workers.assign(study, 0), {"accuracy": 0.5})
    reason = {"rank": 2, "of": 2, "cut": 1}
    stop = c.ApplyTunerActions(study=StudyId(study), actions=(c.Stop(trial=0, reason=reason),))
    workers.decide(study, stop)
    call(server, "note", trial=0, text="a dead end")
    answer = call(server, "trial", trial=0)
    assert answer["curve"] == "10: 0.5" and answer["cost"].startswith("trial 0: 10 of 10 steps trained")
    started, pruned = answer["decisions"]
    assert started.endswith("trial 0: start for 10 steps")
    assert pruned.endswith(": pruned after step 10: rank 2 of 2, the best one is promoted")
    with Client(server) as client:
        events = {event.position: event.type for event in client.events(study)}
    assert events[int(pruned.split()[1].strip(":"))] == "TrialStopped"
    assert answer["notes"][0].endswith(": a dead end")


def test_a_failed_trial_says_its_error(server: str, workers: Workers) -> None:
    study = call(server, "submit", spec=STUDY)["study"]
    workers.tune(study)
    for _ in range(3):
        workers.fail(study, workers.assign(study, 0), "Traceback ...\nValueError: lr is too high")
    assert call(server, "trial", trial=0)["failure"] == "ValueError: lr is too high"


def test_two_trials_are_compared_from_where_they_part(server: str, study: str) -> None:
    answer = call(server, "compare", trial=0, other=1)
    assert answer["parting"] == "at step 20: the 20 steps until there are one training"
    assert answer["only"]["1"] == "lr=0.1" and "bs" not in answer["only"]["0"]
    assert answer["difference"].startswith("trial 1 is better by 0.25 in accuracy: 0.5 at step 40 and 0.75 at step 40")
    assert "`repeats` in the study file would measure it" in answer["difference"]
    assert call(server, "compare", trial=0, other=0)["parting"].startswith("they do not part: all 40 steps")


def trial_detail(trial: int, value: float, deviation: float, begin: int = 0) -> TrialDetail:
    outcome = {"step": 40, "value": value, "deviation": deviation, "repeats": 4, "repeats_from": begin}
    fields: dict[str, Any] = {"trial": trial, "state": "completed", "steps": 40, "value": value, "last": outcome}
    return TrialDetail.from_json({**fields, "path": [f"n{trial}"], "starts": [0]})


@pytest.mark.parametrize(
    ("deviation", "begin", "verdict"),
    [
        (0.2, 0, "within noise: 1.4 standard errors of the difference"),
        (0.1, 0, "more than noise: 2.8 standard errors of the difference"),
        (0.0, 0, "more than noise: repeats that are all equal"),
        (0.1, 20, "unknown: their repeats share beginnings that differ"),
    ],
)
def test_a_difference_is_weighed_against_its_noise(deviation: float, begin: int, verdict: str) -> None:
    study = StudyAnswer.from_json({"study": "s", "state": "completed", "metric": "accuracy", "mode": "max"})
    assert verdict in difference_text(
        study, trial_detail(0, 0.5, deviation, begin), trial_detail(1, 0.7, deviation, begin)
    )


def test_a_branch_has_a_price_and_waits_for_its_token(server: str, study: str) -> None:
    wanted: dict[str, Any] = {"trial": 1, "at": 20, "steps": 50, "hp": {"lr": 0.02}}
    asked = call(server, "branch", **wanted)
    assert asked["price"].startswith("30 new steps of 50: 20 are shared")
    with Client(server) as client:
        assert len(list(client.trials(study))) == 2
        added = call(server, "branch", **wanted, confirm=asked["confirm"])
        assert added["added"] == f"trial 2 of {study}" and len(list(client.trials(study))) == 3


def test_a_token_confirms_one_request_at_one_price(server: str, study: str) -> None:
    wanted: dict[str, Any] = {"trial": 1, "at": 20, "steps": 50, "hp": {"lr": 0.02}}
    token = call(server, "branch", **wanted)["confirm"]
    other = call(server, "branch", **{**wanted, "steps": 60}, confirm=token)
    assert other["next"].startswith("The price or the request has changed") and "added" not in other
    with Client(server) as client:  # the same trial by another way: the price of the request is lower now
        client.branch_trial(study, wanted)
    again = call(server, "branch", **wanted, confirm=token)
    assert again["price"].startswith("0 new steps of 50") and "added" not in again


def test_a_trial_of_ones_own_is_enqueued_at_its_price(server: str, study: str) -> None:
    wanted: dict[str, Any] = {"hp": {"lr": 0.1, "bs": 64}, "steps": 45}
    asked = call(server, "enqueue", **wanted)
    assert asked["price"].startswith("5 new steps of 45: 40 are shared")
    assert call(server, "enqueue", **wanted, confirm=asked["confirm"])["added"] == f"trial 2 of {study}"


def test_a_configuration_for_the_tuner_is_priced_at_most(server: str) -> None:
    study = call(server, "submit", spec=ASHA)["study"]
    asked = call(server, "enqueue", hp={"lr": 0.05})
    assert asked["price"].startswith("at most, as the tuner may end it earlier: 40 new steps of 40")
    assert call(server, "enqueue", hp={"lr": 0.05}, confirm=asked["confirm"])["added"] == f"suggestion 0 of {study}"
    with Client(server) as client:
        assert client.price_suggestions(study, [{"lr": 0.06}]).new == 40
        assert [each.hp for each in client.suggestions(study)] == [{"lr": 0.05}]
    call(server, "submit", spec={**ASHA, "space": {"lr": {"uniform": [0, 1]}, "wd": {"uniform": [0, 1]}, "bs": 64}})
    assert "40 new steps of 40" in call(server, "enqueue", hp={"lr": 0.05})["price"]


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("trial", {"trial": 9}, "has no trial 9"),
        ("compare", {"trial": 0}, "other: is missing: the number of the other trial"),
        (
            "branch",
            {"trial": 0, "at": 20, "steps": 60, "hp": {}},
            "hp: must be an object from hyper-parameter to value",
        ),
        ("branch", {"trial": 0, "at": 50, "steps": 60, "hp": {"lr": 1}}, "at: must"),
        ("enqueue", {"hp": {"lr": 0.1}, "steps": 10}, "hp: must hold exactly bs, lr, got lr"),
        ("enqueue", {"hp": {"lr": 0.1}}, "the study file lists the trials of grid: add a trial of your own to it"),
    ],
)
def test_refusals_about_trials_are_those_of_the_api(
    server: str, study: str, name: str, arguments: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(Refusal) as refused:
        call(server, name, **arguments)
    assert sentence in str(refused.value)
