"""Runs on: any process that talks to the broker.

The broker's connections have limits, so that a dead one is noticed within a lease; what is no message is dropped.
"""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable
from typing import Any

from kombu.connection import Connection
from kombu.exceptions import ContentDisallowed, DecodeError
from kombu.message import Message
from kombu.transport import TRANSPORT_ALIASES, _transport_cache
from kombu.transport import redis as kombu_redis

logger = logging.getLogger(__name__)

NOT_A_MESSAGE = (ValueError, TypeError, KeyError, IndexError, AttributeError)
"""What kombu raises for text that is not JSON, JSON that is no object, an object without the right fields."""


RETRY_SECONDS = 3.0
"""Between two looks for a broker that is away, at most: kombu would come to half a minute."""


class PatientConnection(Connection):
    """One that a worker waits for without end; a broker that is back is seen within a few seconds."""

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        sooner = {"interval_start": 1, "interval_max": RETRY_SECONDS}
        return super().ensure_connection(*args, **sooner, **options)  # type: ignore[no-untyped-call]


DROPPED = "something that is no message was in the queue, and is dropped"


class Channel(kombu_redis.Channel):
    """Whoever can write to Redis can write nonsense: it is dropped with a line in the log, and the worker goes on."""

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[no-untyped-call]
        except NOT_A_MESSAGE:
            logger.exception(DROPPED)
            return True

    def basic_consume(self, queue: Any, no_ack: Any, callback: Any, consumer_tag: Any, **options: Any) -> Any:
        checked = callback if no_ack else _acknowledging(callback)
        return super().basic_consume(queue, no_ack, checked, consumer_tag, **options)  # type: ignore[no-untyped-call]


def _acknowledging(callback: Callable[[Message], Any]) -> Callable[[Message], Any]:
    """What cannot be read is acknowledged as well: a worker that holds one message at a time would fetch no other."""

    def received(message: Message) -> Any:
        try:
            if message.errors:  # such as that of a bad compression, which looks like one of the network
                raise DecodeError(str(message.errors[0][1]))
            return callback(message)
        except (*NOT_A_MESSAGE, DecodeError, ContentDisallowed):
            logger.exception(DROPPED)
            if not message.acknowledged:
                message.ack()  # type: ignore[no-untyped-call]

    return received


class Transport(kombu_redis.Transport):
    Channel = Channel


def install() -> None:
    """Let every URL of Redis mean this transport, also where one was connected to before."""
    for scheme in ("redis", "rediss"):
        TRANSPORT_ALIASES[scheme] = f"{__name__}:Transport"
        _transport_cache.pop(scheme, None)


def transport_options(patience: float) -> dict[str, Any]:
    """A server that says nothing for `patience` seconds, or that a firewall forgot, is connected to anew.

    Who only sends a message tries once more at once, and gives up. What was fetched is not noted in Redis until it is
    acknowledged: a message is a hint, and whoever sent it to a worker that died sends it again.
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
    """Of TCP, as far as this system knows them; the last is for what was sent and is not acknowledged."""
    third = max(1, round(patience / 3))
    wanted = {
        "TCP_KEEPIDLE": third,
        "TCP_KEEPINTVL": max(1, third // 2),
        "TCP_KEEPCNT": 3,
        "TCP_USER_TIMEOUT": round(1000 * patience),
    }
    return {getattr(socket, name): value for name, value in wanted.items() if hasattr(socket, name)}
