"""What reads the store in a folder."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from app.cli.errors import fail
from app.cli.options import places
from app.events import Database, Plans, SqlRecords
from app.events.database import UnreadableSchema
from app.registry import Catalogue
from app.service.health import Checks, NotReady, check_schema
from app.service.plan_history import PlanHistories
from app.service.services import Services
from app.service.trial_logs import LogFolder
from app.settings import settings

Made = TypeVar("Made", bound=Services)


def services_of(folder: Path, make: Callable[..., Made], stop_seconds: float = 0.0, **more: Any) -> Made:
    """What reads the store in a folder. Ends with a message where there is none, or an older one.

    make, more: the kind of services, and what that takes besides.
    """
    url, checkpoints = places(folder)
    database = Database(url)
    try:
        check_schema(database)
    except UnreadableSchema as problem:
        fail(str(problem))
    except NotReady as problem:
        fail(f"{folder}: {problem}; `stagetree up --dir {folder}` brings it up to date, if it is of an older stagetree")
    records = SqlRecords(database)
    return make(
        records=records,
        plans=Plans(records.log),
        plan_histories=PlanHistories(records.log),
        trainers=Catalogue(()),
        wake_scheduler=lambda: None,
        clock=time.time,
        new_id=lambda: "",
        checks=Checks({}),
        lease_seconds=settings().lease_seconds,
        stop_seconds=stop_seconds,
        logs=LogFolder(folder / "logs"),
        checkpoints=checkpoints,
        **more,
    )
