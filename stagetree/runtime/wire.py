"""Messages between two processes: JSON with a length prefix, and file descriptors beside it. Nothing is pickled.

Large payloads are passed as descriptors of memory: see `stagetree.system.files.anonymous_file`.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import time
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

Message = dict[str, Any]

HEAD = struct.Struct(">IB")
"""The length of the JSON, and the number of file descriptors."""

CHUNK = 2**16
MOST_FDS = 4


class WireTimeout(TimeoutError):
    """The other side did not accept a message in time."""


class Wire:
    """One end of a connected Unix stream socket. Not thread-safe."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket, self._bytes, self._fds = sock, bytearray(), deque[int]()
        self._held, self._held_fds = b"", list[int]()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], *fds: int, timeout: float | None = None) -> None:
        """Send a whole message. Raises `WireTimeout`, and ConnectionError when the other side is gone."""
        try:
            if self._held_fds and fds:  # separately, since a receiver takes only `MOST_FDS` at once
                self._send(self._held, self._held_fds, timeout)
                self._drop_held()
            self._send(self._held + _packed(message, len(fds)), (*self._held_fds, *fds), timeout)
        finally:
            self._drop_held()

    def hold(self, message: Mapping[str, Any], *fds: int) -> None:
        """Send a message together with the next one, so that the other side wakes once.

        fds: become the wire's own.
        """
        self._held += _packed(message, len(fds))
        self._held_fds += fds

    def _send(self, data: bytes, fds: Sequence[int], timeout: float | None) -> None:
        rest = memoryview(data)
        ends = None if timeout is None else time.monotonic() + timeout
        while rest:
            try:
                sent = socket.send_fds(self._socket, [rest], list(fds)) if fds else self._socket.send(rest)
                rest, fds = rest[sent:], ()
            except BlockingIOError:
                if not is_ready(self._socket, select.POLLOUT, ends):
                    raise WireTimeout(f"the other process did not take a message for {timeout:.0f} s") from None

    def receive(self, timeout: float | None = 0.0) -> tuple[Message, list[int]] | None:
        """The next message and its file descriptors, which the caller must close; None if there is none in time.

        Raises EOFError when the other side is gone.
        """
        ends = None if timeout is None else time.monotonic() + timeout
        while (arrived := self._next()) is None:
            try:
                data, fds, *_ = socket.recv_fds(self._socket, CHUNK, MOST_FDS)
            except BlockingIOError:
                if not is_ready(self._socket, select.POLLIN, ends):
                    return None
                continue
            except OSError as error:
                raise EOFError(str(error)) from None
            self._fds.extend(fds)
            if not data:
                raise EOFError("the other process closed the connection")
            self._bytes += data
        return arrived

    def is_silent(self) -> bool:
        """Whether nothing has arrived since the last `receive` that returned None, and the other side is there."""
        return not is_ready(self._socket, select.POLLIN, 0.0)

    def finish(self) -> None:
        """Signal that nothing more will be sent; the other side can still answer. Safe at any time, from any thread."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # already closed by the other side

    def close(self) -> None:
        self._drop_held()
        self._socket.close()

    def _drop_held(self) -> None:
        for fd in self._held_fds:
            os.close(fd)
        self._held, self._held_fds = b"", []

    def _next(self) -> tuple[Message, list[int]] | None:
        """The next complete message."""
        if len(self._bytes) < HEAD.size:
            return None
        length, number = HEAD.unpack_from(self._bytes)
        end = HEAD.size + length
        if len(self._bytes) < end:
            return None
        message: Message = json.loads(self._bytes[HEAD.size : end])
        del self._bytes[:end]
        return message, [self._fds.popleft() for _ in range(number)]


def _packed(message: Mapping[str, Any], fds: int) -> bytes:
    body = json.dumps(message).encode()
    return HEAD.pack(len(body), fds) + body


def pair() -> tuple[socket.socket, socket.socket]:
    """A new connection's two ends."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def is_ready(sock: socket.socket, event: int, ends: float | None) -> bool:
    """Whether the socket becomes ready before the deadline `ends`."""
    poll = select.poll()
    poll.register(sock, event)
    left = None if ends is None else 1000 * (ends - time.monotonic())
    return bool(poll.poll(left)) if left is None or left > 0 else bool(poll.poll(0))
