"""Messages between two processes: JSON with its length in front, and file descriptors beside it. Nothing is pickled.

Large payloads are handed over as a descriptor of memory: see `anonymous_file`.
"""

from __future__ import annotations

import json
import os
import select
import socket
import struct
import tempfile
import time
from collections import deque
from collections.abc import Mapping
from typing import Any

Message = dict[str, Any]

HEAD = struct.Struct(">IB")
"""How many bytes the JSON has, and how many file descriptors come with it."""

CHUNK = 2**16
MOST_FDS = 4


class WireTimeout(TimeoutError):
    """The other side did not take a message in time."""


class Wire:
    """One end of a connected Unix stream socket. Used by one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket, self._bytes, self._fds = sock, bytearray(), deque[int]()

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: Mapping[str, Any], *fds: int, timeout: float | None = None) -> None:
        """Send all of a message. Raises `WireTimeout`, and ConnectionError when the other side is gone."""
        body = json.dumps(message).encode()
        rest = memoryview(HEAD.pack(len(body), len(fds)) + body)
        ends = None if timeout is None else time.monotonic() + timeout
        while rest:
            try:
                sent = socket.send_fds(self._socket, [rest], list(fds)) if fds else self._socket.send(rest)
                rest, fds = rest[sent:], ()
            except BlockingIOError:
                if not is_ready(self._socket, select.POLLOUT, ends):
                    raise WireTimeout(f"the other process did not take a message for {timeout:.0f} s") from None

    def receive(self, timeout: float | None = 0.0) -> tuple[Message, list[int]] | None:
        """The next message and its file descriptors, which are the caller's to close; None if there is none in time.

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
        """Whether the other side has said nothing since the last `receive` that gave None, and is there."""
        return not is_ready(self._socket, select.POLLIN, 0.0)

    def finish(self) -> None:
        """Tell the other side that nothing more comes; it can still answer. Harmless at any time, from any thread."""
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            return  # the other side was faster

    def close(self) -> None:
        self._socket.close()

    def _next(self) -> tuple[Message, list[int]] | None:
        """A message that has arrived whole."""
        if len(self._bytes) < HEAD.size:
            return None
        length, number = HEAD.unpack_from(self._bytes)
        end = HEAD.size + length
        if len(self._bytes) < end:
            return None
        message: Message = json.loads(self._bytes[HEAD.size : end])
        del self._bytes[:end]
        return message, [self._fds.popleft() for _ in range(number)]


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a new connection."""
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)


def is_ready(sock: socket.socket, event: int, ends: float | None) -> bool:
    """Whether the socket is ready before the time is over."""
    poll = select.poll()
    poll.register(sock, event)
    left = None if ends is None else 1000 * (ends - time.monotonic())
    return bool(poll.poll(left)) if left is None or left > 0 else bool(poll.poll(0))


def anonymous_file(size: int) -> int:
    """The descriptor of a new file in memory, or else of one on disk without a name. Raises OSError: no room."""
    if hasattr(os, "memfd_create"):
        fd = os.memfd_create("stagetree")
    else:
        fd, path = tempfile.mkstemp(prefix="stagetree-")
        os.unlink(path)
    try:
        if size and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(fd, 0, size)  # without it, no room would be a SIGBUS while writing
        else:
            os.ftruncate(fd, size)
    except BaseException:
        os.close(fd)
        raise
    return fd
