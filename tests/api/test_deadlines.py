"""A client that keeps the server waiting is sent away, and one that goes away is a line in the log."""

from __future__ import annotations

import asyncio
import logging
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest
from fastapi import FastAPI

from app.api import server as http_server
from app.api import strict
from tests.api.world import API, serving

PATIENCE = 30.0
SOON = 0.3
"""The deadlines in these tests, in seconds."""


@pytest.fixture
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", SOON)
    monkeypatch.setattr(http_server, "READING_SECONDS", SOON)
    monkeypatch.setattr(strict, "BODY_SECONDS", SOON)


@pytest.fixture
def address(app: FastAPI, soon: None) -> Iterator[tuple[str, int]]:
    with serving(app) as url:
        yield "127.0.0.1", int(url.rpartition(":")[2])


@contextmanager
def connect(address: tuple[str, int]) -> Iterator[socket.socket]:
    with socket.create_connection(address, timeout=PATIENCE) as connection:
        yield connection


def head(method: str, path: str, *lines: str) -> bytes:
    return "\r\n".join([f"{method} {path} HTTP/1.1", "Host: 127.0.0.1", *lines, "", ""]).encode()


def receive_all(connection: socket.socket) -> bytes:
    """All until the server closes the connection."""
    text = b""
    while part := connection.recv(2**16):
        text += part
    return text


def drip(connection: socket.socket) -> None:
    """Send a byte now and then, until the server closes the connection."""
    for _ in range(1000):
        connection.send(b"a")
        time.sleep(SOON / 10)


@pytest.mark.parametrize("begun", [b"", b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: "])
def test_headers_have_a_deadline(address: tuple[str, int], begun: bytes) -> None:
    with connect(address) as connection:
        connection.sendall(begun)
        assert receive_all(connection) == b""


def test_headers_that_drip_have_the_same_deadline(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
        with pytest.raises(OSError):
            drip(connection)


def test_the_headers_of_a_second_request_have_a_deadline(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        connection.sendall(head("GET", "/healthz") + b"GET /healthz HT")
        assert receive_all(connection).count(b"200 OK") == 1


def test_a_body_has_a_deadline(address: tuple[str, int]) -> None:
    with connect(address) as connection:
        json = ("Content-Type: application/json", "Content-Length: 100")
        connection.sendall(head("POST", f"{API}/studies", *json) + b'{"name": ')
        text = receive_all(connection).decode()
    assert text.startswith("HTTP/1.1 408 ") and "The body must arrive within 0.3 s." in text


def test_an_answer_that_is_not_read_has_a_deadline(address: tuple[str, int], app: FastAPI) -> None:
    ended: list[str] = []

    @app.get("/endless")
    async def endless() -> object:
        from fastapi.responses import StreamingResponse

        async def parts() -> object:
            try:
                while True:
                    await asyncio.sleep(0)
                    yield b"x" * 2**16
            finally:
                ended.append("the server gave up")

        return StreamingResponse(parts(), media_type="text/plain")  # type: ignore[arg-type]

    app.router.routes.insert(0, app.router.routes.pop())
    with connect(address) as connection:
        connection.sendall(head("GET", "/endless"))
        until = time.monotonic() + PATIENCE
        while not ended and time.monotonic() < until:
            time.sleep(0.02)
    assert ended


def test_a_slow_answer_has_no_deadline(address: tuple[str, int], app: FastAPI) -> None:
    """Only a client that keeps the server waiting is sent away; another request of it may wait for the first."""

    @app.get("/slow")
    def slow() -> str:
        time.sleep(3 * SOON)
        return "done"

    app.router.routes.insert(0, app.router.routes.pop())
    with connect(address) as connection:
        connection.sendall(2 * head("GET", "/slow"))
        assert receive_all(connection).count(b"done") == 2


def test_a_client_that_goes_away_is_a_line(
    address: tuple[str, int],
    caplog: pytest.LogCaptureFixture,
    wait: Callable[[Callable[[], bool]], None],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http_server, "HEADER_SECONDS", PATIENCE)
    monkeypatch.setattr(strict, "BODY_SECONDS", PATIENCE)
    with caplog.at_level(logging.INFO), connect(address) as connection:
        connection.sendall(head("GET", f"{API}/trainers"))
        assert connection.recv(2**16).startswith(b"HTTP/1.1 200"), "whose connection it is was looked up"
        json = ("Content-Type: application/json", "Content-Length: 100")
        connection.sendall(head("POST", f"{API}/studies", *json) + b'{"name": ')
        time.sleep(SOON / 10)
        connection.close()
        wait(lambda: "went away" in caplog.text)
    [line] = [record for record in caplog.records if "went away" in record.getMessage()]
    assert line.getMessage() == f"POST {API}/studies: the client went away before the end of its body"
    assert line.exc_info is None and "Traceback" not in caplog.text


@pytest.fixture
def wait() -> Callable[[Callable[[], bool]], None]:
    def wait_until(is_so: Callable[[], bool]) -> None:
        end = time.monotonic() + PATIENCE
        while not is_so():
            assert time.monotonic() < end
            time.sleep(0.02)

    return wait_until


def test_connections_are_counted(app: FastAPI, soon: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(http_server.OPTIONS, "limit_concurrency", 5)
    monkeypatch.setattr(http_server, "HEADER_SECONDS", PATIENCE)
    with serving(app) as url:
        idle = [socket.create_connection(("127.0.0.1", int(url.rpartition(":")[2]))) for _ in range(10)]
        try:
            assert httpx.get(f"{url}/healthz").status_code == 503
        finally:
            for each in idle:
                each.close()
