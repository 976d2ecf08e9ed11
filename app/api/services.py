"""The parts that a route may use, and how it gets them.

Work that many clients ask for at once is done once, in turns or in a process apart, and kept while nothing happens. A
kept answer is JSON, compressed once, and its `ETag` is the moment that it is true of: a client asks each time whether
its copy is still true, and is told so with a 304.
"""

from __future__ import annotations

import asyncio
import gzip
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from threading import Lock
from typing import Annotated, Any, TypeVar, cast
from weakref import WeakValueDictionary

from fastapi import Depends, Request, Response
from fastapi import Path as PathParameter
from pydantic_core import to_json
from starlette.concurrency import run_in_threadpool

from app.api.access import AccessPolicy, Who, check_owner
from app.api.streaming import Broadcasts, Tail
from app.domain.terms import Principal, Unknown
from app.events import StudyRecord
from app.process.sandbox import LimitExceeded, run_in_sandbox
from app.registry import register
from app.service.access import Doorkeeper
from app.service.services import InvalidField, Services

T = TypeVar("T")


class SingleFlight:
    """Whoever asks shares what begins after that, and so is answered as if nobody else asked. Lives in one event loop.

    Pages that follow a study all ask for it when something happens there.
    """

    def __init__(self) -> None:
        self._running = dict[Hashable, asyncio.Task[Any]]()
        self._next = dict[Hashable, asyncio.Task[Any]]()

    async def do(self, key: Hashable, work: Callable[[], T]) -> T:
        """What the work comes to, in a thread; `what` is the name of equal work. Raises what the work raises."""
        task = self._next.get(key)
        if task is None:
            task = self._next[key] = asyncio.create_task(self._after(self._running.get(key), key, work))
        return cast(T, await asyncio.shield(task))  # the others wait on where one goes away

    async def _after(self, before: asyncio.Task[Any] | None, key: Hashable, work: Callable[[], T]) -> T:
        if before is not None:
            await asyncio.wait([before])
        self._running[key] = self._next.pop(key)
        try:
            return await run_in_threadpool(work)
        finally:
            if key not in self._next:
                del self._running[key]


TURN_SECONDS = 30.0
"""Whoever has waited for so long goes ahead, as if there were no turns."""

AT_ONCE = 2
"""Threads share one lock of the interpreter: more of them at once are no faster, and hold up small requests."""

Endpoint = TypeVar("Endpoint", bound=Callable[..., Any])
_heavy: set[Callable[..., Any]] = set()


class StudyQueue:
    """One at a time about each study, and a few at a time in all: a study many ask about holds up no other.

    A request waits for its turn in the event loop, and takes no thread from the others.
    """

    def __init__(self, at_once: int = AT_ONCE, seconds: float = TURN_SECONDS) -> None:
        self._all, self._seconds = asyncio.Semaphore(at_once), seconds
        self._of = WeakValueDictionary[str, asyncio.Lock]()

    @asynccontextmanager
    async def turn(self, study: str) -> AsyncIterator[None]:
        """The block is run when it is its turn, in the order in which they came about a study."""
        of_study = self._of.get(study)
        if of_study is None:
            of_study = self._of[study] = asyncio.Lock()
        async with AsyncExitStack() as held:
            with suppress(TimeoutError):
                async with asyncio.timeout(self._seconds):
                    await held.enter_async_context(of_study)
                    await held.enter_async_context(self._all)
            yield


def compute_in_process(tuner_files: Sequence[str], do: Callable[..., T], *given: Any) -> T:
    """The result of a pure function of a module, in a bounded process of its own. Raises `InvalidField`."""
    try:
        return cast(T, run_in_sandbox(_with_registered_tuners, tuner_files, do, *given))
    except LimitExceeded as problem:
        raise InvalidField("", str(problem)) from None


def _with_registered_tuners(files: Sequence[str], do: Callable[..., T], *given: Any) -> T:
    """There, where those that users have written are not registered yet."""
    register(files)
    return do(*given)


def heavy(endpoint: Endpoint) -> Endpoint:
    """Its answer takes time and memory with the size of a plan, unless it is asked for without trials."""
    _heavy.add(endpoint)
    return endpoint


def is_heavy(endpoint: Callable[..., Any]) -> bool:
    return endpoint in _heavy


def etag(moment: Any) -> str:
    """The `ETag` of what is true as of a moment: weak, since it says nothing of how the answer is written."""
    return f'W/"{moment}"'


def caching_headers(tag: str) -> dict[str, str]:
    """What an answer says of itself."""
    return {"ETag": tag, "Cache-Control": "no-cache"}


def client_has(request: Request, tag: str) -> bool:
    """Whether whoever asks has that answer already."""
    return tag in request.headers.get("if-none-match", "")


MOST_BYTES = 64 * 2**20
LEVEL = 5

