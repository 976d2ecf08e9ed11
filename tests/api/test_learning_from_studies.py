"""`learn_from`: a study's sampler begins with what others found, read once, at its submission."""

from __future__ import annotations

from typing import Any

import pytest
from fastapi.testclient import TestClient

from app.domain.terms import StudyId
from app.search.tuners import TunerDriver
from app.simulation.what_if import what_if
from tests.api.world import Workers, study_file

SPACE: dict[str, Any] = {"lr": {"loguniform": [0.001, 1]}, "bs": [32, 64]}
NARROW: dict[str, Any] = {"lr": {"loguniform": [0.01, 1]}, "bs": [32, 64]}
ASHA: dict[str, Any] = {"kind": "asha", "num_trials": 6, "min_steps": 40, "max_steps": 40}
RATES = [0.002, 0.5, 0.6, 0.55, 0.7]
"""The rates that the first study tries; the first is outside of the narrow space."""


def submit(http: TestClient, **fields: Any) -> Any:
    fields = {"space": NARROW, "tuner": {**ASHA, "sampler": "trunks"}} | fields
    return http.post("/studies", json=study_file(**fields))


@pytest.fixture
def source(http: TestClient, workers: Workers) -> str:
    """A study whose best rate is 0.6."""
    suggestions = [{"lr": lr, "bs": 32} for lr in RATES]
    study = submit(http, space=SPACE, tuner=ASHA, suggestions=suggestions).json()["study"]
    for trial, lr in enumerate(RATES):
        workers.tune(study)
        workers.finish(study, workers.assign(study, trial), {"accuracy": 1 - abs(lr - 0.6)})
    return str(study)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", ["trunks", "tpe"])
def test_it_begins_with_what_another_found(http: TestClient, workers: Workers, source: str, sampler: str) -> None:
    """One of five trials is outside its space. Its own events hold the lessons, so the other study may be deleted."""
    fields = {"seed": 1, "learn_from": [source], "tuner": {**ASHA, "sampler": sampler}}
    said = f"its sampler begins with 4 of 5 trials of {source} with results; 1 left out: not in this study's space"
    assert http.post("/studies:preview", json=study_file(space=NARROW, **fields)).json()["advice"][-1] == said
    answer = submit(http, **fields).json()
    study, plan = answer["study"], workers.plan(answer["study"])
    [learned] = plan.studies[study].learned
    assert answer["learned"] == [said] and (learned.source, learned.left_out) == (source, {"space": 1})
    assert [each["trial"] for each in learned.results] == [1, 2, 3, 4]
    assert learned.results[1] == {"trial": 2, "sample": {"lr": 0.6, "bs": 0}, "values": [[40, 1.0]]}
    assert http.post(f"/studies/{source}:cancel").status_code == 200
    assert http.delete(f"/studies/{source}").status_code in (200, 204)
    foreseen = http.get(f"/studies/{study}/sampler").json()
    for trial in range(3):
        workers.tune(study)
        workers.finish(study, workers.assign(study, trial), {"accuracy": 0.5})
    trials = workers.plan(study).studies[study].trials
    assert foreseen["next"]["hp"] == trials[0].hp, "the view shows the next proposal"
    assert foreseen == http.get(f"/studies/{study}/sampler?at=2").json(), "also later, as of then"
    assert (foreseen["step"], foreseen["results"]) == (None, 4)
    if sampler == "trunks":
        assert all("price" in trial.reason for trial in trials), "the model proposes from the first trial on"
    assert http.post(f"/studies/{study}:replay").json()["identical"]
    _same_from_the_log(workers, study)


def _same_from_the_log(workers: Workers, study: str) -> None:
    """Another process, and a what-if that changes nothing, come to the same next proposal from the log alone."""
    driven = workers.plan(study).studies[StudyId(study)]
    proposals = []
    for _ in range(2):
        driver = TunerDriver(driven.spec.json)
        driver.observe(driven)
        proposals.append(driver.suggest(1))
    assert proposals[0] == proposals[1] and proposals[0]
    log = [recorded.event for recorded in workers.use.log.read(workers.stream(study))]
    assert what_if(log, StudyId(study), {})["trials"] == 3


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ({"learn_from": ["nothing-123456"]}, "must be the id of a study on this server"),
        ({"metric": "loss"}, "must be a study with results of loss, and"),
        ({"mode": "min"}, "must be a study whose mode is min, and"),
        ({"space": {"lr": {"uniform": [2, 3]}, "bs": 32}}, "must be a study with a trial in this one's space"),
        ({"space": {"lr": 0.6, "wd": [0, 1]}}, "must be a study of the same hyper-parameters, lr, wd, and"),
        (
            {"tuner": {**ASHA, "max_steps": 20, "min_steps": 20, "sampler": "tpe"}},
            "with results after at most 20 steps, and",
        ),
        (
            {"tuner": {**ASHA, "sampler": "random"}},
            "must be left out, or the tuner's sampler be one of tpe, gp, trunks",
        ),
    ],
)
def test_what_cannot_be_learnt_from(http: TestClient, source: str, fields: dict[str, Any], problem: str) -> None:
    answer = submit(http, **{"learn_from": [source], "seed": 1} | fields)
    assert answer.status_code == 422 and problem in answer.text, answer.text


def test_each_study_once(http: TestClient, source: str) -> None:
    answer = submit(http, learn_from=[source, source], seed=1)
    assert answer.status_code == 422 and f"must name each study once, got {source} twice or more" in answer.text
