"""The Celery application. Messages are hints that carry ids; the database is the truth (docs/decisions/0003-broker.md).

Messages are acknowledged early on purpose: with Redis, late acknowledgement runs long tasks twice and never ends a
chain.

The broker's connections have time-outs, so that a dead one is noticed within a lease. Malformed messages are dropped.

Runs on: any process that talks to the broker.
"""

from __future__ import annotations

import logging
import socket
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty
from typing import Any

from celery import Celery, chain
from kombu.connection import Connection
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.transport import TRANSPORT_ALIASES, _transport_cache
from kombu.transport import redis as kombu_redis
from redis import RedisError

from app.domain.slots import SCHEDULER
from app.outages import broker_is_unavailable
from app.settings import settings
from app.workers.threads import THREADS
from stagetree.backoff import Backoff

UNREADABLE = (DecodeError, ContentDisallowed)
"""Errors of kombu that are about a message, not about the broker."""

DROPPED_KEY = "dropped_messages"
"""In Redis, after the prefix of all keys."""

RETRY_SECONDS = 3.0
"""The longest pause between two attempts to reach the broker; kombu's default grows to half a minute."""


class PatientConnection(Connection):
    """Retries without end, at short intervals, so that a worker notices within seconds that the broker is back."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        sooner = {"interval_start": 1, "interval_max": RETRY_SECONDS}
        return super().ensure_connection(*args, **sooner, **options)  # type: ignore[no-untyped-call]


DROPPED_TEXT = "something that is no message was in the queue, and is dropped"


class Channel(kombu_redis.Channel):
    """Drops malformed messages, with a line in the log: any program with access to Redis can write them."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except Exception as error:
            if not _is_about_message(error):
                raise
            self.drop(error)
            return True

    def basic_consume(self, queue: Any, no_ack: Any, callback: Any, consumer_tag: Any, **options: Any) -> Any:
        checked = callback if no_ack else partial(self._call_or_drop, callback)
        return super().basic_consume(queue, no_ack, checked, consumer_tag, **options)  # type: ignore[no-untyped-call]

    def _call_or_drop(self, callback: Callable[[Message], Any], message: Message) -> Any:
        """Acknowledge unreadable messages too: a worker that prefetches one message would fetch no other."""
        try:
            if message.errors:  # such as that of a bad compression, which looks like one of the network
                raise DecodeError(str(message.errors[0][1]))
            return callback(message)
        except Exception as error:
            if not _is_about_message(error):
                raise
            if not message.acknowledged:
                message.ack()  # type: ignore[no-untyped-call]
            self.drop(error)

    def drop(self, error: Exception) -> None:
        """Log and count the message that raised it, in a line: they may come in floods. A broker need not count."""
        logger.warning("%s: %.200r", DROPPED_TEXT, error)
        with suppress(RedisError, OSError), self.conn_or_acquire() as client:
            client.incr(self._dropped_key)

    def dropped(self) -> int:
        """How many messages workers have dropped since Redis had no data. Raises what Redis' client raises."""
        with self.conn_or_acquire() as client:
            return int(client.get(self._dropped_key) or 0)

    @property
    def _dropped_key(self) -> str:
        return f"{self.global_keyprefix}{DROPPED_KEY}"


def _is_about_message(error: Exception) -> bool:
    """Whether a message raised it. Everything but an outage, since what a message can raise has no end."""
    return isinstance(error, UNREADABLE) or not (isinstance(error, Empty) or broker_is_unavailable(error))


class Transport(kombu_redis.Transport):
    Channel = Channel


def install() -> None:
    """Make every Redis URL use this transport, also where a connection was made before."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
        _transport_cache.pop(scheme, None)


def transport_options(patience: float) -> dict[str, Any]:
    """Reconnect when the server is silent for `patience` seconds, or when a firewall has dropped the connection.

    A sender retries once at once, and then gives up. Fetched messages are not kept in Redis until they are
    acknowledged: the scheduler sends the message again if the worker died.
    """
    return {
        "max_retries": 1,
        "interval_start": 0,
        "ack_emulation": False,
        "global_keyprefix": "stagetree:",
        "socket_timeout": patience,
        "socket_connect_timeout": min(10.0, patience),
        "socket_keepalive": True,
        "socket_keepalive_options": _keepalive(patience),
        "health_check_interval": max(1, round(patience / 2)),
    }


def _keepalive(patience: float) -> dict[int, int]:
    """TCP keepalive options that this system knows. The last one limits how long sent data may stay unacknowledged."""
    third = max(1, round(patience / 3))
    options = {
        "TCP_KEEPIDLE": third,
        "TCP_KEEPINTVL": max(1, third // 2),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(1000 * patience),
    }
    return {getattr(socket, name): value for name, value in options.items() if hasattr(socket, name)}


logger = logging.getLogger(__name__)

MAX_WAKE_UPS = 2
"""How many wake-up messages may wait for the scheduler."""

WAKE_UP_SECONDS = 60.0
"""A wake-up message expires after this time: the scheduler has ticked since."""

RANK_SECONDS = 60.0
"""The message that a slot is lent to a chain expires after this time."""

YIELD_SECONDS = 0.002
"""The next stage's message is sent this much later, so that sending it does not delay the stage that begins now."""

