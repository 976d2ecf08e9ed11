"""The shell on the GPU side: `celery -A app.workers worker -Q gpu0 -c 1` is a slot, `-Q scheduler -B` the scheduler."""

from app.workers.celery_app import celery

__all__ = ["celery"]
