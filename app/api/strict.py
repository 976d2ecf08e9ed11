"""Strict reading of requests, and idempotent writing of commands.

Refused are NaN, duplicate keys, text that a database cannot store, and unknown parameters.
"""

from __future__ import annotations

import asyncio
import json
import math
import re
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack
from functools import partial
from hashlib import sha256
from typing import Annotated, Any, get_origin
from urllib.parse import quote

from fastapi import APIRouter, BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import QueryParams

from app.api.access import Who, principal, require_principal
from app.api.services import COMPUTED, HEAVY, ServicesDep, services
from app.api.turns import LARGE_BYTES
from app.events import Decide, Idempotency, StoredEvent, transact
from app.events import Write as Transaction
from app.service.allowances import spending_fields
from app.service.services import HttpProblem, InvalidField
from stagetree.limits import MOST_PATH, JsonWalk, Limits
from stagetree.sequences import did_you_mean
from stagetree.spec import shorten

NO = ("false", "0", "no", "off", "f", "n")
"""The false values of a query parameter."""

BODY_SECONDS = 30.0
"""How long a client may take to send a body."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRequest(Request):
    """A request whose body is limited in size and time and, if it is JSON, checked first."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.scope, request.receive)
        self._value: Any = None

    async def prepare(self, held: AsyncExitStack, *, is_json: bool) -> None:
        """Read the body. held: takes the turn of a large one. Raises `HttpProblem` 400, 408, 413, 415, 422 or 429."""
        use = services(self)

        async def take_turn() -> None:
            await held.enter_async_context(use.large_bodies.turn(None, self.state.principal))

        self._body = await _read_bounded(self, use.limits.bytes, take_turn)
        if is_json:
            parse = partial(_json_value, self.headers.get("content-type", ""), self._body, use.limits)
            self._value = parse() if len(self._body) <= LARGE_BYTES else await run_in_threadpool(parse)

    async def json(self) -> Any:
        """The value in the body."""
        return self._value


class StrictRoute(APIRoute):
    """A route with strict requests, which take turns if they cost much."""

    def get_route_handler(self) -> Handler:
        handle, is_json = super().get_route_handler(), self.body_field is not None
        parameters = list(_query_parameters(self.dependant))
        names = {parameter.alias for parameter in parameters}
        repeated = {each.alias for each in parameters if get_origin(each.field_info.annotation) is Sequence}
        takes_turn, takes_place = self.endpoint in HEAVY, self.endpoint in COMPUTED
        needs_scope = any(each.call is require_principal for each in self.dependant.dependencies)

        async def strict(request: Request) -> Response:
            if needs_scope:  # before anything of the request is read
                principal(request)
            refuse_unknown(request.query_params, names)
            refuse_repeated(request.query_params, repeated)
            careful = StrictRequest(request)
            use, who, study = services(request), request.state.principal, request.path_params.get("study")
            async with AsyncExitStack() as held:
                await careful.prepare(held, is_json=is_json)
                if takes_turn and request.query_params.get("trials", "").lower() not in NO:
                    await held.enter_async_context(use.turns.turn(study, who))
                if takes_place:
                    await held.enter_async_context(use.places.turn(study, who))
                return await handle(careful)

        return strict


async def raw_body(request: Request) -> bytes:
    """The bytes of the body."""
    return await request.body()


Raw = Annotated[bytes, Depends(raw_body)]


API = "/api/v1"


def operation_id(route: APIRoute) -> str:
    """The name of a route's function. Generated clients use it."""
    return route.name


def api_router(path: str = "", *, tag: str) -> APIRouter:
    """A router for strict routes below `API` and `path`, which all know their caller.

    The application takes its routes as they are. FastAPI would build each one again to include it under a prefix.
    """
    return APIRouter(
        prefix=API + path,
        tags=[tag],
        dependencies=[Depends(require_principal)],
        route_class=StrictRoute,
        generate_unique_id_function=operation_id,
    )


def refuse_unknown(parameters: Iterable[str], names: Collection[str]) -> None:
    """Raise `InvalidField` for an unknown query parameter, which would be ignored otherwise."""
    for name in parameters:
        if name not in names:
            there = f"there are {', '.join(sorted(names))}" if names else "there are none"
            raise InvalidField(name, f"is not a parameter here: {there}{did_you_mean(name, names)}")