MAX_TRIES = 6
"""How often sending is tried while the broker is unavailable: for some seconds in all."""

install()

celery = Celery("stagetree", broker=settings().broker_url, include=["app.workers.tasks"])
celery.amqp.Connection = PatientConnection
celery.conf.update(
    task_serializer="json",
    accept_content=["json"],
    task_ignore_result=True,
    task_acks_late=False,
    task_reject_on_worker_lost=False,
    task_default_queue=SCHEDULER,
    worker_prefetch_multiplier=1,
    worker_concurrency=1,
    worker_consumer="app.workers.consumer:StrictConsumer",
    worker_proc_alive_timeout=60.0,
    worker_cancel_long_running_tasks_on_connection_loss=False,
    worker_hijack_root_logger=True,
    worker_enable_remote_control=False,  # otherwise a client of the broker could shut workers down
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
            "options": {"queue": SCHEDULER, "expires": settings().tick_seconds},
        }
    },
)


def wake_scheduler() -> None:
    """Tell the scheduler that something happened. If the broker is unavailable, the next regular tick notices anyway.

    A few waiting messages are as good as one more, so they cannot pile up while the scheduler is down.
    """
    try:
        with celery.connection_or_acquire() as connection:
            if _queued_messages(connection) < MAX_WAKE_UPS:
                options = {"queue": SCHEDULER, "expires": WAKE_UP_SECONDS, "retry": False}
                celery.send_task("stagetree.tick", connection=connection, **options)
    except Exception as error:
        if not broker_is_unavailable(error):
            raise
        logger.info("the scheduler could not be woken: the broker is unavailable (%s)", error)


def _queued_messages(connection: Any) -> int:
    """How many messages wait for the scheduler."""
    declared = connection.default_channel.queue_declare(SCHEDULER, durable=True, auto_delete=False)
    return int(declared.message_count)


def dropped_messages() -> int | None:
    """How many messages workers have dropped; None if the broker is not Redis.

    Raises what the broker's client raises, after about a second.
    """
    quick = {"socket_connect_timeout": 1, "socket_timeout": 1, "max_retries": 0}
    with celery.connection_for_read(transport_options=quick) as connection:
        channel = connection.default_channel
        return channel.dropped() if isinstance(channel, Channel) else None


def publish(chain_id: str, stages: int, slot: str) -> None:
    """Send a chain of stage tasks to a slot's queue. With `stages=0`, send only the message that the slot is lent to
    the chain.

    Raises what the broker's client raises, at once.
    """
    if not stages:
        celery.send_task("stagetree.rank", (chain_id,), queue=slot, expires=RANK_SECONDS, retry=False)
        return
    links = [
        celery.signature(
            "stagetree.stage", (chain_id, index), immutable=True, queue=slot, task_id=f"{chain_id}:{index}"
        )
        for index in range(stages)
    ]
    chain(*links).apply_async(retry=False)


def send_next(request: Any) -> None:
    """Send the task that follows in the Celery chain, once, while the current task still runs. Returns at once.

    request: of the current task. Celery sends the next task when this one ends; it then finds nothing left to send.
    """
    waiting, request.chain = request.chain, None
    if waiting:
        THREADS.spawn("message", partial(_send_next, waiting, request.id, request.root_id))


def _send_next(waiting: Sequence[Mapping[str, Any]], task: str, root: str) -> None:
    """waiting: the following tasks, in reverse order."""
    time.sleep(YIELD_SECONDS)
    *later, following = waiting
    for _ in Backoff(0.5, 2.0).attempts(most=MAX_TRIES):
        try:
            celery.signature(following).apply_async(chain=later, parent_id=task, root_id=root, retry=False)
            return
        except Exception as error:
            if not broker_is_unavailable(error):
                raise
            logger.warning("the message of the next stage waits: the broker is unavailable (%s)", error)
