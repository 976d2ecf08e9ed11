"""Runs on: the process that runs a worker's tasks: the thread that trains, or the tick's.

The two tasks: one stage on a slot, and one look at the log. Their arguments are ids, and both may run twice.
"""

from __future__ import annotations

from celery.exceptions import Ignore

from app.workers.celery_app import celery
from app.workers.process import worker


@celery.task(name="stagetree.stage")
def stage(chain: str, index: int) -> None:
    """Train one stage of a chain. A stale message ends here and sends nothing on."""
    if not worker.slot.run_stage(chain, index):
        raise Ignore


@celery.task(name="stagetree.tick")
def tick() -> None:
    """Look at what happened and decide what is next."""
    worker.scheduler.ticking.tick()
