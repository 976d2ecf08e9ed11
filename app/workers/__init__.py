"""Runs on: any process.

The shell on the GPU side: `celery -A app.workers worker -Q gpu0 -c 1` is a slot, `-Q scheduler -B` the scheduler.
"""

from __future__ import annotations

from typing import Any

__all__ = ["celery"]


def __getattr__(name: str) -> Any:
    """The application, for `celery -A app.workers`; whoever imports a module beside it needs no Celery."""
    if name == "celery":
        from app.workers.celery_app import celery

        return celery
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
