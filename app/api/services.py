"""The parts that routes share, as FastAPI dependencies.

Concurrent requests for the same work share one run. Heavy work waits for its turn (`app.api.turns`), and its answer is
cached until the next event. A cached answer is compressed JSON with an `ETag`, the moment it is valid for; a client
with a valid copy gets a 304.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Annotated, Any, TypeVar, cast

from fastapi import Depends, Request, Response
from fastapi import Path as PathParameter
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from app.api.access import AccessPolicy, Who, check_owner
from app.api.counters import FailureCounts, RequestTimes
from app.api.streaming import Broadcasts, Tail
from app.api.turns import LARGE_AT_ONCE, LARGE_SECONDS, PLACE_SECONDS, Turns
from app.domain.terms import Principal, Unknown
from app.events import StudyRecord
from app.process.sandbox import LimitExceeded, SandboxLimits, run_in_sandbox
from app.service.access import Doorkeeper
from app.service.services import InvalidField, Services
from app.tuner_files import call_with_tuners

T = TypeVar("T")


class SingleFlight:
    """Concurrent callers share the next run, so each gets a result computed after its own request.

    Pages that follow a study all request it after each event. Lives in one event loop.
    """

    def __init__(self) -> None:
        self._running = dict[Hashable, asyncio.Task[Any]]()
        self._next = dict[Hashable, asyncio.Task[Any]]()

    async def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """Run the work in a thread; its result. key: the same for equal work. Raises what the work raises."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._run_after(self._running.get(key), key, work))
        return cast(T, await asyncio.shield(task))  # one cancelled caller must not cancel the others

    async def _run_after(self, before: asyncio.Task[Any] | None, key: Hashable, work: Callable[[], T]) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running[key] = self._next.pop(key)
        try:
            return await run_in_threadpool(work)
        finally:
            if key not in self._next:
                del self._running[key]


Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
HEAVY, COMPUTED = set[Callable[..., Any]](), set[Callable[..., Any]]()


