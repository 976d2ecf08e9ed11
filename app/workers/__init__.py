"""The Celery side: `celery -A app.workers worker -Q gpu0 -c 1` is a slot, `-Q scheduler -B` the scheduler.

Runs on: any process.
"""

from __future__ import annotations

from typing import Any

__all__ = ["celery"]


def __getattr__(name: str) -> Any:
    """Import the application only when `celery -A app.workers` asks for it: other modules of this package work without
    Celery.
    """
    if name == "celery":
        from app.workers.celery_app import celery

        return celery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
