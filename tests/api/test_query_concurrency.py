"""Answers about whole plans are computed a few at a time, and other requests do not wait for them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import httpx
import pytest
from fastapi import FastAPI

from app.api.turns import Turns
from app.domain.terms import ANONYMOUS_ADMIN, Principal, Scope
from app.service.services import HttpProblem, Services
from tests.api.world import API, STUDY

MORE_THAN_THREADS = 60
"""The server has 40 threads for answers."""

HEAVY = ("", "/trials?limit=1000", "/trials:columns", "/plan", "/stage-tree", "/tree", "/timeline")


class Scene:
    """Answers that are under way until they may end. `begun`: about which studies, in the order of their turns."""

    def __init__(self, turns: Turns) -> None:
        self._turns, self._may_end = turns, asyncio.Event()
        self.begun, self.running = list[str](), list[str]()

    async def answer(self, study: str, who: Principal = ANONYMOUS_ADMIN) -> None:
        async with self._turns.turn(study, who):
            self.begun.append(study)
            self.running.append(study)
            await self._may_end.wait()
            self.running.remove(study)

    async def settle(self) -> None:
        """Until everybody waits."""
        for _ in range(50):
            await asyncio.sleep(0)

    def end(self) -> None:
        self._may_end.set()


def test_one_at_a_time_about_a_study_and_a_few_in_all() -> None:
    async def play() -> None:
        scene = Scene(Turns(at_once=2))
        answers = [asyncio.create_task(scene.answer(study)) for study in ("a", "a", "a", "b", "c")]
        await scene.settle()
        assert scene.running == ["a", "b"]
        scene.end()
        await asyncio.gather(*answers)
        assert sorted(scene.begun) == ["a", "a", "a", "b", "c"]
        assert scene.begun.index("c") < len(scene.begun) - 1, "c waits for one answer about a, not for all of them"

    asyncio.run(play())


def test_a_caller_that_waited_too_long_is_refused() -> None:
    """They went ahead once: after a while, any number of threads computed at once."""

    async def play() -> None:
        scene = Scene(Turns(at_once=1, seconds=0.01))
        first, *others = (asyncio.create_task(scene.answer("a")) for _ in range(3))
        for each in others:
            with pytest.raises(HttpProblem, match="try again later") as refused:
                await each
            assert refused.value.status == 429
        assert scene.running == ["a"]
        scene.end()
        await first

    asyncio.run(play())


@pytest.mark.parametrize("scope", Scope)
def test_a_reader_has_half_of_the_turns(scope: Scope) -> None:
    async def play() -> None:
        scene, who = Scene(Turns(at_once=4)), Principal("someone", scope)
        answers = [asyncio.create_task(scene.answer(study, who)) for study in "abcde"]
        await scene.settle()
        assert scene.running == (["a", "b"] if scope is Scope.READ else ["a", "b", "c", "d"])
        others = [asyncio.create_task(scene.answer("a", Principal("other", Scope.READ))) for _ in range(2)]
        await scene.settle()
        assert scene.running.count("a") == 1, "one at a time about a study"
        scene.end()
        await asyncio.gather(*answers, *others)

    asyncio.run(play())


def test_a_reader_who_waits_for_its_share_keeps_no_study_waiting() -> None:
    async def play() -> None:
        scene, reader = Scene(Turns(at_once=2)), Principal("reader", Scope.READ)
        first = asyncio.create_task(scene.answer("a", reader))
        await scene.settle()
        flood = [asyncio.create_task(scene.answer("b", reader)) for _ in range(50)]
        await scene.settle()
        other = asyncio.create_task(scene.answer("b"))
        await scene.settle()
        assert scene.running == ["a", "b"] and not any(each.done() for each in flood)
        scene.end()
        await asyncio.gather(first, other, *flood)

    asyncio.run(play())


def test_readers_together_have_half_of_the_turns_and_take_them_in_turn() -> None:
    async def play() -> None:
        scene = Scene(Turns(at_once=2))
        first, second = (Principal(name, Scope.READ) for name in ("first", "second"))
        answers = [asyncio.create_task(scene.answer(study, first)) for study in ("a", "b", "c")]
        answers += [asyncio.create_task(scene.answer("d", second))]
        await scene.settle()
        assert scene.running == ["a"]
        answers += [asyncio.create_task(scene.answer("e"))]
        await scene.settle()
        assert scene.running == ["a", "e"], "no number of readers keeps another caller waiting"
        scene.end()
        await asyncio.gather(*answers)
        assert scene.begun[2] == "d", "one reader's flood does not keep another reader waiting"

    asyncio.run(play())


def test_a_cancelled_wait_delays_no_other() -> None:
    async def play() -> None:
        scene = Scene(Turns(at_once=1))
        first, second, third = (asyncio.create_task(scene.answer(study)) for study in ("a", "a", "b"))
        await scene.settle()
        second.cancel()
        await scene.settle()
        scene.end()
        await asyncio.gather(first, third)
        assert scene.begun == ["a", "b"]

    asyncio.run(play())


def test_small_requests_are_answered_beside_many_large_ones(app: FastAPI, use: Services) -> None:
    async def play(http: httpx.AsyncClient) -> None:
        study = (await http.post("/studies", json=STUDY)).json()["study"]
        paths = [f"/studies/{study}{HEAVY[number % len(HEAVY)]}" for number in range(MORE_THAN_THREADS)]
        with use.plans.holding(use.find(study).stream):  # as a request does that folds a large plan
            heavy = [asyncio.create_task(http.get(path)) for path in paths]
            for _ in range(10):
                assert (await http.get("/studies")).status_code == 200
            assert not any(answer.done() for answer in heavy)
        assert {answer.status_code for answer in await asyncio.gather(*heavy)} == {200}

    asyncio.run(_play_with_timeout(app, play))


async def _play_with_timeout(app: FastAPI, play: Callable[[httpx.AsyncClient], Awaitable[Any]]) -> None:
    transport = httpx.ASGITransport(app=app)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://test{API}") as http:
        await asyncio.wait_for(play(http), 60.0)
