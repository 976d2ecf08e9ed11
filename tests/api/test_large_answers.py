"""The answer for a study with all its trials: made trial by trial, sent in parts, and the same as a list of trials."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest
from fastapi.testclient import TestClient
from pydantic import TypeAdapter
from starlette.types import Message

from app.api import large_answers
from app.api.large_answers import LargeJson
from app.domain.search_plan import SearchPlan
from app.service.views import documents
from stagetree.models.studies import StudyAnswer
from tests.api.test_response_models import golden_logs, plans_on_the_way

PART = 100
WRITER = TypeAdapter(StudyAnswer)


def plans() -> Iterator[SearchPlan]:
    for log in golden_logs():
        yield from plans_on_the_way(log)


def written(answer: StudyAnswer) -> bytes:
    return WRITER.dump_json(answer, by_alias=True, exclude_unset=True, warnings="none")


def test_trials_one_by_one_are_written_like_a_list() -> None:
    for plan in plans():
        for name in plan.studies:
            listed = documents.study(plan, name, now=5.0)
            assert isinstance(listed.trials, list)
            assert written(documents.study(plan, name, now=5.0, gather=iter)) == written(listed)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(large_answers, "PART_BYTES", PART)


@pytest.mark.parametrize("encoding", ["identity", "gzip"])
def test_parts_make_the_whole(http: TestClient, study: str, encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = {"Accept-Encoding": encoding}
    whole = http.get(f"/studies/{study}", headers=headers)
    monkeypatch.setattr(large_answers, "PART_BYTES", PART)
    parts = http.get(f"/studies/{study}", headers=headers)
    named = ("ETag", "Cache-Control", "Content-Type")
    assert [parts.headers[name] for name in named] == [whole.headers[name] for name in named]
    assert parts.json().keys() == whole.json().keys() and parts.json()["trials"] == whole.json()["trials"]
    if encoding == "identity":
        assert int(parts.headers["Content-Length"]) == len(parts.content)


@pytest.mark.parametrize("size", [0, 1, PART - 1, PART, PART + 1, 3 * PART])
@pytest.mark.usefixtures("small_parts")
def test_no_part_is_larger_than_the_limit(size: int) -> None:
    sent, text = list[Message](), bytes(range(256)) * 2

    async def send(message: Message) -> None:
        sent.append(message)

    async def receive() -> Message:
        raise AssertionError

    asyncio.run(LargeJson(text[:size])({"type": "http"}, receive, send))
    start, *parts = sent
    assert start["status"] == 200 and all(len(part["body"]) <= PART for part in parts)
    assert b"".join(part["body"] for part in parts) == text[:size]
    assert [part["more_body"] for part in parts] == [True] * (len(parts) - 1) + [False]
