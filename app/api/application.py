"""The FastAPI application over given services."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI

from app.api import errors, openapi
from app.api.routes import plans, replays, service, studies, trials
from app.api.services import Services
from app.api.shutdown import calling_on_signals
from app.grace import end_within

API = "/api/v1"
VERSION = "0.1.0"


def make_app(services: Services) -> FastAPI:
    """Every route, over these services."""
    app = FastAPI(
        title="stagetree",
        version=VERSION,
        lifespan=_lifespan,
        generate_unique_id_function=openapi.operation_id,
        redirect_slashes=False,
    )
    app.state.services = services
    errors.install(app)
    openapi.install(app)
    for router in (studies.router, trials.router, trials.batch, plans.router, replays.router, service.slots):
        app.include_router(router, prefix=API)
    app.include_router(service.router)
    return app


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    services: Services = app.state.services

    def stop() -> None:
        end_within(services.stop_seconds)
        services.stopping.set()

    with calling_on_signals(stop):
        yield
    services.stopping.set()
    services.close()
