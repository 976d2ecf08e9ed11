"""The Celery application. Messages are hints that carry ids; the database is the truth (docs/decisions/0003-broker.md).

Early acknowledgement on purpose: with Redis, late acknowledgement runs long tasks twice and never ends a chain.
"""

from __future__ import annotations

import logging

from celery import Celery, chain
from kombu.exceptions import OperationalError

from app.settings import settings

logger = logging.getLogger(__name__)

SCHEDULER_QUEUE = "scheduler"

celery = Celery("stagetree", broker=settings().broker_url, include=["app.workers.tasks", "app.workers.signals"])
celery.conf.update(
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,
    task_reject_on_worker_lost=False,
    task_default_queue=SCHEDULER_QUEUE,
    worker_disable_prefetch=settings().broker_url.startswith("redis"),
    worker_prefetch_multiplier=1,
    worker_concurrency=1,
    worker_proc_alive_timeout=60.0,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=True,
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,
    broker_transport_options={
        "visibility_timeout": 3600,
        "socket_keepalive": True,
        "socket_connect_timeout": 10,
        "health_check_interval": 25,
        "global_keyprefix": "stagetree:",
    },
    beat_scheduler="celery.beat.Scheduler",
    beat_schedule={
        "tick": {
            "task": "stagetree.tick",
            "schedule": settings().tick_seconds,
            "options": {"queue": SCHEDULER_QUEUE, "expires": settings().tick_seconds},
        }
    },
)


def nudge() -> None:
    """Tell the scheduler that something happened. If the broker is away, the next regular tick finds out anyway."""
    try:
        celery.send_task("stagetree.tick", queue=SCHEDULER_QUEUE, retry=False)
    except (OperationalError, OSError):
        logger.info("the scheduler could not be told: the broker is away")


def publish(chain_id: str, stages: int, slot: str) -> None:
    """Send a chain of stage tasks to the queue of a slot."""
    links = [
        celery.signature(
            "stagetree.stage", (chain_id, index), immutable=True, queue=slot, task_id=f"{chain_id}:{index}"
        )
        for index in range(stages)
    ]
    chain(*links).apply_async()
