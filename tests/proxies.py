"""A proxy on loopback that stands between a process and a server, and fails in the ways that networks do."""

from __future__ import annotations

import contextlib
import selectors
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import make_url

Address = tuple[str, int] | str
"""Where the server is: a host and a port, or the path of a Unix socket."""

RESET = struct.pack("ii", 1, 0)
"""For SO_LINGER: close with a reset instead of an orderly end."""


@dataclass(eq=False)
class Link:
    """One connection through the proxy. One thread moves its bytes, and closes it when `ends` says how.

    That thread waits on the first end of `change`, too: the other end notifies it of changes.
    """

    client: socket.socket
    server: socket.socket
    is_forgotten: bool = False
    ends: str = ""
    passed: int = 0
    change: tuple[socket.socket, socket.socket] = field(default_factory=socket.socketpair)

    def tell(self) -> None:
        """Notify the thread of a change."""
        with contextlib.suppress(OSError):  # it is closed
            self.change[1].send(b".")

    def close(self) -> None:
        for end in (self.client, self.server, *self.change):
            with contextlib.suppress(OSError):
                if self.ends == "reset" and end.family == socket.AF_INET:
                    end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
            end.close()


class Proxy:
    """`port` is where it listens. It passes everything on until a fault is set."""

    def __init__(self, target: Address) -> None:
        self.target = target
        self._links: list[Link] = []
        self._flows, self._delay, self._answer, self._cut = True, 0.0, b"", 0
        self._listener: socket.socket | None = None
        self._held = hold(("127.0.0.1", 0))  # also while no server listens
        self.port = int(self._held.getsockname()[1])
        self._listen()

    # ------------------------------------------------------------------------------------------------ what goes wrong

    def refuse(self) -> None:
        """Break open connections, and accept no new ones."""
        assert self._listener is not None
        listener, self._listener = self._listener, None
        listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        self.reset()

    def freeze(self) -> None:
        """Everything is accepted, and nothing comes back, until `heal`."""
        self._change(flows=False)

    def forget(self) -> None:
        """Open connections are dead for ever, without a notice to either side; new connections work."""
        for link in self._take_links():
            link.is_forgotten = True
            link.tell()

    def reset(self) -> None:
        """Break open connections at once; new connections work."""
        for link in self._take_links():
            link.ends = "reset"
            link.tell()

    def slow_down(self, seconds: float) -> None:
        """Delay each piece of data by this time."""
        self._change(delay=seconds)

    def answer(self, text: bytes) -> None:
        """Answer each request on a new connection with this, instead of the server's answer; break open connections."""
        self._change(answer=text)
        self.reset()

    def truncate(self, after: int) -> None:
        """End a connection after this many bytes came back on it."""
        self._change(cut=after)
        self.reset()

    def heal(self) -> None:
        """End all faults; frozen connections continue."""
        self._change(flows=True, delay=0.0, answer=b"", cut=0)
        if self._listener is None:
            self._listen()

    def close(self) -> None:
        if self._listener is not None:
            self.refuse()
        self._held.close()

    def _change(self, **changes: object) -> None:
        for name, value in changes.items():
            setattr(self, f"_{name}", value)
        for link in self._links:
            link.tell()

    def _take_links(self) -> list[Link]:
        links, self._links = self._links, []
        return links

    # ------------------------------------------------------------------------------------------------ passing on

    def _listen(self) -> None:
        listener = hold(("127.0.0.1", self.port))
        listener.listen(128)
        self._listener = listener
        self._run(self._accept, listener)

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            if self._answer:
                self._run(self._answer_for_server, client)
                continue
            try:
                link = Link(client, self._connect())
            except OSError:
                client.close()
                continue
            self._links.append(link)
            if self._listener is not listener:  # accepted just before the fault
                link.ends = "reset"
            self._run(self._pump, link)

    def _connect(self) -> socket.socket:
        if isinstance(self.target, str):
            server = socket.socket(socket.AF_UNIX)
            server.connect(self.target)
            return server
        return socket.create_connection(self.target)

    def _pump(self, link: Link) -> None:
        with selectors.DefaultSelector() as ready, contextlib.suppress(OSError):
            ready.register(link.change[0], selectors.EVENT_READ)
            ready.register(link.client, selectors.EVENT_READ, link.server)
            ready.register(link.server, selectors.EVENT_READ, link.client)
            while not link.ends:
                for source, sink in self._readable(link, ready):
                    self._pass_on(link, source, sink)
        link.close()

    def _readable(self, link: Link, ready: selectors.BaseSelector) -> list[tuple[Any, Any]]:
        """Each end with readable data, and its other end, while data may pass."""
        if not self._flows_through(link):
            link.change[0].recv(64)
            return []
        keys = [key for key, _ in ready.select()]
        if any(key.data is None for key in keys):
            link.change[0].recv(64)
        return [(key.fileobj, key.data) for key in keys if key.data] if self._flows_through(link) else []

    def _flows_through(self, link: Link) -> bool:
        return self._flows and not link.is_forgotten

    def _pass_on(self, link: Link, source: socket.socket, sink: socket.socket) -> None:
        data = source.recv(65536)
        if self._delay:
            time.sleep(self._delay)
        if source is link.server and self._cut:
            link.passed += len(data)
            data = data[: max(0, self._cut - link.passed + len(data))]
        sink.sendall(data)
        if not data or (source is link.server and 0 < self._cut <= link.passed):
            link.ends = "closed"

    def _answer_for_server(self, client: socket.socket) -> None:
        with client, contextlib.suppress(OSError):
            if client.recv(65536):
                client.sendall(self._answer)

    def _run(self, target: Callable[..., None], *args: object) -> None:
        threading.Thread(target=target, args=args, daemon=True).start()


def hold(place: tuple[str, int]) -> socket.socket:
    """A socket with this address, or with a free port of it for 0. Until it is closed, no other process gets the port.

    It may listen; else another one that was made in this way may, as servers are.
    """
    held = socket.socket()
    held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    held.bind(place)
    return held


def start_proxy(url: str) -> tuple[Proxy, str]:
    """A proxy before a PostgreSQL server, and the URL that goes through it."""
    parsed = make_url(url)
    folder = parsed.query.get("host")
    at: Address = f"{folder}/.s.PGSQL.{parsed.port or 5432}" if folder else (parsed.host or "", parsed.port or 5432)
    proxy = Proxy(at)
    through = parsed.set(host="127.0.0.1", port=proxy.port).difference_update_query(["host"])
    return proxy, through.render_as_string(hide_password=False)