Key = tuple[Any, ...]


@dataclass(frozen=True, slots=True)
class PackedAnswer:
    """JSON, compressed, and its name."""

    tag: str
    packed: bytes

    def to(self, request: Request) -> Response:
        """What is sent: nothing but the name where whoever asks has it already."""
        headers = {**caching_headers(self.tag), "Vary": "Accept-Encoding"}
        if client_has(request, self.tag):
            return Response(status_code=304, headers=headers)
        if self.is_to_be_unpacked(request):
            return Response(gzip.decompress(self.packed), media_type="application/json", headers=headers)
        headers["Content-Encoding"] = "gzip"
        return Response(self.packed, media_type="application/json", headers=headers)

    def is_to_be_unpacked(self, request: Request) -> bool:
        """Whether whoever asks cannot read it as it is, which is some work."""
        is_had = client_has(request, self.tag)
        return not (is_had or "gzip" in request.headers.get("accept-encoding", ""))


class ResponseCache:
    """Those that were asked for last, up to `most` bytes. Safe to share between threads."""

    def __init__(self, most: int = MOST_BYTES) -> None:
        self._most, self._bytes = most, 0
        self._kept: OrderedDict[Key, PackedAnswer] = OrderedDict()
        self._lock = Lock()

    def find(self, key: Key, moment: Any) -> PackedAnswer | None:
        """The answer that is known under a key, if it is of this moment."""
        with self._lock:
            answer = self._kept.get(key)
            if answer is None or answer.tag != etag(moment):
                return None
            self._kept.move_to_end(key)
            return answer

    def get(self, key: Key, moment: Any, make: Callable[[], Any]) -> PackedAnswer:
        """The answer that is known under a key, if it is of this moment; or else as it is made now."""
        if (answer := self.find(key, moment)) is not None:
            return answer
        packed = PackedAnswer(etag(moment), gzip.compress(to_json(make(), inf_nan_mode="null"), LEVEL))
        with self._lock:
            self._keep(key, packed)
        return packed

    def _keep(self, key: Key, answer: PackedAnswer) -> None:
        self._drop(key)
        self._kept[key] = answer
        self._bytes += len(answer.packed)
        while self._bytes > self._most and len(self._kept) > 1:
            self._drop(next(iter(self._kept)))

    def _drop(self, key: Key) -> None:
        if (old := self._kept.pop(key, None)) is not None:
            self._bytes -= len(old.packed)


@dataclass(frozen=True)
class ApiServices(Services):
    """What reads a store, and what many requests share. policy, groups: access control. tuner_files: with the tuners
    that users have written."""

    policy: AccessPolicy = field(default_factory=AccessPolicy)
    groups: Mapping[str, Principal] = field(default_factory=dict)
    tuner_files: Sequence[str] = ()

    def compute(self, do: Callable[..., T], *given: Any) -> T:
        """In a process of its own: a client decides how much there is to compute. Raises `InvalidField`."""
        return compute_in_process(self.tuner_files, do, *given)

    @cached_property
    def doorkeeper(self) -> Doorkeeper:
        """Who knows tokens."""
        return Doorkeeper(self.records, self.clock, self.groups)

    @cached_property
    def tail(self) -> Tail:
        """Who follows the log."""
        return Tail(self.log, self.stopping.is_set)

    @cached_property
    def broadcasts(self) -> Broadcasts:
        """What happens in the studies that are followed."""
        return Broadcasts(self.tail, self.stopping.is_set)

    @cached_property
    def single_flight(self) -> SingleFlight:
        """What many ask for at the same moment."""
        return SingleFlight()

    @cached_property
    def turns(self) -> StudyQueue:
        """Who may compute a large answer."""
        return StudyQueue()

    @cached_property
    def answers(self) -> ResponseCache:
        """Large answers that may be asked for again."""
        return ResponseCache()


def services(request: Request) -> ApiServices:
    """The services of the application that the request came to."""
    held: ApiServices = request.app.state.services
    return held


async def _services(request: Request) -> ApiServices:
    return services(request)


ServicesDep = Annotated[ApiServices, Depends(_services)]
StudyPath = Annotated[str, PathParameter(description="the id of a study", examples=["digits-grid-3f9c1a"])]
TrialPath = Annotated[int, PathParameter(description="the number of a trial in its study, from 0 on", examples=[3])]


async def study_row(request: Request, study: StudyPath, use: ServicesDep, who: Who) -> StudyRecord:
    """The row of the study in the path. Raises `Unknown`, and `HttpProblem` where another may not change it."""
    row = await use.single_flight.do(("row", study), lambda: use.find(study))
    if not who.sees(row.project):
        raise Unknown(f"there is no study {study}")
    check_owner(request, who, row.owner)
    return row


StudyRowDep = Annotated[StudyRecord, Depends(study_row)]
