"""Ranks on other machines: the listener that their workers connect to, and each rank as a trainer's process here.

A worker whose slot is lent to a chain connects to the listener of the chain's own slot, sends the chain's secret, and
relays all commands and answers to the trainer's process that it has started. Nothing is encrypted, as nothing is
between ranks.

Runs on: the thread that trains; `kill` on any.
"""

from __future__ import annotations

import fcntl
import hmac
import json
import os
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from app.workers.trainer_process import TrainerProcess
from app.workers.warm import TrainerSettings
from stagetree.runtime.commands import Json
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import HEAD, Message, Wire, WireTimeout, is_ready
from stagetree.system.files import anonymous_file

RENDEZVOUS_SECONDS = 60.0
"""The workers of lent slots must connect within this time, or the chain is given back."""

HELLO_SECONDS = 5.0
HELLO_BYTES = 4096
CONNECT_SECONDS = 5.0

KEEPALIVE = 10, 5, 4
"""TCP keepalive: seconds of silence before the first probe, seconds between probes, and probes until the peer counts as
dead.
"""

SIZE = struct.Struct(">Q")
SIOCGIFADDR = 0x8915
"""The Linux ioctl for the address of a network interface."""


class RemoteWire(Wire):
    """One end of a TCP connection. A file descriptor is sent as its content; the receiver gets a file of its own.

    is_authenticated: whether the peer has sent the secret; before that, only one short message is accepted.
    """

    def __init__(self, sock: socket.socket, *, is_authenticated: bool = True) -> None:
        self.is_authenticated = is_authenticated
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        for name, value in zip(("TCP_KEEPIDLE", "TCP_KEEPINTVL", "TCP_KEEPCNT"), KEEPALIVE, strict=True):
            if hasattr(socket, name):
                sock.setsockopt(socket.IPPROTO_TCP, getattr(socket, name), value)
        super().__init__(sock)
        self._message: Message | None = None  # of which some files are still to come
        self._missing, self._file = 0, (-1, 0)

    def send(self, message: Mapping[str, Any], *fds: int, timeout: float | None = None) -> None:
        """As `Wire.send`. timeout: raise when the peer accepts no data for this long."""
        body = json.dumps(message).encode()
        self._send_bytes(HEAD.pack(len(body), len(fds)) + body, timeout)
        for fd in fds:
            size, sent = os.fstat(fd).st_size, 0
            self._send_bytes(SIZE.pack(size), timeout)
            while sent < size:
                begin = sent
                sent += self._retry_send(lambda fd=fd, at=begin: os.sendfile(self.fileno(), fd, at, 2**24), timeout)  # type: ignore[misc]

    def hold(self, message: Mapping[str, Any], *fds: int) -> None:
        """Send it at once: the network takes longer than a wake."""
        try:
            self.send(message, *fds)
        finally:
            for fd in fds:
                os.close(fd)

    def close(self) -> None:
        super().close()
        if self._file[0] >= 0:
            os.close(self._file[0])
            self._file = (-1, 0)

    def _send_bytes(self, data: bytes, timeout: float | None) -> None:
        rest = memoryview(data)
        while rest:
            rest = rest[self._retry_send(lambda rest=rest: self._socket.send(rest), timeout) :]  # type: ignore[misc]

    def _retry_send(self, send: Callable[[], int], timeout: float | None) -> int:
        while True:
            try:
                return send()
            except BlockingIOError:
                ends = None if timeout is None else time.monotonic() + timeout
                if not is_ready(self._socket, select.POLLOUT, ends):
                    raise WireTimeout(f"the other machine took nothing for {timeout:.0f} s") from None
            except OSError as error:
                raise ConnectionError(str(error)) from None

    def _next(self) -> tuple[Message, list[int]] | None:
        """The next message that has arrived completely, with all its files."""
        if self._message is None:
            if len(self._bytes) < HEAD.size:
                return None
            length, files = HEAD.unpack_from(self._bytes)
            if not self.is_authenticated and (length > HELLO_BYTES or files):
                raise ValueError("the other side says more than who it is")
            if len(self._bytes) < (end := HEAD.size + length):
                return None
            self._missing = files
            self._message = json.loads(self._bytes[HEAD.size : end])
            del self._bytes[:end]
        while self._missing:
            if not self._receive_file():
                return None
        message, self._message = self._message, None
        assert message is not None
        return message, [self._fds.popleft() for _ in range(len(self._fds))]

    def _receive_file(self) -> bool:
        """Whether the next file has arrived completely."""
        fd, left = self._file
        if fd < 0:
            if len(self._bytes) < SIZE.size:
                return False
            fd, left = anonymous_file(0), SIZE.unpack_from(self._bytes)[0]
            del self._bytes[: SIZE.size]
        part = memoryview(bytes(self._bytes[:left]))
        del self._bytes[: len(part)]
        left -= len(part)
        self._file = (fd, left)
        while part:
            part = part[os.write(fd, part) :]
        if left:
            return False
        os.lseek(fd, 0, os.SEEK_SET)
        self._fds.append(fd)
        self._missing, self._file = self._missing - 1, (-1, 0)
        return True


