"""The owner of the other end of a connection on this machine, and names that the kernel gives to one process."""

from __future__ import annotations

import errno
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from ipaddress import IPv4Address, IPv6Address

from stagetree.system.processes import PROC

Address = IPv4Address | IPv6Address
Endpoint = tuple[Address, int]
"""An address and a port."""

TABLES = PROC / "net"
"""The folder of the kernel's tables of sockets, `tcp` and `tcp6`. They list the sockets of this network namespace."""

UID_FIELD, INODE_FIELD = 7, 9


def unix_owner(connected: socket.socket) -> int:
    """The uid of the process that connected to a Unix socket. Raises FileNotFoundError where the system has no such
    option.
    """
    if not hasattr(socket, "SO_PEERCRED"):
        raise FileNotFoundError
    _, uid, _ = struct.unpack("3i", connected.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i")))
    return int(uid)


def tcp_owner(there: Endpoint, here: Endpoint) -> int | None:
    """The uid of the socket at the end `there` of a TCP connection; None if this machine has no such open socket.

    Raises FileNotFoundError on a system without such tables. A socket that its process has closed has no inode, and uid
    0 instead of its owner's. The kernel writes the two fields one after the other, so they count only if a second
    reading finds the same.
    """
    found = _owners(there, here)
    if len(found) != 1 or found != _owners(there, here):
        return None
    [(uid, inode)] = found
    return uid if inode else None


def _owners(there: Endpoint, here: Endpoint) -> set[tuple[int, int]]:
    """Uid and inode of each socket with these ends."""
    ends = [f" {own} {other} " for own, other in zip(_as_in_tables(*there), _as_in_tables(*here), strict=True)]
    lines = (TABLES / "tcp").read_text().splitlines()
    with suppress(FileNotFoundError):  # a kernel without IPv6
        lines += (TABLES / "tcp6").read_text().splitlines()
    rows = [line.split() for line in lines if any(each in line for each in ends)]
    return {(int(row[UID_FIELD]), int(row[INODE_FIELD])) for row in rows}


def _as_in_tables(address: Address, port: int) -> Iterator[str]:
    """An end as the tables write it: 32-bit words in the byte order of the machine. IPv4 may be in both tables."""
    for packed in (address.packed, b"\0" * 10 + b"\xff\xff" + address.packed)[: 2 if address.version == 4 else 1]:
        words = struct.unpack(f"={len(packed) // 4}I", packed)
        yield "".join(f"{word:08X}" for word in words) + f":{port:04X}"


def take_kernel_name(name: str) -> socket.socket | None:
    """A socket that holds `name` until it is closed, or its process has ended; None where the kernel has no such names.

    Raises OSError if another process holds it.
    """
    with socket.socket(socket.AF_UNIX) as held:
        try:
            held.bind(f"\0{name}")
        except OSError as error:
            if error.errno in (errno.ENOENT, errno.EINVAL):  # it was read as a path
                return None
            raise
        return socket.socket(fileno=held.detach())
