"""The client and the server understand each other: every method of the one, against the other, really served."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from stagetree.client import AsyncClient, Client, Conflict, Invalid, NotFound, ProblemError
from stagetree.sequences import MultiStep
from stagetree.spec import StudySpec
from stagetree.study import Study
from tests.api.world import STUDY, Workers, study_file


@pytest.fixture
def client(server: str) -> Iterator[Client]:
    with Client(server, retries=1) as opened:
        yield opened


def test_a_study_from_submission_to_its_end(client: Client, workers: Workers) -> None:
    study = client.submit(StudySpec.from_dict(STUDY))["study"]
    workers.tune(study)
    for trial in range(2):
        workers.finish(study, workers.assign(study, trial), {"accuracy": trial / 2})
    workers.close(study)
    shown = client.study(study)
    assert (shown["state"], shown["best"]["trial"], shown["merge_rate"]) == ("completed", 1, 1.333)
    assert [trial["value"] for trial in client.trials(study, limit=1)] == [0.0, 0.5]
    assert client.trial(study, 0)["curve"][-1]["step"] == 40
    assert client.logged(study, 0) == []
    assert len(client.plan(study)["nodes"]) == 2
    assert client.stage_tree(study)["stages"] == []
    assert [slot["name"] for slot in client.slots()] == ["gpu0"]
    assert client.health() == {"status": "ok"}


def test_preview(client: Client) -> None:
    assert client.preview(STUDY)["requested"] == 80


def test_all_studies_over_many_pages(client: Client) -> None:
    submitted = [client.submit(study_file(name=f"s{n}"))["study"] for n in range(5)]
    assert [study["study"] for study in client.studies(limit=2)] == submitted[::-1]
    client.cancel(submitted[1])
    client.pause(submitted[3])
    assert [study["study"] for study in client.studies(limit=1, state=("cancelled", "paused"))] == submitted[3:0:-2]


def test_changing_a_study(client: Client, workers: Workers) -> None:
    study = client.submit(STUDY)["study"]
    assert client.pause(study)["state"] == "paused"
    assert client.resume(study)["state"] == "running"
    added = client.add_trial(study, {"lr": MultiStep(0.1, [20], 0.1), "bs": 64}, 30)
    assert (added["trial"], added["steps"]) == (0, 30)
    client.cancel_trial(study, 0)
    assert client.trial(study, 0)["state"] == "cancelled"
    assert client.cancel(study)["state"] == "cancelled"


def test_a_branch_from_python(server: str, workers: Workers) -> None:
    with Study.create(study_file(), url=server) as study:
        workers.tune(study.id)
        price = study.branch(1, at=10, steps=15, lr={"family": "linear", "init": 0.05, "slope": -0.01}, preview=True)
        assert (price.new, price.shared, price.trial) == (5, 10, None)
        made = study.branch(1, at=10, steps=15, hp={"lr": 0.01})
        assert made.trial is not None and made.trial.reason["branch_of"] == 1
        with pytest.raises(Invalid, match=r"hp\.rl"):
            study.branch(1, at=10, steps=15, rl=0.01)


def test_an_average_from_python(server: str, workers: Workers) -> None:
    with Study.create(study_file(), url=server) as study:
        workers.tune(study.id)
        price = study.soup([0, 1], steps=50, hp={"lr": 0.5}, preview=True)
        made = study.soup([0, 1], weights=[2, 1])
        assert price.trial is None and made.trial is not None
        assert {part.weight for part in made.trial.average_of} == {1, 2}
        with pytest.raises(Invalid, match="best"):
            study.soup(best=2)


def test_trials_from_outside(client: Client, workers: Workers) -> None:
    external = {name: value for name, value in study_file(tuner={"kind": "external"}).items() if name != "space"}
    study = client.submit(external)["study"]
    hp = {"lr": MultiStep(0.1, [20], 0.1), "bs": 64}
    [trial] = client.ask_trials(study, [{"hp": hp, "steps": 10}])
    assert (trial["trial"], trial["asked"]) == (0, [10])
    assert client.extend_trial(study, 0, 30)["asked"] == [10, 30]
    workers.finish(study, workers.assign(study, 0), {"accuracy": 0.5})
    with pytest.raises(Conflict):
        client.complete(study)
    client.cancel_trial(study, 0)
    assert client.complete(study)["state"] == "completed"


def test_the_same_key_is_one_study(client: Client) -> None:
    assert client.submit(STUDY, "k") == client.submit(STUDY, "k")


def test_refusals(client: Client) -> None:
    study = client.submit(STUDY)["study"]
    client.cancel(study)
    with pytest.raises(NotFound, match="there is no study unknown"):
        client.study("unknown")
    with pytest.raises(Conflict, match="is cancelled and cannot be changed"):
        client.resume(study)
    with pytest.raises(Invalid, match=r"trainer: must be one of digits, letters, got 'digit'; did you mean digits\?"):
        client.submit(study_file(trainer="digit"))
    with pytest.raises(Invalid, match=r"mode: must be max or min.*\n.*stepps: is not a field"):
        client.submit(study_file(mode="best", stepps=1))
    with pytest.raises(ProblemError, match="There is nothing at"):
        asyncio.run(ask_for("/nowhere", client.url))


async def ask_for(path: str, url: str) -> None:
    async with AsyncClient(url) as client:
        await client.http.get(path)


def test_events_over_many_pages(client: Client, workers: Workers) -> None:
    study = client.submit(STUDY)["study"]
    workers.tune(study)
    assert [event["position"] for event in client.events(study, limit=1)] == [1, 2, 3]
    assert [event["position"] for event in client.events(study, 1, limit=1)] == [2, 3]


def test_following_a_study_to_its_end(client: Client, workers: Workers) -> None:
    study = client.submit(STUDY)["study"]
    threading.Timer(0.3, lambda: (workers.tune(study), client.cancel(study))).start()
    followed = [event["type"] for event in client.follow(study)]
    assert followed == ["StudySubmitted", "TrialAdded", "TrialAdded", "StudyCancelled"]
    assert list(client.follow(study, after=3)) == list(client.events(study, 3))
    assert list(client.follow(study, after=5)) == []
