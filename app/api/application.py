"""The FastAPI application over given services: its routes, its start and its stop."""

from __future__ import annotations

import asyncio
import gc
import logging
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware

import stagetree
from app.api import errors
from app.api.access import Gate, Guard
from app.api.counters import Stopwatch
from app.api.routes import (
    access,
    agent_tools,
    page,
    plans,
    service,
    studies,
    study_annotations,
    trial_requests,
    trials,
)
from app.api.services import ApiServices
from app.domain.evolve import collector_paused
from app.events import DatabaseUnavailable, PlanUnusable
from app.events.plans import MAX_IDLE_EVENTS
from app.process.garbage_collection import freeze_after_long_passes
from app.process.limits import end_within
from stagetree.system.memory import return_freed_memory

logger = logging.getLogger(__name__)

RECENT = 8
"""The number of newest studies whose plans are folded at the start."""

AGAIN_SECONDS = 5.0
"""The pause before an unavailable database is tried again."""

LONG = 10_000
"""The events of a plan from which on its objects are frozen for the garbage collector."""


def warm(use: ApiServices) -> None:
    """Fold the plans of the newest studies, one after the other, until the server must end.

    Open pages request their study at once, and a long log takes seconds to fold. Errors are only logged here, since a
    later request reports them. An unavailable database is reported once, and retried.
    """
    is_said = False
    while not use.stopping.is_set():
        try:
            _fold_newest(use)
            return
        except DatabaseUnavailable as problem:
            logger.log(logging.DEBUG if is_said else logging.WARNING, "the API waits: %s", problem)
            is_said = True
        except Exception as problem:
            logger.warning("plans are folded at the first request for them: %s", problem)
            return
        use.stopping.wait(AGAIN_SECONDS)


def _fold_newest(use: ApiServices) -> None:
    """Fold the newest plans, as far as they stay in memory: further ones would replace those."""
    with use.records.read() as rows:
        streams = dict.fromkeys(row.stream for row in rows.studies.page(limit=RECENT))
    events = 0
    for stream in streams:
        with suppress(PlanUnusable):
            if not use.stopping.is_set() and events <= MAX_IDLE_EVENTS:
                with collector_paused():  # it would traverse a plan's objects three times
                    if (version := use.plans.get(stream).version) > LONG:
                        gc.freeze()
                events += version


SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def call_on_signals(stop: Callable[[], None]) -> Iterator[None]:
    """Call `stop` on a stop signal within the block, before its handler, so that open streams end.

    Only the main thread receives signals. A server in another thread must end its streams otherwise.
    """
    handlers = {number: signal.getsignal(number) for number in SIGNALS}
    watched = [number for number in SIGNALS if callable(handlers[number])]

    def handle(number: int, frame: Any) -> None:
        stop()
        if callable(before := handlers[signal.Signals(number)]):
            before(number, frame)

    if threading.current_thread() is threading.main_thread():
        for number in watched:
            signal.signal(number, handle)
    try:
        yield
    finally:
        for number in watched:
            if signal.getsignal(number) is handle:
                signal.signal(number, handlers[number])


SWITCH_SECONDS = 0.0005
"""The interpreter's switch interval. With the default of 5 ms, a small answer waits for a large one at each hand-over
between threads."""

LARGE = 64 * 1024
"""Bytes that take a millisecond to compress. Larger answers are compressed in a thread."""


def make_app(services: ApiServices) -> FastAPI:
    """Every route, over these services."""
    app = FastAPI(
        title="stagetree",
        version=stagetree.__version__,
        lifespan=_lifespan,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    errors.install(app)
    errors.install_document(app)
    about_trials = (plans.pictures, trials.router, trials.batch)
    commands = (trial_requests.router, study_annotations.router)
    about_studies = (studies.router, trials.checkpoints, *about_trials, *commands, plans.router, plans.replays)
    for router in (*about_studies, service.slots, access.router, service.router):
        app.router.routes.extend(router.routes)
    app.router.routes.append(agent_tools.route)
    for router in (page.description, page.router):
        app.router.routes.extend(router.routes)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5, thread_minimum_size=LARGE)
    app.add_middleware(Gate, policy=services.policy, doorkeeper=services.doorkeeper)
    app.add_middleware(Guard, names=services.hosts)
    app.add_middleware(Stopwatch)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: ApiServices = app.state.services
    sys.setswitchinterval(SWITCH_SECONDS)
    return_freed_memory()

    def stop() -> None:
        end_within(services.stop_seconds)
        services.stopping.set()

    warming = asyncio.create_task(run_in_threadpool(warm, services))
    with call_on_signals(stop), freeze_after_long_passes():
        yield
    services.stopping.set()
    await warming
    services.close()