class RankListener:
    """Accepts workers of other machines that are ranks of this slot's chain. host: this machine's name or address for
    them.

    address: for the slot's row.
    """

    def __init__(self, host: str) -> None:
        self.host, self._socket = host, listen(host)
        self.address = f"{host}:{self._socket.getsockname()[1]}"

    def accept_ranks(self, secret: str, slots: Sequence[str], seconds: float = RENDEZVOUS_SECONDS) -> list[RemoteRank]:
        """Those slots' ranks, in this order, once all their workers have connected. Raises `TrainerFailed` of kind
        `rank`.
        """
        arrived: dict[str, dict[bool, RemoteWire]] = {slot: {} for slot in slots}
        ends = time.monotonic() + seconds
        try:
            while missing := [slot for slot, wires in arrived.items() if len(wires) < 2]:
                if not is_ready(self._socket, select.POLLIN, ends):
                    text = f"the worker of slot {missing[0]} did not come to {self.address} within {seconds:.0f} s"
                    raise TrainerFailed("rank", text)
                self._accept(secret, arrived)
        except BaseException:
            for wire in (wire for wires in arrived.values() for wire in wires.values()):
                wire.close()
            raise
        return [RemoteRank(wires[False], wires[True], slot) for slot, wires in arrived.items()]

    def _accept(self, secret: str, arrived: dict[str, dict[bool, RemoteWire]]) -> None:
        """Accept a connection that knows the secret; it replaces an earlier one of the same worker."""
        wire = RemoteWire(self._socket.accept()[0], is_authenticated=False)
        with suppress(EOFError, ValueError, KeyError, TypeError):
            hello = (wire.receive(HELLO_SECONDS) or ({}, []))[0]
            if hmac.compare_digest(hello["secret"].encode(), secret.encode()):
                wires, which = arrived[hello["slot"]], bool(hello["is_lifeline"])
                if which in wires:
                    wires[which].close()
                wires[which], wire.is_authenticated = wire, True
                return
        wire.close()


def connect_rank(address: str, secret: str, slot: str) -> tuple[RemoteWire, RemoteWire]:
    """Connect to another machine's listener: the connection and its lifeline. Raises OSError."""
    host, _, port = address.rpartition(":")
    wires = list[RemoteWire]()
    try:
        for is_lifeline in (False, True):
            wires.append(RemoteWire(socket.create_connection((host, int(port)), CONNECT_SECONDS)))
            wires[-1].send({"secret": secret, "slot": slot, "is_lifeline": is_lifeline}, timeout=CONNECT_SECONDS)
    except BaseException:
        for wire in wires:
            wire.close()
        raise
    return wires[0], wires[1]


class RemoteRank(TrainerProcess):
    """The trainer's process of a slot on another machine. Its output is in its worker's log. slot: its name."""

    def __init__(self, connection: RemoteWire, lifeline: RemoteWire, slot: str) -> None:
        super().__init__(connection, lifeline, 0)
        self.slot = slot

    def start_arguments(self, settings: TrainerSettings, number: int, rank: Json | None, *fds: int) -> Json:
        """Its worker has the device and the settings."""
        return {"ranks": rank}

    def log(self, path: Path, rows: Path | None = None, lane: int | None = None) -> None:
        """Nothing: its worker has no file for it."""

    def kill(self) -> None:
        """Its worker ends the process as soon as it notices that the lifeline is closed."""
        self.begin_to_kill()

    def resident_bytes(self) -> int:
        return 0

    def _end_error(self) -> Exception:
        if self._is_killed:
            return super()._end_error()
        how = "has ended" if isinstance(self._end, int) else "cannot be reached any more"
        return TrainerFailed(
            "crash", f"the rank on slot {self.slot} {how}; the log of its worker may say why", self.step
        )

    def describe_place(self) -> str:
        return f"It is on slot {self.slot}, on another machine.\n"


def listen(host: str) -> socket.socket:
    """A socket for clients that reach this machine as `host`, bound to that interface if this machine has the address.

    Otherwise, as behind NAT, it is bound to all interfaces.
    """
    return socket.create_server((socket.gethostbyname(host) if interface_of(host) else "", 0))


def interface_of(host: str) -> str:
    """The network interface with the address of `host`, which ranks need; empty if this machine has none."""
    with suppress(OSError):
        address = socket.inet_aton(socket.gethostbyname(host))
        for _, name in socket.if_nameindex():
            with suppress(OSError), socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                if fcntl.ioctl(sock.fileno(), SIOCGIFADDR, struct.pack("256s", name.encode()[:15]))[20:24] == address:
                    return name
    return ""
