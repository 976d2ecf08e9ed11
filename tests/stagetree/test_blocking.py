"""Calls of a client without a loop: interrupts, forks, the end of a program."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
import time
from collections.abc import AsyncGenerator
from concurrent.futures import ProcessPoolExecutor
from contextlib import aclosing
from multiprocessing import get_context
from typing import Any

import pytest
from anyio.from_thread import BlockingPortal

from stagetree.client import Unreachable
from stagetree.client.blocking import _close_all, _Items
from stagetree.errors import Invalid, StagetreeError
from stagetree.study import AsyncStudy, Study

FIELDS: dict[str, Any] = {"name": "mine", "trainer": "digits", "metric": "accuracy", "mode": "max"}


def test_a_refused_study_raises_without_frames_of_the_client(server: str) -> None:
    with pytest.raises(Invalid, match="mode: must be max or min") as refused:
        Study.create(FIELDS | {"mode": "maxx"}, url=server)
    assert len(refused.traceback) <= 3 and refused.value.__suppress_context__


def test_an_interrupt_while_waiting_ends_the_call(server: str) -> None:
    begun, ended = threading.Event(), threading.Event()

    async def endless(study: AsyncStudy) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupt() -> None:
        begun.wait()
        main = threading.main_thread().ident or 0
        while sys._current_frames()[main].f_code.co_name != "wait":  # nothing else tells that it waits by now
            time.sleep(0.01)
        signal.pthread_kill(main, signal.SIGINT)
        while not ended.wait(10):  # Python misses what comes between its last look for signals and the wait
            signal.pthread_kill(main, signal.SIGINT)

    with Study.create(FIELDS, url=server) as study:
        threading.Thread(target=interrupt).start()
        with pytest.raises(KeyboardInterrupt):
            study.run(endless)
        assert ended.wait(60)


@pytest.mark.parametrize("is_told", [True, False])
def test_an_interrupt_while_a_call_starts_ends_it(server: str, monkeypatch: pytest.MonkeyPatch, is_told: bool) -> None:
    """It comes after the loop got the call and before the caller knows, or before either."""
    with Study.create(FIELDS, url=server) as study:
        real, calls = BlockingPortal.start_task_soon, list[Any]()

        def start(portal: BlockingPortal, call: Any, *rest: Any) -> Any:
            calls.append(call)
            if len(calls) > 1:
                return real(portal, call, *rest)
            if is_told:
                real(portal, call, *rest)
            raise KeyboardInterrupt

        async def endless(study: AsyncStudy) -> None:
            await asyncio.Event().wait()

        monkeypatch.setattr(BlockingPortal, "start_task_soon", start)
        with pytest.raises(KeyboardInterrupt):
            study.run(endless)
        assert calls[0].__self__.ended.wait(60) and len(calls) == 2
        assert study.refresh().state == "running"


def test_a_stream_can_be_closed_after_an_interrupt_while_it_starts(
    server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Study.create(FIELDS, url=server) as study:
        real, items = BlockingPortal.start_task_soon, study.progress()
        next(items)
        interrupts = iter([True])

        def start(portal: BlockingPortal, call: Any, *rest: Any) -> Any:
            future = real(portal, call, *rest)
            if next(interrupts, False):
                raise KeyboardInterrupt
            return future

        monkeypatch.setattr(BlockingPortal, "start_task_soon", start)
        with pytest.raises(KeyboardInterrupt):
            next(items)


INTERRUPTED = """
import os, signal, time
from anyio.from_thread import BlockingPortal

begin = BlockingPortal.__aenter__

async def interrupting(self):
    os.kill(os.getpid(), signal.SIGINT)
    time.sleep(0.2)
    return await begin(self)

BlockingPortal.__aenter__ = interrupting
from stagetree import Client
try:
    Client("http://127.0.0.1:9")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_while_the_loop_of_a_process_begins_ends_it() -> None:
    """`stagetree run` waited for ever then, in one of twenty times that Ctrl-C came while its stack started."""
    done = subprocess.run([sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, timeout=600, check=False)
    assert done.stdout == "interrupted\n" and not done.stderr


def test_a_program_that_closes_nothing_ends(server: str) -> None:
    program = f"from stagetree import Study; study = Study.create({FIELDS!r}, url={server!r}); print(study.state)"
    said = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=600)
    assert said.stdout == "running\n"


@pytest.mark.slow
@pytest.mark.parametrize("times", range(3))
def test_a_program_that_ends_between_two_events_prints_nothing(server: str, times: int) -> None:
    with Study.create(FIELDS, url=server) as study:
        program = (
            "from stagetree.client import Client; "
            f"events = Client({server!r}).follow({study.id!r}); print(next(events).type)"
        )
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, timeout=600, check=False
        )
    assert (ended.stdout, ended.stderr) == ("StudySubmitted\n", "")


def test_items_are_closed_from_within_while_a_thread_waits_for_the_next() -> None:
    """The generator would else stop at its next `yield` after the others were closed, and be closed from without."""
    steps = list[str]()

    async def inner() -> AsyncGenerator[int, None]:
        try:
            yield 1
            await asyncio.Event().wait()
        finally:
            steps.append("inner")

    async def outer() -> AsyncGenerator[int, None]:
        async with aclosing(inner()) as items:
            async for item in items:
                yield item
        steps.append("never")

    async def closed_while_it_waits() -> None:
        items = _Items(outer())
        assert await items.next() == 1
        waiting = asyncio.create_task(items.next())
        await asyncio.sleep(0.01)
        await _close_all()
        with pytest.raises(StagetreeError, match="the connection was closed"):
            await waiting
        with pytest.raises(StagetreeError, match="the connection was closed"):
            await items.next()

    asyncio.run(closed_while_it_waits())
    assert steps == ["inner"]


def test_a_server_that_cannot_be_named_leaves_no_thread_behind() -> None:
    def fail() -> set[threading.Thread]:
        with pytest.raises(Unreachable):
            Study.open("s1", url="http://[::1")
        return set(threading.enumerate())

    assert fail() >= fail() | fail()  # others' threads may end meanwhile


def test_a_fork_has_a_loop_of_its_own(server: str) -> None:
    with Study.create(FIELDS, url=server) as study, ProcessPoolExecutor(1, get_context("fork")) as pool:
        assert pool.submit(state_of, study.id, server).result(60) == "running"


def state_of(study: str, url: str) -> str:
    with Study.open(study, url=url) as opened:
        return opened.state
