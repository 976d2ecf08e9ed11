"""Runs on: any process that talks to the broker.

The Celery application. Messages are hints that carry ids; the database is the truth (docs/decisions/0003-broker.md).

Early acknowledgement on purpose: with Redis, late acknowledgement runs long tasks twice and never ends a chain.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import Celery, chain

from app.away import broker_is_away
from app.settings import settings
from app.workers.broker import PatientConnection, install, transport_options

logger = logging.getLogger(__name__)

SCHEDULER_QUEUE = "scheduler"
MOST_WAKE_UPS = 2
"""How many messages that something happened may wait for the scheduler."""

WAKE_UP_SECONDS = 60.0
"""After so long, a message that something happened says nothing any more: the scheduler has looked since."""

install()

celery = Celery("stagetree", broker=settings().broker_url, include=["app.workers.tasks", "app.workers.signals"])
celery.amqp.Connection = PatientConnection
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
    worker_enable_remote_control=False,  # else whoever can write to the broker can shut workers down
    worker_send_task_events=False,
    task_publish_retry_policy={"max_retries": 5, "interval_start": 0, "interval_step": 0.5, "interval_max": 2},
    broker_connection_retry_on_startup=True,
    broker_connection_max_retries=None,
    broker_channel_error_retry=True,
    broker_transport_options=transport_options(settings().patience_seconds),
    beat_scheduler="celery.beat.Scheduler",
    beat_schedule={
        "tick": {
            "task": "stagetree.tick",
            "schedule": settings().tick_seconds,
            "options": {"queue": SCHEDULER_QUEUE, "expires": settings().tick_seconds},
        }
    },
)


def wake_scheduler() -> None:
    """Tell the scheduler that something happened. If the broker is away, the next regular tick finds out anyway.

    A few messages that wait for it are as good as one more: so they cannot pile up while it is away.
    """
    try:
        with celery.connection_or_acquire() as connection:
            if _waiting(connection) < MOST_WAKE_UPS:
                options = {"queue": SCHEDULER_QUEUE, "expires": WAKE_UP_SECONDS, "retry": False}
                celery.send_task("stagetree.tick", connection=connection, **options)
    except Exception as error:
        if not broker_is_away(error):
            raise
        logger.info("the scheduler could not be told: the broker is away (%s)", error)


def _waiting(connection: Any) -> int:
    """How many messages wait for the scheduler."""
    declared = connection.default_channel.queue_declare(SCHEDULER_QUEUE, durable=True, auto_delete=False)
    return int(declared.message_count)


def publish(chain_id: str, stages: int, slot: str) -> None:
    """Send a chain of stage tasks to the queue of a slot. Raises what the broker's client raises, at once."""
    links = [
        celery.signature(
            "stagetree.stage", (chain_id, index), immutable=True, queue=slot, task_id=f"{chain_id}:{index}"
        )
        for index in range(stages)
    ]
    chain(*links).apply_async(retry=False)
