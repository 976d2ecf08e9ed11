"""The tools for agents over a real API, of which the tests play the scheduler and the workers."""

from __future__ import annotations

import json
import time

import pytest

from app.agents import status
from app.agents.serving import TOOLS
from stagetree.client import Client
from tests.api.agent import CHARACTERS_OF_A_TOKEN, Refusal, call, list_tools
from tests.api.world import STUDY, Workers, study_file


@pytest.fixture
def finished_study(server: str, workers: Workers) -> str:
    """A study of two trials, both with a result."""
    with Client(server) as client:
        study = client.submit(STUDY).study
    workers.tune(study)
    for trial in range(2):
        workers.finish(study, workers.assign(study, trial), {"accuracy": 0.5 + trial / 4})
    workers.close(study)
    return study


def test_all_tools_are_described_in_few_tokens() -> None:
    tools = list_tools()
    assert [tool.name for tool in tools] == list(TOOLS)
    for tool in tools:
        assert tool.description and tool.description.endswith(".")
        assert all("description" in argument for argument in tool.input_schema["properties"].values()), tool.name
    assert sum(len(tool.model_dump_json(exclude_none=True)) for tool in tools) < 2_500 * CHARACTERS_OF_A_TOKEN


def test_a_preview_has_the_price_before_anything(server: str) -> None:
    answer = call(server, "preview", spec=STUDY)
    assert answer["price"].startswith("60 new steps: 60 unique of the 80 that its trials take; slot time unknown")
    assert answer["verification"] == "nothing was trained for this answer"
    with Client(server) as client:
        assert list(client.studies()) == []


def test_a_preview_counts_what_is_trained_already(server: str, finished_study: str) -> None:
    assert call(server, "preview", spec=STUDY)["price"].startswith("60 are trained already, 0 new steps")


def test_a_study_from_its_price_to_its_result(server: str, workers: Workers) -> None:
    submitted = call(server, "submit", spec=STUDY, key="once")
    assert call(server, "submit", spec=STUDY, key="once")["study"] == submitted["study"]
    workers.tune(submitted["study"])
    for trial in range(2):
        workers.finish(submitted["study"], workers.assign(submitted["study"], trial), {"accuracy": 0.5 + trial / 4})
    workers.close(submitted["study"])
    over = call(server, "wait", study=submitted["study"], cursor=submitted["cursor"])
    assert over["state"] == "completed" and over["best"].startswith("trial 1: 0.75 at step 40")
    assert "60 steps run of 60 unique" in over["cost"] and over["verification"]


def test_wait_returns_at_a_decision(server: str, workers: Workers, monkeypatch: pytest.MonkeyPatch) -> None:
    study = call(server, "submit", spec=STUDY)["study"]
    workers.tune(study)
    monkeypatch.setattr(status, "WAIT_SECONDS", 0.2)
    waited = call(server, "wait", study=study, cursor=3)
    assert waited["news"] == ["no decision yet: call `wait` again"] and waited["cursor"] == 3
    monkeypatch.setattr(status, "WAIT_SECONDS", 60)
    with Client(server) as client:
        client.cancel_trial(study, 1)
    begun = time.monotonic()
    assert call(server, "wait", study=study, cursor=3)["news"] == ["event 4: trial 1: cancel"]
    assert time.monotonic() - begun < 30


def test_a_status_says_what_trains_really(server: str, workers: Workers) -> None:
    study = call(server, "submit", spec=STUDY)["study"]
    assert call(server, "status")["training"] == ["nothing: no slot works for it now"]
    workers.tune(study)
    chain = workers.assign(study, 0)
    assert call(server, "status")["training"][0].startswith("gpu0: starts trials 0, 1, since ")
    workers.beat(chain, 0, 5)
    assert call(server, "status")["training"][0].startswith("gpu0: trains trials 0, 1, step 5 of 20, since ")


def test_a_status_has_only_what_is_new(server: str, finished_study: str) -> None:
    first = call(server, "status")
    assert len(first["news"]) > 3 and call(server, "status", cursor=first["cursor"]).get("news") is None
    call(server, "note", text="lr 0.1 throughout is better", trial=1)
    assert call(server, "status")["notes"] == [f"event {first['cursor'] + 1}: lr 0.1 throughout is better"]


def test_a_status_is_short_however_large_the_study(server: str, workers: Workers) -> None:
    space = {"lr": [0.1 + 0.01 * n for n in range(30)], "bs": 64, **{f"long_name_{n}": "x" * 60 for n in range(20)}}
    study = call(server, "submit", spec=study_file(space=space))["study"]
    workers.tune(study)
    for trial in range(30):
        workers.finish(study, workers.assign(study, trial), {"accuracy": trial / 100})
    for n in range(5):
        call(server, "note", text=f"{n}" * 2_000)
    answer = call(server, "status")
    assert len(answer["best"]) == 5 and len(json.dumps(answer)) <= 1_500 * CHARACTERS_OF_A_TOKEN


def test_a_budget_of_the_study_is_in_its_status(server: str) -> None:
    call(server, "submit", spec=study_file(max_total_steps=50))
    assert call(server, "status")["budget_left"] == "50 of max_total_steps"


def test_a_replay_says_whether_decisions_follow(server: str, finished_study: str) -> None:
    answer = call(server, "replay")
    assert answer["identical"] is True and answer["best"].startswith("trial 1: 0.75")


def test_a_study_is_stopped_for_good(server: str, workers: Workers) -> None:
    study = call(server, "submit", spec=STUDY)["study"]
    workers.tune(study)
    assert call(server, "stop", trial=0)["stopped"] == f"trial 0 of {study}"
    assert call(server, "stop")["state"] == "cancelled"


@pytest.mark.parametrize(
    ("name", "arguments", "sentence"),
    [
        ("preview", {"spec": {**STUDY, "tunr": 1}}, "tunr: is not a field here; did you mean tuner?"),
        ("preview", {"spek": STUDY}, "spek: is not a field here; did you mean spec?"),
        ("submt", {}, "there is no tool 'submt'; did you mean submit?"),
        ("status", {"study": "none"}, "there is no study with the id or the name none"),
        ("status", {"cursor": -1}, "cursor: must be the `cursor` of an earlier answer: only later events are news"),
    ],
)
def test_refusals_are_sentences(server: str, name: str, arguments: dict[str, object], sentence: str) -> None:
    with pytest.raises(Refusal) as refused:
        call(server, name, **arguments)
    assert sentence in str(refused.value)


def test_a_server_that_does_not_answer_is_named() -> None:
    with pytest.raises(Refusal, match=r"no stagetree server answers at http://127\.0\.0\.1:1"):
        call("http://127.0.0.1:1", "status")
