"""Answers about a whole study over HTTP: a client that has one already is told so, and does not wait for others."""

from __future__ import annotations

from collections.abc import Callable

from fastapi import Request, Response
from pydantic import BaseModel
from starlette.concurrency import run_in_threadpool

from app.api.services import ApiServices
from app.api.sharing.answers import Key
from app.events.rows import StudyRecord


async def kept(
    request: Request, use: ApiServices, row: StudyRecord, key: Key, at: int | None, make: Callable[[], BaseModel]
) -> Response:
    """The answer that `make` gives at the event `at`, or now, made once for each moment."""
    moment = f"at{at}" if at is not None else await use.together.do(("version", row.stream), lambda: use.version(row))
    key = (*key, row.id, at)
    answer = use.answers.find(key, moment)
    if answer is None:
        async with use.turns.turn(row.id):
            answer = await run_in_threadpool(use.answers.get, key, moment, make)
    return await run_in_threadpool(answer.to, request) if answer.is_to_be_unpacked(request) else answer.to(request)
