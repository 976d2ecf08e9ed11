"""The other end of a request's connection: its address, and whether this server's own user has it.

A server may put into `scope["client"]` what a header of the caller says: uvicorn does so where the peer is on this
machine. So the addresses are read from the connection itself, which uvicorn shows with the method that it passes as
`receive`.
"""

from __future__ import annotations

import os
import socket
from asyncio import BaseTransport
from collections.abc import Callable
from functools import partial
from ipaddress import ip_address
from typing import Any
from weakref import WeakKeyDictionary

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers
from starlette.types import Receive, Scope

from stagetree.system.sockets import Address, tcp_owner, unix_owner

ROOT_UID = 0
OVERFLOW_UID = 65534
"""The kernel shows this uid for all users that are unknown in a user namespace."""

REPLACING_HEADERS = ("forwarded", "x-forwarded-for", "x-real-ip")
"""Headers from which servers and their middleware take another client."""


class Peer:
    """The other end of a connection.

    address: its IP address; None for a Unix socket, or if it is unknown.
    is_local: whether it is on this machine.
    find_owner: reads from the system the uid of the peer's socket; None if no such socket is open. Raises
        FileNotFoundError where the system does not say.
    """

    def __init__(self, address: Address | None, is_local: bool, find_owner: Callable[[], int | None]) -> None:
        self.address, self.is_local, self._find_owner = address, is_local, find_owner
        self._has_own_user: bool | None = None

    async def has_own_user(self) -> bool:
        """Whether its socket belongs to the user of this process or to root. Looked up once.

        True where the system does not say.
        """
        if self._has_own_user is None:
            self._has_own_user = await run_in_threadpool(self._look_up)
        return self._has_own_user

    def _look_up(self) -> bool:
        try:
            return self._find_owner() in {os.geteuid(), ROOT_UID} - {OVERFLOW_UID}
        except FileNotFoundError:
            return True


class Peers:
    """The peers of a server, one for each connection."""

    def __init__(self) -> None:
        self._by_transport: WeakKeyDictionary[BaseTransport, Peer] = WeakKeyDictionary()

    def find(self, scope: Scope, receive: Receive) -> Peer:
        """The peer of a request."""
        transport = getattr(getattr(receive, "__self__", None), "transport", None)
        if transport is None:  # another server than uvicorn names the peer, unless a header may have replaced it
            headers = Headers(scope=scope)
            is_replaced = any(name in headers for name in REPLACING_HEADERS)
            return peer_between(None if is_replaced else scope.get("client"), scope.get("server"))
        if transport not in self._by_transport:
            self._by_transport[transport] = _peer_of_transport(transport)
        return self._by_transport[transport]


def _peer_of_transport(transport: BaseTransport) -> Peer:
    connected = transport.get_extra_info("socket")
    if connected is not None and connected.family == socket.AF_UNIX:
        return Peer(None, True, partial(unix_owner, connected))
    return peer_between(transport.get_extra_info("peername"), transport.get_extra_info("sockname"))


def peer_between(there: Any, here: Any) -> Peer:
    """The peer of a connection between two ends, each as (address, port).

    An end without an IP address here means that there is no TCP connection. Without one there the peer is unknown: a
    client that has closed its connection may have no address any more.
    """
    peer, own = _address(there), _address(here)
    if own is None:
        return Peer(peer, peer is None or peer.is_loopback, _unknown_owner)
    if peer is None:
        return Peer(None, False, _unknown_owner)
    return Peer(peer, peer.is_loopback or peer == own, partial(tcp_owner, (peer, there[1]), (own, here[1])))


def _unknown_owner() -> int | None:
    raise FileNotFoundError


def _address(end: Any) -> Address | None:
    """The IP address of one end; None if it has none. An IPv4 address stays one where it is written as IPv6."""
    try:
        address = ip_address(end[0])
    except (TypeError, ValueError, IndexError):
        return None
    return getattr(address, "ipv4_mapped", None) or address
