"""The proxy of other tests causes the faults that it promises."""

from __future__ import annotations

import os
import resource
import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest
from proxies import Proxy
from stacks import PATIENCE

SELECTABLE = 1024
"""The first descriptor that `select` cannot wait for."""


class Echo(socketserver.BaseRequestHandler):
    def handle(self) -> None:
        while data := self.request.recv(100):
            self.request.sendall(data)


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), Echo) as server:
        server.daemon_threads = True
        threading.Thread(target=server.serve_forever, daemon=True).start()
        made = Proxy(server.server_address)  # type: ignore[arg-type]
        yield made
        made.close()
        server.shutdown()


def connect(proxy: Proxy) -> socket.socket:
    return socket.create_connection(("127.0.0.1", proxy.port), timeout=PATIENCE)


def echo(link: socket.socket, text: bytes = b"hello", timeout: float = PATIENCE) -> bytes:
    link.settimeout(timeout)
    link.sendall(text)
    return link.recv(100)


def test_the_proxy_forwards(proxy: Proxy) -> None:
    with closing(connect(proxy)) as link:
        assert echo(link) == b"hello"


@pytest.fixture
def many_open_files() -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    if before[1] < 2 * SELECTABLE:
        pytest.skip("the limit of open files is too low on this machine")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(before[0], 2 * SELECTABLE), before[1]))
    with ExitStack() as opened:
        for _ in range(SELECTABLE):
            opened.enter_context(open(os.devnull))
        yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


@pytest.mark.usefixtures("many_open_files")
def test_the_proxy_forwards_with_many_open_files(proxy: Proxy) -> None:
    with closing(connect(proxy)) as link:
        assert echo(link) == b"hello"


def test_the_proxy_refuses_and_heals(proxy: Proxy) -> None:
    with closing(connect(proxy)) as link:
        echo(link)
        proxy.refuse()
        with pytest.raises(ConnectionError):
            assert echo(link) == b""
            echo(link)
    with pytest.raises(ConnectionRefusedError):
        connect(proxy)
    with closing(socket.socket()) as other, pytest.raises(OSError, match="Address already in use"):
        other.bind(("127.0.0.1", proxy.port))  # or another process had it when it heals
    proxy.heal()
    with closing(connect(proxy)) as link:
        assert echo(link) == b"hello"


def test_the_proxy_freezes_and_continues(proxy: Proxy) -> None:
    with closing(connect(proxy)) as link:
        echo(link)
        proxy.freeze()
        with pytest.raises(TimeoutError):
            echo(link, timeout=0.1)
        with closing(connect(proxy)) as other, pytest.raises(TimeoutError):
            echo(other, timeout=0.1)
        proxy.heal()
        link.settimeout(PATIENCE)
        assert link.recv(100) == b"hello"


def test_the_proxy_forgets_open_connections(proxy: Proxy) -> None:
    with closing(connect(proxy)) as old, closing(connect(proxy)) as new:
        echo(old)
        proxy.forget()
        with closing(connect(proxy)) as new:
            assert echo(new) == b"hello"
        with pytest.raises(TimeoutError):
            echo(old, timeout=0.1)


def test_the_proxy_resets_open_connections(proxy: Proxy) -> None:
    with closing(connect(proxy)) as link:
        echo(link)
        proxy.reset()
        with pytest.raises(ConnectionError):
            link.recv(100)
    with closing(connect(proxy)) as link:
        assert echo(link) == b"hello"


def test_the_proxy_answers_and_truncates(proxy: Proxy) -> None:
    proxy.answer(b"HTTP/1.1 503\r\n\r\n")
    with closing(connect(proxy)) as link:
        assert echo(link) == b"HTTP/1.1 503\r\n\r\n"
    proxy.heal()
    proxy.truncate(3)
    with closing(connect(proxy)) as link:
        assert echo(link) == b"hel"
        assert link.recv(100) == b""
