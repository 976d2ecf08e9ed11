"""A store without a server answers what a server on it answers, field by field."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.cli.finding import Documents
from app.cli.store import Store
from app.domain.terms import Unknown
from app.events.database import Database
from stagetree.client import Client
from tests.api.world import MakeApp, Workers, changed, serving

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
        done, broken, running = (str(client.submit(changed(seed=seed))["study"]) for seed in range(3))
        for study in (done, broken, running):
            workers.tune(study)
        for trial in range(2):
            workers.finish(done, workers.assign(done, trial), {"accuracy": 0.5 + trial})
        workers.close(done)
        workers.fail(broken, workers.assign(broken, 1), "Traceback ...\nValueError: \x1b[31mno")
        workers.beat(workers.assign(running, 0, "gpu1"), 0, 7)
        yield Documents(client), store


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


def test_a_store_and_a_server_on_it_give_equal_documents(pair: Pair) -> None:
    client, store = pair
    assert len(answers(store)) == 5
    assert answers(store) == answers(client)


def test_following_a_study_that_is_over_ends(pair: Pair) -> None:
    client, store = pair
    done = next(study["study"] for study in store.studies() if study["state"] == "completed")
    assert list(store.follow(done, after=2)) == list(client.follow(done, after=2))


def test_what_is_not_there_is_not_found(pair: Pair) -> None:
    with pytest.raises(Unknown, match="no study nobody"):
        pair[1].study("nobody")
