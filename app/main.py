"""Builds the HTTP application: `uvicorn --factory app.main:create_app`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from time import time
from uuid import uuid4

from fastapi import FastAPI
from kombu.connection import Connection

from app.api.access import AccessPolicy
from app.api.application import make_app
from app.api.services import ApiServices
from app.events import Plans
from app.events.database import Database
from app.events.sql_log import SqlRecords
from app.events.trial_logs import TrialLogTable
from app.outages import redact, store_is_unavailable
from app.process.logs import write_json
from app.registry import Catalogue
from app.service.health import Checks, NotReady, check_scheduler, check_schema, check_slots, check_space, check_writable
from app.service.plan_history import PlanHistories
from app.service.trial_logs import LogFolder
from app.settings import Settings
from app.settings import settings as read_settings
from app.tuner_files import register
from app.workers.celery_app import dropped_messages, wake_scheduler
from app.workers.threads import Notifier
from stagetree.sinks.addresses import Configured

CHECK_PATIENCE_SECONDS = 5.0
LATE_TICKS = 4
"""A scheduler that missed this many ticks, and as many seconds more, counts as not running."""


def create_app(settings: Settings | None = None) -> FastAPI:
    """The application with the database, broker and trainers of `settings`, by default the environment's.

    Raises `TrainerFileError` and `TunerFileError`. The schema must exist: `stagetree up` or the migrations create it.
    """
    settings = settings or read_settings()
    if settings.log_format == "json":
        logging.basicConfig()  # uvicorn has installed its handlers already; other loggers write to stderr
        write_json(map(logging.getLogger, ("", "uvicorn", "uvicorn.access")))
    database = Database(settings.database_url, patience=settings.patience_seconds)
    records = SqlRecords(database)
    register(settings.tuner_files)
    trainers = Catalogue(settings.trainer_files)
    trainers.check()
    plan_histories = PlanHistories(records.log)
    plans = Plans(records.log, on_fold=plan_histories.take, on_loss=lambda: services.forget())
    services = ApiServices(
        tuner_files=settings.tuner_files,
        records=records,
        plans=plans,
        plan_histories=plan_histories,
        trainers=trainers,
        limits=settings.limits,
        wake_scheduler=Notifier(wake_scheduler).notify,
        clock=time,
        new_id=lambda: uuid4().hex,
        hosts=settings.host_names,
        logs=LogFolder(settings.logs_folder) if database.is_file else TrialLogTable(database),
        checkpoints=settings.checkpoints,
        study_files=settings.study_folders,
        proofs=settings.proofs,
        sinks=Configured.parse(settings.sinks),
        policy=AccessPolicy(settings.access, settings.proxy_networks),
        groups=settings.principals_by_group,
        checks=Checks(_checks(settings, plans)),
        dropped_messages=dropped_messages,
        lease_seconds=settings.lease_seconds,
        stop_seconds=settings.stop_seconds,
    )
    return make_app(services)


def _checks(settings: Settings, plans: Plans) -> Mapping[str, Callable[[], None]]:
    """The readiness checks. They use connections of their own, so that they take none from requests."""
    database = Database(settings.database_url, patience=CHECK_PATIENCE_SECONDS)
    records, late = SqlRecords(database), LATE_TICKS * (settings.tick_seconds + 1)
    return {
        "database": partial(_look_at_database, database, records, plans),
        "schema": partial(check_schema, database),
        "broker": partial(_ping_broker, settings.broker_url),
        "store": partial(_look_at_store, settings.checkpoints),
        "scheduler": partial(check_scheduler, records, late),
        "slots": partial(check_slots, records, settings.lease_seconds),
    }


def _look_at_database(database: Database, records: SqlRecords, plans: Plans) -> None:
    """Check that it can be written, has all events that were read and, if it is a file, can grow."""
    check_writable(records)
    plans.check_log()
    if database.is_file and database.url.database:
        check_space(Path(database.url.database))


def _ping_broker(url: str) -> None:
    options = {"socket_connect_timeout": 1, "socket_timeout": 1, "max_retries": 0}
    try:
        with Connection(url, connect_timeout=1, transport_options=options) as connection:  # type: ignore[no-untyped-call]
            connection.default_channel.close()
    except Exception as error:
        raise NotReady(redact(str(error) or type(error).__name__, url)) from error


def _look_at_store(root: str) -> None:
    """Check that it answers and, if it is a folder, has room. A missing folder or prefix is fine."""
    from fsspec.core import url_to_fs  # slow to import

    try:
        filesystem, path = url_to_fs(root, use_listings_cache=False) if "://" in root else url_to_fs(root)
        filesystem.info(path)
    except Exception as error:
        if not isinstance(error, FileNotFoundError) or store_is_unavailable(error):
            raise NotReady(str(error) or type(error).__name__) from error
    if "://" not in root:
        check_space(Path(root))
