"""Strict reading of requests, and idempotent writing of commands.

Refused are NaN, duplicate keys, text that a database cannot store, and unknown parameters.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Collection, Coroutine, Iterable, Iterator, Sequence
from hashlib import sha256
from typing import Annotated, Any, get_origin
from urllib.parse import quote

from fastapi import BackgroundTasks, Depends, Header, Query, Request, Response
from fastapi.dependencies.models import Dependant
from fastapi.routing import APIRoute
from starlette.datastructures import QueryParams

from app.api.access import Who
from app.api.services import ServicesDep, is_heavy, services
from app.events import Decide, Idempotency, StoredEvent, transact
from app.events import Write as Transaction
from app.service.services import HttpProblem, InvalidField
from stagetree.limits import Limits
from stagetree.sequences import did_you_mean
from stagetree.spec import shorten

NO = ("false", "0", "no", "off", "f", "n")
"""The false values of a query parameter."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]


class StrictRequest(Request):
    """A request whose body is limited in size and, if it is JSON, checked first."""

    def __init__(self, request: Request) -> None:
        super().__init__(request.scope, request.receive)
        self._value: Any = None

    async def prepare(self, *, is_json: bool) -> None:
        """Read the body. Raises `HttpProblem` 400, 413, 415 or 422."""
        limits = services(self).limits
        self._body = await _read_bounded(self, limits.bytes)
        if is_json:
            self._value = _json_value(self.headers.get("content-type", ""), self._body, limits)

    async def json(self) -> Any:
        """The value in the body."""
        return self._value


class StrictRoute(APIRoute):
    """A route with strict requests, which take turns if they are heavy."""

    def get_route_handler(self) -> Handler:
        handle, is_json = super().get_route_handler(), self.body_field is not None
        parameters = list(_query_parameters(self.dependant))
        names = {parameter.alias for parameter in parameters}
        repeated = {each.alias for each in parameters if get_origin(each.field_info.annotation) is Sequence}
        has_turns = is_heavy(self.endpoint)

        async def strict(request: Request) -> Response:
            refuse_unknown(request.query_params, names)
            refuse_repeated(request.query_params, repeated)
            careful = StrictRequest(request)
            await careful.prepare(is_json=is_json)
            if has_turns and not _is_without_trials(request):
                async with services(request).turns.turn(request.path_params["study"]):
                    return await handle(careful)
            return await handle(careful)

        return strict


def _is_without_trials(request: Request) -> bool:
    return request.query_params.get("trials", "").lower() in NO


async def raw_body(request: Request) -> bytes:
    """The bytes of the body."""
    return await request.body()


Raw = Annotated[bytes, Depends(raw_body)]


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


async def _read_bounded(request: Request, most: int) -> bytes:
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HttpProblem(413, f"The body is larger than {most:,} bytes.")
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


def _check(value: Any, most: int) -> None:
    """Raise `HttpProblem` for JSON that a database cannot store."""
    for path, item in _walk(value, most):
        if isinstance(item, float) and not math.isfinite(item):
            raise InvalidField(path, "must be a finite number; this one is too large")
        if isinstance(item, str) and ("\0" in item or any("\ud800" <= char <= "\udfff" for char in item)):
            raise InvalidField(path, "must be text that can be kept, without NUL characters and lone surrogates")


def _walk(value: Any, most: int, path: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    """All keys and all leaf values, each with its path."""
    if depth > most:
        raise _too_deep(most)
    if isinstance(value, dict):
        for key, item in value.items():
            yield path, key
            yield from _walk(item, most, f"{path}.{key}" if path else key, depth + 1)
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, most, f"{path}[{number}]", depth + 1)
    else:
        yield path, value


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
        transaction = Transaction(stream=stream, decide=decide, at=use.clock(), idempotency=once, by=who.name or None)
        recorded = transact(use.log, use.plans, transaction)
        background.add_task(use.wake_scheduler)
        return recorded

    return write


WriterDep = Annotated[Write, Depends(writer)]
