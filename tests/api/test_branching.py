"""A trial that parts from another one at a step: the explicit trial, its price, and every way to ask for it."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain.decide import decide
from app.domain.pricing import price
from app.domain.schedule import path
from app.domain.terms import Refused, StateConflict
from app.domain.trial_requests import branch_hp
from app.search.replay import replay
from app.simulation.simulator import Simulator
from stagetree.sequences import parse
from tests.api.world import Workers, study_file
from tests.tuners.worlds import STUDY, numbered_events, simulator, spec

TRUNK = {"family": "wsd", "peak": 0.1, "warmup": 3, "stable_until": 16, "decay": 4}
TAILS: list[Any] = [
    0.05,
    {"family": "linear", "init": 0.1, "slope": -0.01},
    {"family": "polynomial", "init": 0.1, "final": 0, "steps": {"ratio": 1}, "power": 1},
    {"family": "piecewise", "parts": [{"steps": 2, "sequence": 0.1}, {"sequence": 0.2}]},
]


def simulate_trunk(**fields: Any) -> Simulator:
    """A trunk of 20 steps, in a study that is over."""
    tuner = {"kind": "trials", "trials": [{"hp": {"lr": TRUNK, "bs": 4}, "steps": 20}]}
    world = simulator(spec(tuner, **fields), slots=1)
    world.run()
    return world


def branch(at: int, steps: int, hp: Any, trial: int = 0) -> c.BranchTrial:
    return c.BranchTrial(study=STUDY, trial=trial, at=at, hp=hp, steps=steps, time=100.0)


@given(at=st.integers(1, 20), more=st.integers(1, 15), tail=st.sampled_from(TAILS))
def test_a_branch_is_the_trial_that_writes_its_parts(at: int, more: int, tail: Any) -> None:
    """To the value and to the name of each node; it takes the steps behind the parting, and its price said so."""
    world = simulate_trunk()
    wanted = branch(at, at + more, {"lr": tail})
    trunk, hp = (
        world.plan.studies[STUDY].trials[0],
        branch_hp(world.plan.studies[STUDY].trials[0], at, {"lr": tail}, at + more),
    )
    before, after = (
        parse(TRUNK),
        parse(tail if not isinstance(tail, dict) or "power" not in tail else {**tail, "steps": more}),
    )
    values = [before.at(step) if step < at else after.at(step - at) for step in range(at + more)]
    assert [parse(hp["lr"]).at(step) for step in range(at + more)] == values
    assert hp["bs"] == trunk.hp["bs"]
    way = path(hp, at + more, "")
    cost = price(world.plan, world.plan.studies[STUDY], [way], at + more)
    executed = world.plan.studies[STUDY].executed
    world.give(wanted)
    study = world.plan.studies[STUDY]
    assert (study.state, list(way)) == ("running", study.trials[1].path)
    world.run()
    assert (study.state, study.trials[1].state) == ("completed", "completed")
    assert (
        study.executed - executed == cost.new + cost.again and cost.new <= more and cost.shared + cost.new == at + more
    )
    assert study.trials[1].reason == {"by": "user", "branch_of": 0, "at": at}
    assert replay(numbered_events(world.events), STUDY).identical


def test_branches_share_with_each_other_and_of_branches() -> None:
    world = simulate_trunk()
    world.give(branch(10, 15, {"lr": 0.05}))
    world.give(branch(10, 15, {"lr": 0.05}))
    world.give(branch(12, 15, {"lr": 0.01}, trial=1))
    world.run()
    study = world.plan.studies[STUDY]
    assert [trial.state for trial in study.trials] == ["completed"] * 4
    values = [parse(study.trials[3].hp["lr"]).at(step) for step in range(9, 14)]
    assert values == [0.1, 0.05, 0.05, 0.01, 0.01] and study.trials[1].path == study.trials[2].path


@pytest.mark.parametrize(
    ("at", "steps", "hp", "problem"),
    [
        (21, 30, {"lr": 1}, "at: must be a step from 1 to 20, which trial 0 is trained for, got 21"),
        (0, 30, {"lr": 1}, "at: must be a step from 1 to 20, which trial 0 is trained for, got 0"),
        (10, 10, {"lr": 1}, "steps: must be more than the 10 at which it parts, got 10"),
        (10, 12, {}, "hp: must name at least one hyper-parameter that changes"),
        (10, 12, {"lt": 1}, "hp.lt: must be one of bs, lr"),
        (10, 12, {"lr": {"family": "linear", "init": 1}}, "hp.lr.slope: "),
        (10, 12, {"lr": [1, 2]}, "hp.lr: "),
        (10, 12, {"lr": "abc"}, "hp.lr: trial 0 has 0.1 before step 10, got 'abc'"),
    ],
)
def test_invalid_branches_are_refused(at: int, steps: int, hp: Any, problem: str) -> None:
    with pytest.raises(Refused) as refused:
        simulate_trunk().give(branch(at, steps, hp))
    assert str(refused.value).startswith(problem)


def test_a_cancelled_trial_stays_cancelled() -> None:
    world = simulate_trunk()
    world.give(branch(5, 20, {"lr": 0.3}))
    world.give(c.CancelStudy(study=STUDY, at=1.0))
    with pytest.raises(StateConflict, match="was cancelled: nothing of it is trained any more"):
        decide(world.plan, branch(5, 9, {"lr": 0.4}))


@pytest.fixture
def done(http: TestClient, workers: Workers) -> str:
    """A study on the server whose one trial has come to its end."""
    trials = [{"hp": {"lr": 0.1, "bs": 64}, "steps": 20}]
    file = study_file(tuner={"kind": "trials", "trials": trials})
    del file["space"]
    study = str(http.post("/studies", json=file).json()["study"])
    workers.tune(study)
    workers.finish(study, workers.assign(study, 0), {"accuracy": 0.5})
    return study


def test_over_rest_the_price_comes_first(http: TestClient, done: str) -> None:
    body = {"trial": 0, "at": 10, "hp": {"lr": 0.01}, "steps": 15}
    said = http.post(f"/studies/{done}/trials:branch", json=body, params={"preview": True})
    assert (said.status_code, said.json()) == (200, {"steps": 15, "shared": 10, "new": 5, "again": 10})
    assert len(http.get(f"/studies/{done}/trials").json()["items"]) == 1
    made = http.post(f"/studies/{done}/trials:branch", json=body)
    assert made.status_code == 201 and made.json()["new"] == 5
    assert made.json()["trial"]["reason"] == {"by": "user", "branch_of": 0, "at": 10}
    again = http.post(f"/studies/{done}/trials:branch", json=body, params={"preview": True}).json()
    assert (again["shared"], again["new"]) == (15, 0), "an equal branch is requested already"


def test_a_body_that_is_wrong(http: TestClient, done: str) -> None:
    said = http.post(f"/studies/{done}/trials:branch", json={"trial": -1, "at": 1, "hp": 3, "steps": 2, "to": 1})
    assert said.status_code == 422
    assert {each["field"] for each in said.json()["errors"]} == {"trial", "hp", "to"}


def test_an_average_that_the_trainer_cannot_take_is_refused_at_the_request(http: TestClient) -> None:
    study = http.post("/studies", json={**study_file(), "trainer": "letters"}).json()["study"]
    for preview in (True, False):
        said = http.post(f"/studies/{study}/trials:average", json={"trials": [0, 1]}, params={"preview": preview})
        assert said.status_code == 422 and "trainer 'letters' has no method `average(self, states)`" in said.text


def test_averages_over_rest(http: TestClient, done: str) -> None:
    """First its price, then the trial with its origins; a wrong body is refused with its fields."""
    made = http.post(f"/studies/{done}/trials:branch", json={"trial": 0, "at": 10, "hp": {"lr": 0.01}, "steps": 15})
    assert made.status_code == 201
    body = {"trials": [0, 1], "weights": [2, 1], "steps": 25}
    said = http.post(f"/studies/{done}/trials:average", json=body, params={"preview": True})
    assert (said.status_code, said.json()) == (200, {"steps": 25, "shared": 20, "new": 5, "again": 10})
    assert len(http.get(f"/studies/{done}/trials").json()["items"]) == 2
    answer = http.post(f"/studies/{done}/trials:average", json=body)
    assert answer.status_code == 201, answer.text
    trial = answer.json()["trial"]
    assert trial["average_of"] == [
        {"trial": 0, "step": 20, "weight": 2.0, "value": 0.5},
        {"trial": 1, "step": 15, "weight": 1.0, "value": None},
    ]
    assert (trial["asked"], trial["reason"]["by"]) == ([20, 25], "user")
    plan = http.get(f"/studies/{done}/plan").json()["nodes"]
    assert {node["parent"] for node in plan if node["id"] in trial["path"]} == {None, trial["path"][0]}
    wrong = http.post(f"/studies/{done}/trials:average", json={"best": 0, "trials": [-1], "of": 3})
    assert wrong.status_code == 422
    assert {each["field"] for each in wrong.json()["errors"]} == {"best", "trials[0]", "of"}
    assert http.get(f"/studies/{done}/stage-tree").status_code == 200
