"""The broker's connections on a real Redis: nonsense, merging, limits."""

from __future__ import annotations

import base64
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from threading import Timer

import pytest
from kombu import Connection, Consumer, Message, Queue
from kombu.exceptions import OperationalError
from kombu.transport import get_transport_cls
from proxies import Proxy
from redis import ConnectionError as RedisError
from redis import Redis
from stacks import PATIENCE, accepts_connections, wait_for

from app.embedded.machine import redis_server
from app.workers.celery_app import celery, install, transport_options

DEEP = b"[" * 100_000
"""JSON that Python cannot read without a `RecursionError`."""

WAKES = """
from app.workers.celery_app import wake_scheduler
for _ in range(4):
    wake_scheduler()
"""

PUBLISHES = """
from app.workers.celery_app import publish
publish("a", 2, "gpu0")
publish("a", 0, "gpu1")
"""

SENDS_NEXT = """
import threading
from celery.app.task import Context
from app.workers.celery_app import send_next
request = Context(id="a:0", root_id="a:0", chain={waiting})
send_next(request)
assert not request.chain, "Celery would send it once more"
send_next(request)
for thread in threading.enumerate():
    if thread.name == "message":
        thread.join()
"""


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The path at which a Redis listens."""
    with tempfile.TemporaryDirectory(prefix="st-") as folder:
        path = f"{folder}/redis.sock"
        command = [redis_server(), "--port", "0", "--unixsocket", path, "--save", "", "--dir", folder]
        with subprocess.Popen(command, stdout=subprocess.DEVNULL) as process:
            try:
                with Redis(unix_socket_path=path) as redis:
                    wait_for("Redis", lambda: accepts_connections(redis))
                yield path
            finally:
                process.terminate()


@pytest.fixture
def socket(server: str) -> str:
    """The same, with an empty Redis."""
    Redis(unix_socket_path=server).flushall()
    return server


def test_nonsense_is_dropped_and_the_next_message_arrives(socket: str) -> None:
    get_transport_cls("redis")  # another worker took it first
    install()
    url, received = f"redis+socket://{socket}", list[object]()
    with Connection(url, transport_options=transport_options(PATIENCE)) as connection:
        queue = Queue("gpu0", routing_key="gpu0")
        redis = Redis(unix_socket_path=socket)
        producer = connection.Producer()
        with Consumer(connection, [queue], callbacks=[lambda body, message: received.append(body)], no_ack=True):
            for nonsense in (b"not json", b"7", b"null", b"{}", b'{"body": "%", "properties": {}}', DEEP):
                redis.lpush("stagetree:gpu0", nonsense)
            producer.publish({"chain": 1}, routing_key="gpu0", declare=[queue])
            for _ in range(20):
                if not received:
                    connection.drain_events(timeout=PATIENCE)
    assert received == [{"chain": 1}]
    assert int(redis.get("stagetree:dropped_messages") or 0) == 6


def message(**fields: object) -> bytes:
    """A message without a task."""
    about = {"delivery_tag": "x", "body_encoding": "base64", "delivery_info": {"exchange": "", "routing_key": "gpu0"}}
    body = {"body": "e30=", "content-type": "application/json", "content-encoding": "utf-8", "headers": {}}
    return json.dumps(body | {"properties": about} | fields).encode()


@pytest.mark.parametrize(
    "nonsense",
    [
        b"7",
        DEEP,
        message(body="abc"),
        message(body=base64.b64encode(DEEP).decode()),
        message(body=base64.b64encode(b"\xff\xfe").decode()),
        message(properties={"delivery_tag": "x", "delivery_info": {"exchange": "", "routing_key": "gpu0"}}, body="abc"),
        message(**{"content-type": "application/x-python-serialize"}),
        message(headers={"compression": "bzip2"}),
        message(headers={"is": "refused"}),
        message(headers={"is": "refused", "late": True}),
        message(headers={"is": "deep"}),
    ],
)
def test_a_worker_with_a_prefetch_of_one_receives_messages_after_nonsense(socket: str, nonsense: bytes) -> None:
    """Such a message was never acknowledged: the worker fetched no other one, and its heartbeat reported no problem."""
    install()
    received = list[object]()

    def receive(body: object, message: Message) -> None:
        if message.headers.get("late"):
            message.ack()
        if message.headers.get("is") == "deep":
            raise RecursionError("maximum recursion depth exceeded")
        if message.headers.get("is"):
            raise ValueError("the content cannot be decoded")
        received.append(body)
        message.ack()

    with Connection(f"redis+socket://{socket}", transport_options=transport_options(PATIENCE)) as connection:
        queue = Queue("gpu0", routing_key="gpu0")
        with Consumer(connection, [queue], callbacks=[receive], prefetch_count=1) as consumer:
            Redis(unix_socket_path=socket).lpush("stagetree:gpu0", nonsense)
            connection.Producer().publish({"chain": 1}, routing_key="gpu0", declare=[queue])
            for _ in range(5):
                if {"chain": 1} not in received:
                    connection.drain_events(timeout=PATIENCE)
            assert received[-1] == {"chain": 1} and consumer.channel.qos.can_consume()
            assert consumer.channel.dropped() == 1


@pytest.mark.parametrize("error", [RedisError("gone"), OSError("gone")])
def test_an_outage_is_no_message(socket: str, error: Exception) -> None:
    """Celery connects again."""
    install()

    def fail(body: object, message: Message) -> None:
        raise error

    with Connection(f"redis+socket://{socket}", transport_options=transport_options(PATIENCE)) as connection:
        queue = Queue("gpu0", routing_key="gpu0")
        with Consumer(connection, [queue], callbacks=[fail]) as consumer:
            connection.Producer().publish({"chain": 1}, routing_key="gpu0", declare=[queue])
            with pytest.raises(type(error), match="gone"):
                connection.drain_events(timeout=PATIENCE)
            assert consumer.channel.dropped() == 0


def test_nonsense_is_dropped_without_the_right_to_count(socket: str) -> None:
    """A Redis with an older list of rights."""
    install()
    redis, received = Redis(unix_socket_path=socket), list[object]()
    redis.acl_setuser("worker", enabled=True, passwords=["+any"], keys=["stagetree:gpu*"], commands=["+@all"])
    url = f"redis+socket://worker:any@{socket}"
    with Connection(url, transport_options=transport_options(PATIENCE)) as connection:
        queue = Queue("gpu0", routing_key="gpu0")
        with Consumer(connection, [queue], callbacks=[lambda body, message: received.append(body)], no_ack=True):
            redis.lpush("stagetree:gpu0", b"7", message(body=base64.b64encode(b'{"chain": 1}').decode()))
            for _ in range(5):
                if not received:
                    connection.drain_events(timeout=PATIENCE)
    assert received == [{"chain": 1}]


def test_a_fetched_message_is_not_stored_and_an_unacknowledged_one_returns(socket: str) -> None:
    """That saves two round trips for each message; a message lost with a killed worker is sent again."""
    install()
    redis, received = Redis(unix_socket_path=socket), list[object]()
    with Connection(f"redis+socket://{socket}", transport_options=transport_options(PATIENCE)) as connection:
        queue = Queue("gpu0", routing_key="gpu0")
        connection.Producer().publish({"chain": 1}, routing_key="gpu0", declare=[queue])
        with Consumer(connection, [queue], callbacks=[lambda body, message: received.append(message)]):
            connection.drain_events(timeout=PATIENCE)
        assert received and not redis.exists("stagetree:gpu0", "stagetree:unacked", "stagetree:unacked_index")
    assert redis.llen("stagetree:gpu0") == 1


def test_missing_tcp_options_of_a_system_are_skipped(monkeypatch: pytest.MonkeyPatch) -> None:
    every = transport_options(5.0)["socket_keepalive_options"]
    monkeypatch.delattr("socket.TCP_USER_TIMEOUT")
    assert len(transport_options(5.0)["socket_keepalive_options"]) == len(every) - 1


def wake_scheduler(url: str, lease: str = "60") -> subprocess.CompletedProcess[str]:
    return run(WAKES, url, lease)


def run(program: str, url: str, lease: str = "60") -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "STAGETREE_BROKER_URL": url, "STAGETREE_LEASE_SECONDS": lease}
    command = [sys.executable, "-c", program]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=True)


def test_the_number_of_dropped_messages_can_be_read(socket: str) -> None:
    counts = "from app.workers.celery_app import dropped_messages; print(dropped_messages())"
    assert run(counts, f"redis+socket://{socket}").stdout == "0\n"
    Redis(unix_socket_path=socket).set("stagetree:dropped_messages", 7)
    assert run(counts, f"redis+socket://{socket}").stdout == "7\n"


def test_wake_ups_are_merged(socket: str) -> None:
    wake_scheduler(f"redis+socket://{socket}")
    assert Redis(unix_socket_path=socket).llen("stagetree:scheduler") == 2


def test_a_chain_is_sent_with_its_first_stage_and_lent_slots_are_notified(socket: str) -> None:
    run(PUBLISHES, f"redis+socket://{socket}")
    redis = Redis(unix_socket_path=socket)
    [first], [lent] = (redis.lrange(f"stagetree:{slot}", 0, -1) for slot in ("gpu0", "gpu1"))
    assert json.loads(first)["headers"]["task"] == "stagetree.stage"
    assert json.loads(lent)["headers"]["task"] == "stagetree.rank"


def content(message: bytes) -> tuple[list[object], list[object]]:
    """The arguments of a task, and the rest of its chain, the next one last."""
    arguments, _, embedded = json.loads(base64.b64decode(json.loads(message)["body"]))
    return arguments, embedded["chain"] or []


def test_the_message_of_the_next_stage_is_sent_once_while_its_task_runs(socket: str) -> None:
    redis, url = Redis(unix_socket_path=socket), f"redis+socket://{socket}"
    run("from app.workers.celery_app import publish; publish('a', 3, 'gpu0')", url)
    for index in range(3):
        [message] = redis.lrange("stagetree:gpu0", 0, -1)
        arguments, waiting = content(message)
        assert (arguments, len(waiting)) == (["a", index], 2 - index)
        redis.delete("stagetree:gpu0")
        run(SENDS_NEXT.format(waiting=waiting), url)
    assert not redis.exists("stagetree:gpu0")


@pytest.mark.slow
def test_the_message_of_the_next_stage_waits_for_an_unavailable_broker(socket: str) -> None:
    redis, proxy = Redis(unix_socket_path=socket), Proxy(socket)
    run("from app.workers.celery_app import publish; publish('a', 2, 'gpu0')", f"redis+socket://{socket}")
    _, waiting = content(redis.lpop("stagetree:gpu0"))
    proxy.refuse()
    Timer(3.0, proxy.heal).start()
    said = run(SENDS_NEXT.format(waiting=waiting), f"redis://127.0.0.1:{proxy.port}/0").stderr
    proxy.close()
    assert "Traceback" not in said
    assert content(redis.lpop("stagetree:gpu0"))[0] == ["a", 1]


@pytest.mark.slow
def test_an_unavailable_broker_is_no_error() -> None:
    ended = wake_scheduler("redis://127.0.0.1:1/0")
    assert "Traceback" not in ended.stderr


@pytest.mark.slow
def test_a_silent_broker_times_out(socket: str) -> None:
    proxy = Proxy(socket)
    proxy.freeze()
    wake_scheduler(f"redis://127.0.0.1:{proxy.port}/0", lease="3")
    proxy.close()


@pytest.fixture
def waits(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The seconds that kombu would have slept between its retries."""
    slept = list[float]()
    monkeypatch.setattr("kombu.utils.functional.sleep", slept.append)
    return slept


def test_sending_does_not_wait_for_the_broker(waits: list[float]) -> None:
    """The scheduler has other work meanwhile."""
    connection = celery.connection_for_write("redis://127.0.0.1:1/0")
    with pytest.raises(OperationalError):
        connection.default_channel  # noqa: B018
    assert sum(waits) == 0


def test_reconnections_are_tried_every_few_seconds_after_any_outage(waits: list[float]) -> None:
    said = list[float]()
    connection = celery.connection_for_read("redis://127.0.0.1:1/0")
    with pytest.raises(OperationalError):
        connection.ensure_connection(lambda error, seconds: said.append(seconds), 100)
    assert len(said) == 100 and max(said) <= 3
