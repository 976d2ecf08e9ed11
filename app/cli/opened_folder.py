"""What reads the store in a folder, and whether a stack is at work there."""

from __future__ import annotations

import fcntl
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from app.cli.errors import fail
from app.cli.options import places
from app.events import Database, Plans, SqlRecords
from app.registry import Catalogue
from app.service.health import Checks, NotReady, check_schema
from app.service.plan_history import PlanHistories
from app.service.services import Services
from app.service.trial_logs import LogFolder
from app.settings import settings

Made = TypeVar("Made", bound=Services)


def is_at_work(folder: Path) -> bool:
    """Whether a stack has locked its folder."""
    lock = folder / "lock"
    return lock.exists() and _is_held(lock)


def _is_held(lock: Path) -> bool:
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def services_of(folder: Path, make: Callable[..., Made], stop_seconds: float = 0.0, **more: Any) -> Made:
    """What reads the store in a folder. Ends with a message where there is none, or an older one.

    make, more: the kind of services, and what that takes besides.
    """
    url, checkpoints = places(folder)
    database = Database(url)
    try:
        check_schema(database)
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
