"""A store without a server answers what a server on it answers, field by field."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from random import Random
from typing import Any

import httpx
import pytest

from app.cli.service import Documents
from app.cli.store import Store
from app.domain.search_plan import Trial
from app.domain.terms import StudyId, TrialState, Unknown
from app.events.database import Database
from app.service.html_report import answers as answers_of_report
from app.service.services import Services
from stagetree.client import Client
from tests.api.world import MakeApp, Workers, serving, study_file

Pair = tuple[Documents, Store]


@pytest.fixture
def pair(make_app: MakeApp, tmp_path: Path) -> Iterator[Pair]:
    """A server, and its store: with a study that is over, one under way, and one that failed."""
    url = f"sqlite:///{tmp_path / 'stagetree.db'}"
    database = Database(url)
    database.create()
    database.dispose()
    app = make_app(url)
    workers = Workers(app.state.services)
    with serving(app) as address, Client(address) as client, Store(tmp_path) as store:
        done, broken, running = (str(client.submit(study_file(seed=seed))["study"]) for seed in range(3))
        for study in (done, broken, running):
            workers.tune(study)
        for trial in range(2):
            workers.finish(done, workers.assign(done, trial), {"accuracy": 0.5 + trial})
        workers.close(done)
        workers.fail(broken, workers.assign(broken, 1), "Traceback ...\nValueError: \x1b[31mno")
        workers.beat(workers.assign(running, 0, "gpu1"), 0, 7)
        yield Documents(client), store


def test_both_list_the_studies_in_a_state_alone(pair: Pair) -> None:
    server, store = pair
    running = [each for each in store.studies() if each["state"] == "running"]
    assert 0 < len(running) < len(list(store.studies()))
    assert list(store.studies(state=("running",))) == list(server.studies(state=("running",))) == running


def answers(face: Documents | Store) -> dict[str, Any]:
    """All that can be read."""
    found: dict[str, Any] = {"studies": list(face.studies()), "slots": face.slots()}
    for listed in found["studies"]:
        study = listed["study"]
        document = face.study(study)
        if document["finished_at"] is None:
            document.pop("wall_seconds")  # time passes between the two
        found[study] = {
            "study": document,
            "short": face.study(study, trials=False).keys(),
            "trials": list(face.trials(study, limit=1)),
            "each": [face.trial(study, trial["trial"]) for trial in document["trials"]],
            "events": list(face.events(study, limit=3)),
            "later": list(face.events(study, after=5)),
            "plan": face.plan(study),
            "stage_tree": face.stage_tree(study),
            "replay": face.replay(study),
            "log": face.log(study),
        }
    return found


@pytest.mark.slow
def test_a_store_and_a_server_on_it_give_equal_documents(pair: Pair) -> None:
    client, store = pair
    assert len(answers(store)) == 5
    assert answers(store) == answers(client)


TUNERS: list[dict[str, Any]] = [
    {"kind": "asha", "num_trials": 9, "min_steps": 2, "max_steps": 18, "reduction_factor": 3},
    {"kind": "pbt", "population_size": 3, "ready_steps": 4, "max_steps": 12},
    {"kind": "median", "num_trials": 6, "max_steps": 12, "interval": 4},
]


def play(workers: Workers, study: str, chance: Random) -> None:
    """Tuner and slots take turns until the study is over; results are by chance."""
    workers.tune(study)
    while waiting := [each.number for each in trials_of(workers, study) if each.state == TrialState.ACTIVE]:
        workers.finish(study, workers.assign(study, waiting[0]), {"accuracy": chance.random()})
        workers.tune(study)
    workers.close(study)


def trials_of(workers: Workers, study: str) -> Sequence[Trial]:
    return workers.plan(study).studies[StudyId(study)].trials


@pytest.mark.parametrize("tuner", TUNERS, ids=lambda tuner: str(tuner["kind"]))
def test_every_face_tells_the_numbers_of_the_log(tuner: dict[str, Any], make_app: MakeApp, tmp_path: Path) -> None:
    """REST, SDK, command line and saved report of a played study agree, with each other and with a plain count."""
    url = f"sqlite:///{tmp_path / 'stagetree.db'}"
    database = Database(url)
    database.create()
    database.dispose()
    app = make_app(url)
    use: Services = app.state.services
    space = {"lr": {"choice": [0.1, 0.2, 0.4]}, "wd": {"uniform": [0.0, 0.1]}}
    with serving(app) as address, Client(address) as client, Store(tmp_path) as store:
        study = str(client.submit(study_file(space=space, tuner=tuner))["study"])
        play(Workers(use), study, Random(str(tuner)))
        shown, trials = client.study(study), list(client.trials(study))
        assert shown.to_json() == store.study(study)
        assert [trial.to_json() for trial in trials] == list(store.trials(study))
        for path, answer in answers_of_report(use, use.find(study)).items():
            if path != "events" and not path.endswith("/film"):
                said = httpx.get(f"{address}/api/v1/{path}").json()
                assert said | {"next_cursor": None} == answer | {"next_cursor": None}, path
        log = list(store.events(study))

    def data(kind: str) -> list[dict[str, Any]]:
        return [each["data"] for each in log if each["type"] == kind]

    stages = {each["chain"]: each["stages"] for each in data("ChainAssigned")}
    done = [stages[each["chain"]][each["index"]] for each in data("StageCompleted")]
    assert shown.state == "completed"
    assert shown.steps.executed == sum(stage["end"] - stage["start"] for stage in done)
    assert shown.gpu_seconds == sum(each["seconds"] for each in data("StageCompleted"))
    assert len(trials) == len(data("TrialAdded")) == sum(shown.counts.values())
    measured = [each["metrics"]["accuracy"] for each in data("Evaluated")]
    assert max(trial.best.value for trial in trials if trial.best) == max(measured)
    assert shown.best is not None and shown.best.value == max(
        trial.value for trial in trials if trial.value is not None
    )


def test_following_a_study_that_is_over_ends(pair: Pair) -> None:
    client, store = pair
    done = next(study["study"] for study in store.studies() if study["state"] == "completed")
    assert list(store.follow(done, after=2)) == list(client.follow(done, after=2))


def test_missing_states_are_not_found(pair: Pair) -> None:
    with pytest.raises(Unknown, match="no study unknown"):
        pair[1].study("unknown")
