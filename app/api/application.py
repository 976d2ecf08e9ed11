"""The FastAPI application over given services."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool
from starlette.middleware.gzip import GZipMiddleware

import stagetree
from app.api import errors, openapi
from app.api.requests.guard import Guard
from app.api.routes import checkpoints, description, page, pictures, plans, replays, service, studies, trials
from app.api.services import Services
from app.api.shutdown import calling_on_signals
from app.api.warming import warm
from app.gc_tuning import no_long_pass_twice
from app.grace import end_within

API = "/api/v1"
SWITCH_SECONDS = 0.0005
"""How long a thread keeps the interpreter from another; with the default of 5 ms, a small answer that is handed from
thread to thread waits for a large one each time."""

LARGE = 64 * 1024
"""Bytes that take a millisecond to compress: from here on, a thread does it, and nobody else waits."""


def make_app(services: Services) -> FastAPI:
    """Every route, over these services."""
    app = FastAPI(
        title="stagetree",
        version=stagetree.__version__,
        lifespan=_lifespan,
        generate_unique_id_function=openapi.operation_id,
        redirect_slashes=False,
        docs_url=None,
        redoc_url=None,
    )
    app.state.services = services
    errors.install(app)
    openapi.install(app)
    about_trials = (pictures.router, trials.router, trials.batch)
    about_studies = (studies.router, checkpoints.router, *about_trials, plans.router, replays.router)
    for router in (*about_studies, service.slots):
        app.include_router(router, prefix=API)
    app.include_router(service.router)
    app.include_router(description.router)
    app.include_router(page.router)
    app.add_middleware(GZipMiddleware, minimum_size=1000, compresslevel=5, thread_minimum_size=LARGE)
    app.add_middleware(Guard, names=services.hosts)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services
    sys.setswitchinterval(SWITCH_SECONDS)

    def stop() -> None:
        end_within(services.stop_seconds)
        services.stopping.set()

    warming = asyncio.create_task(run_in_threadpool(warm, services))
    with calling_on_signals(stop), no_long_pass_twice():
        yield
    services.stopping.set()
    await warming
    services.close()
