"""What this process counts for `/metrics`: how long requests wait for their answers, by route, and failures."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import inf
from threading import Lock
from time import monotonic

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app.domain.terms import FAILURES
from app.events import EventLog

BOUNDS = (0.01, 0.05, 0.25, 1.0, 5.0, 30.0, inf)
"""In seconds."""

REFUSED = "none"
"""The route of requests that reach none."""


@dataclass(slots=True)
class Histogram:
    """counts: of values up to each of `BOUNDS` and above the one before."""

    counts: list[int] = field(default_factory=lambda: [0] * len(BOUNDS))
    total: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.total += seconds


class RequestTimes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._routes, self._lock = dict[str, Histogram](), Lock()

    def add(self, route: str, seconds: float) -> None:
        with self._lock:
            self._routes.setdefault(route, Histogram()).add(seconds)

    def histograms(self) -> Mapping[str, Histogram]:
        """By route; a copy."""
        with self._lock:
            return {name: Histogram(list(each.counts), each.total) for name, each in sorted(self._routes.items())}


class Stopwatch:
    """Measures each request until its answer begins, for the application's services: a stream of events may last for
    days.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begun_at = monotonic()

        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                times: RequestTimes = scope["app"].state.services.request_times
                times.add(getattr(scope.get("route"), "name", REFUSED), monotonic() - begun_at)
            await send(message)

        await self._app(scope, receive, sent)


class FailureCounts:
    """Counts failures from when this server first looked, since its counters begin anew with each process.

    Reads each event of the log once. Safe to share between threads.
    """

    def __init__(self, log: EventLog) -> None:
        self._log, self._lock = log, Lock()
        self._position: int | None = None
        self._counts = Counter[str]()

    def look(self) -> Mapping[str, int]:
        """How often each kind has happened by now. Raises `DatabaseUnavailable`, `LostRace`."""
        with self._lock:
            head = self._log.head()
            if self._position is not None:
                self._counts.update(self._log.count_failures(self._position, head))
            self._position = head
            return {str(kind): self._counts[kind] for kind in FAILURES}