def heavy(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint whose cost grows with the plan, unless it is requested without trials."""
    HEAVY.add(endpoint)
    return endpoint


def computed(endpoint: Endpoint) -> Endpoint:
    """Mark an endpoint that computes in a process of its own, since its cost depends on the request."""
    COMPUTED.add(endpoint)
    return endpoint


def etag(moment: Any) -> str:
    """The `ETag` of an answer that is valid for a moment. It is weak, since encodings differ."""
    return f'W/"{moment}"'


def caching_headers(tag: str) -> dict[str, str]:
    """The caching headers of an answer."""
    return {"ETag": tag, "Cache-Control": "no-cache"}


def client_has(request: Request, tag: str) -> bool:
    """Whether the client has this answer already."""
    return tag in request.headers.get("if-none-match", "")


MOST_BYTES = 64 * 2**20
LEVEL = 5

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """Compressed JSON and its `ETag`."""

    tag: str
    packed: bytes

    def response(self, request: Request) -> Response:
        """The response: a 304 if the client has the answer already."""
        headers = {**caching_headers(self.tag), "Vary": "Accept-Encoding"}
        if client_has(request, self.tag):
            return Response(status_code=304, headers=headers)
        if self.needs_unpacking(request):
            return Response(gzip.decompress(self.packed), media_type="application/json", headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(self.packed, media_type="application/json", headers=headers)

    def needs_unpacking(self, request: Request) -> bool:
        """Whether the client does not accept gzip. Decompressing is slow enough for a thread."""
        is_had = client_has(request, self.tag)
        return not (is_had or "gzip" in request.headers.get("accept-encoding", ""))


class ResponseCache:
    """Recently used answers, up to `most` bytes. Safe to share between threads."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[Key, PackedAnswer] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key, moment: Any) -> PackedAnswer | None:
        """The cached answer of this moment, if there is one."""
        with self._lock:
            answer = self._kept.get(key)
            if answer is None or answer.tag != etag(moment):
                return None
            self._kept.move_to_end(key)
            return answer

    def get(self, key: Key, moment: Any, make: Callable[[], Any]) -> PackedAnswer:
        """The cached answer of this moment, or else a new one."""
        if (answer := self.find(key, moment)) is not None:
            return answer
        packed = PackedAnswer(etag(moment), gzip.compress(to_json(make(), inf_nan_mode="null"), LEVEL))
        with self._lock:
            self._drop(key)
            self._kept[key] = packed
            self._bytes += len(packed.packed)
            while self._bytes > self._most and len(self._kept) > 1:
                self._drop(next(iter(self._kept)))
        return packed

    def clear(self) -> None:
        with self._lock:
            self._kept.clear()
            self._bytes = 0

    def _drop(self, key: Key) -> None:
        if (old := self._kept.pop(key, None)) is not None:
            self._bytes -= len(old.packed)


@dataclass(frozen=True)
class ApiServices(Services):
    """The services of a store, and the parts that requests share."""

    policy: AccessPolicy = field(default_factory=AccessPolicy)
    groups: Mapping[str, Principal] = field(default_factory=dict)
    """The rights of a proxy's users, by group."""

    tuner_files: Sequence[str] = ()
    """Files with users' tuners."""

    dropped_messages: Callable[[], int | None] = lambda: None
    """How many messages workers have dropped; None if unknown. Raises what the broker's client raises."""

    single_flight: SingleFlight = field(init=False, default_factory=SingleFlight)
    """Shares equal work among concurrent requests."""

    turns: Turns = field(init=False, default_factory=Turns)
    """The turns of heavy requests."""

    places: Turns = field(init=False, default_factory=lambda: Turns(seconds=PLACE_SECONDS))
    """The turns of requests that compute in a process of their own."""

    large_bodies: Turns = field(init=False, default_factory=lambda: Turns(LARGE_AT_ONCE, LARGE_SECONDS))
    """The turns of requests with a large body."""

    answers: ResponseCache = field(init=False, default_factory=ResponseCache)
    """Cached large answers."""

    request_times: RequestTimes = field(init=False, default_factory=RequestTimes)
    """How long requests have waited."""

    def forget(self) -> None:
        super().forget()
        self.answers.clear()

    def compute(
        self, do: Callable[..., T], *given: Any, stream: Iterable[Any] | None = None, seconds: int | None = None
    ) -> T:
        """Run a pure function in a process with limits of its own, since its cost depends on the request.

        Raises `InvalidField` at a limit. seconds: by default the processor time of all computations.
        """
        options: dict[str, Any] = {"stream": stream} | ({} if seconds is None else {"limits": SandboxLimits(seconds)})
        try:
            return cast(T, run_in_sandbox(call_with_tuners, self.tuner_files, do, *given, **options))
        except LimitExceeded as problem:
            raise InvalidField("", str(problem)) from None

    @cached_property
    def doorkeeper(self) -> Doorkeeper:
        """Finds the principals of tokens."""
        return Doorkeeper(self.records, self.clock, self.groups)

    @cached_property
    def tail(self) -> Tail:
        """Follows the log."""
        return Tail(self.log, self.stopping.is_set)

    @cached_property
    def broadcasts(self) -> Broadcasts:
        """The live events of followed studies."""
        return Broadcasts(self.tail, self.stopping.is_set)

    @cached_property
    def failure_counts(self) -> FailureCounts:
        """Failures since the first look."""
        return FailureCounts(self.log)


def services(request: Request) -> ApiServices:
    """The services of the request's application."""
    held: ApiServices = request.app.state.services
    return held


async def _services(request: Request) -> ApiServices:
    return services(request)


ServicesDep = Annotated[ApiServices, Depends(_services)]
StudyPath = Annotated[str, PathParameter(description="the id of a study", examples=["digits-grid-3f9c1a"])]
TrialPath = Annotated[int, PathParameter(description="the number of a trial in its study, from 0 on", examples=[3])]


async def study_row(request: Request, study: StudyPath, use: ServicesDep, who: Who) -> StudyRecord:
    """The row of the study in the path. Raises `Unknown`, and `HttpProblem` if the caller may not change it."""
    row = await use.single_flight.do(("row", study), lambda: use.find(study))
    if not who.can_see(row.project):
        raise Unknown(f"there is no study {study}")
    check_owner(request, who, row.owner)
    return row


StudyRowDep = Annotated[StudyRecord, Depends(study_row)]
