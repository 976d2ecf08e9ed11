"""The broker's connections on a real Redis: nonsense, merging, limits."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from kombu import Connection, Consumer, Queue
from kombu.transport import get_transport_cls
from proxies import Proxy
from redis import Redis
from stacks import wait_for

from app.embedded import redis_server
from app.workers.broker import install, transport_options

WAKES = """
from app.workers.celery_app import wake_scheduler
for _ in range(4):
    wake_scheduler()
"""


@pytest.fixture
def socket() -> Iterator[str]:
    """The path at which a Redis listens."""
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        path = f"{folder}/redis.sock"
        command = [redis_server(), "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as server:
            wait_for("Redis", lambda: Path(path).exists())
            yield path
            server.terminate()


def test_what_is_no_message_is_dropped_and_the_next_one_arrives(socket: str) -> None:
    get_transport_cls("redis")  # somebody was quicker
    install()
    url, received = f"redis+socket://{socket}", list[object]()
    with Connection(url, transport_options=transport_options(5.0)) as connection:
        queue = Queue("gpu0", routing_key="gpu0")
        redis = Redis(unix_socket_path=socket)
        producer = connection.Producer()
        with Consumer(connection, [queue], callbacks=[lambda body, message: received.append(body)], no_ack=True):
            for nonsense in (
                b"not json",
                b"7",
                b"null",
                b"{}",
                b'{"body": "%", "properties": {}}',
            ):
                redis.lpush("stagetree:gpu0", nonsense)
            producer.publish({"chain": 1}, routing_key="gpu0", declare=[queue])
            for _ in range(20):
                if not received:
                    connection.drain_events(timeout=5)
    assert received == [{"chain": 1}]


def test_a_system_without_one_of_the_options_of_tcp_does_with_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    every = transport_options(5.0)["socket_keepalive_options"]
    monkeypatch.delattr("socket.TCP_USER_TIMEOUT")
    assert len(transport_options(5.0)["socket_keepalive_options"]) == len(every) - 1


def wake_scheduler(url: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STAGETREE_BROKER_URL": url, "STAGETREE_LEASE_SECONDS": "3"}
    command = [sys.executable, "-c", WAKES]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=True)


def test_wake_ups_do_not_pile_up(socket: str) -> None:
    wake_scheduler(f"redis+socket://{socket}")
    assert Redis(unix_socket_path=socket).llen("stagetree:scheduler") == 2


def test_a_broker_that_is_away_is_no_error() -> None:
    ended = wake_scheduler("redis://127.0.0.1:1/0")
    assert "Traceback" not in ended.stderr


def test_a_broker_that_says_nothing_is_given_up(socket: str) -> None:
    proxy = Proxy(socket)
    proxy.freeze()
    wake_ups = WAKES.replace("20", "2")
    environment = {
        **os.environ,
        "STAGETREE_BROKER_URL": f"redis://127.0.0.1:{proxy.port}/0",
        "STAGETREE_LEASE_SECONDS": "3",
    }
    subprocess.run([sys.executable, "-c", wake_ups], env=environment, timeout=120, check=True)
    proxy.close()
