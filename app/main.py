"""The composition root of the HTTP side: `uvicorn --factory app.main:create_app`."""

from __future__ import annotations

from functools import partial
from time import time
from uuid import uuid4

from fastapi import FastAPI
from kombu import Connection

from app.api.application import make_app
from app.api.health import check_schema
from app.api.services import Services
from app.events.database import Database
from app.events.records import Records, SqlRecords
from app.events.transact import Plans
from app.registry import describe
from app.settings import Settings
from app.settings import settings as read_settings
from app.tuner_files import register
from app.workers.celery_app import nudge


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application on the database, broker and trainers of `settings`, by default those of the environment.

    Raises `TrainerFileError` and `TunerFileError`. It does not touch the schema: `stagetree up`, or the migrations,
    must have made it.
    """
    settings = settings or read_settings()
    database = Database(settings.database_url)
    records = SqlRecords(database)
    register(settings.tuner_files)
    services = Services(
        records=records,
        plans=Plans(records.log),
        trainers=describe(settings.trainer_files),
        nudge=nudge,
        clock=time,
        new_id=lambda: uuid4().hex,
        checks={
            "database": lambda: _ping_database(records),
            "schema": partial(check_schema, database),
            "broker": partial(_ping_broker, settings.broker_url),
        },
    )
    return make_app(services)


def _ping_database(records: Records) -> None:
    records.log.head()


def _ping_broker(url: str) -> None:
    options = {"socket_connect_timeout": 1, "socket_timeout": 1, "max_retries": 0}
    with Connection(url, connect_timeout=1, transport_options=options) as connection:
        connection.default_channel.close()