def refuse_repeated(parameters: QueryParams, repeated: Collection[str]) -> None:
    """Raise `InvalidField` for a duplicate parameter, of which one would be ignored."""
    for name in parameters:
        if name not in repeated and len(values := parameters.getlist(name)) > 1:
            raise InvalidField(name, f"must be given once, got {', '.join(map(shorten, values))}")


def _query_parameters(dependant: Dependant) -> Iterator[Any]:
    """The query parameters of a route and of its dependencies."""
    yield from dependant.query_params
    for inner in dependant.dependencies:
        yield from _query_parameters(inner)


async def _read_bounded(request: Request, most: int, take_turn: Callable[[], Awaitable[None]]) -> bytes:
    """The body. take_turn: called once, before more than `LARGE_BYTES` are in memory."""
    body, has_turn = bytearray(), False
    try:
        async with asyncio.timeout(BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > most:
                    raise HttpProblem(413, f"The body is larger than {most:,} bytes.")
                if len(body) > LARGE_BYTES and not has_turn:
                    await take_turn()
                    has_turn = True
    except TimeoutError:
        raise HttpProblem(408, f"The body must arrive within {BODY_SECONDS:g} s.") from None
    return bytes(body)


def _json_value(content_type: str, raw: bytes, limits: Limits) -> Any:
    if content_type.partition(";")[0].strip().lower() != "application/json":
        raise HttpProblem(415, "The body must be JSON, and the Content-Type must say so: application/json.")
    try:
        value = json.loads(raw, parse_constant=_refuse_constant, object_pairs_hook=_unique)
        _check(value, limits.depth)
    except RecursionError:
        raise _too_deep(limits.depth) from None
    except ValueError as error:
        raise HttpProblem(400, f"The body is not JSON: {error}.") from None
    return value


def _refuse_constant(constant: str) -> Any:
    raise HttpProblem(422, f"Numbers must be finite, and the body holds {constant}.")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    for key, value in pairs:
        if key in fields:
            raise HttpProblem(422, f"The key {key!r} is written twice in one object.")
        fields[key] = value
    return fields


UNKEEPABLE = re.compile("[\0\ud800-\udfff]")


def _check(value: Any, most: int) -> None:
    """Raise `HttpProblem` for JSON that a database cannot store, or whose places are too long to be named."""
    for item in (walk := JsonWalk(value)):
        if walk.depth > most:
            raise _too_deep(most)
        if walk.path_length > MOST_PATH:
            raise HttpProblem(422, f"Values must be below names of at most {MOST_PATH:,} characters in all.")
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidField(walk.path, "must be a finite number; this one is too large")
        if isinstance(item, str) and UNKEEPABLE.search(item):
            raise InvalidField(walk.path, "must be text that can be kept, without NUL characters and lone surrogates")


def _too_deep(most: int) -> HttpProblem:
    return HttpProblem(422, f"The body must not be nested deeper than {most} levels.")


MOST = 1000
Limit = Annotated[int, Query(ge=1, le=MOST, description="the most items on the page")]
POSITION = 2**63 - 1
At = Annotated[
    int | None,
    Query(ge=1, le=POSITION, description="as it was after the event at this position, counted from the submission"),
]
Cursor = Annotated[str | None, Query(max_length=100, description="the next_cursor of the page before; opaque")]


Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        pattern=r"^[\x21-\x7e]{1,255}$",
        description="up to 255 visible ASCII characters; the same key with the same request is done once",
    ),
]

Write = Callable[[str, Decide], list[StoredEvent]]


def writer(
    request: Request, background: BackgroundTasks, use: ServicesDep, raw: Raw, who: Who, key: Key = None
) -> Write:
    """A function that writes this request's events to a stream. Raises what `transact` raises."""
    parts = [request.method, request.url.path, request.url.query]
    fingerprint = sha256(b"\n".join([*(part.encode() for part in parts), raw])).hexdigest()

    def write(stream: str, decide: Decide) -> list[StoredEvent]:
        whose = f"api:{quote(who.name, safe='')}"  # apart from the keys of slots and of other callers
        once = None if key is None else Idempotency(f"{whose}:{key}", fingerprint)
        fields: dict[str, Any] = spending_fields(use, who, decide)
        by = who.signature or None
        transaction = Transaction(stream=stream, at=use.clock(), idempotency=once, by=by, **fields)
        recorded = transact(use.log, use.plans, transaction)
        background.add_task(use.wake_scheduler)
        return recorded

    return write


WriterDep = Annotated[Write, Depends(writer)]
