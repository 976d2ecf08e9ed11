"""The peer of a request: real servers, reached by this user, by another user of the machine, and by proxies."""

from __future__ import annotations

import asyncio
import os
import socket
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from fastapi import FastAPI
from other_user import NOBODY, needs_root, request_text, send_as, status_for
from starlette.types import Receive, Scope, Send

from app.api import peers
from app.api.peers import OVERFLOW_UID, peer_between, tcp_owner
from app.main import create_app
from app.settings import Settings
from stagetree.system import sockets
from tests.api.world import API, serving

needs_ipv6 = pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
OWN = os.geteuid()

Listen = Callable[[], socket.socket]
CONNECTIONS = [
    pytest.param(lambda: socket.create_server(("127.0.0.1", 0)), "AF_INET", "127.0.0.1", id="IPv4"),
    pytest.param(
        lambda: socket.create_server(("::1", 0), family=socket.AF_INET6), "AF_INET6", "::1", id="IPv6", marks=needs_ipv6
    ),
    pytest.param(
        lambda: socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True),
        "AF_INET",
        "127.0.0.1",
        id="a server of both",
        marks=needs_ipv6,
    ),
    pytest.param(
        lambda: socket.create_server(("127.0.0.1", 0)),
        "AF_INET6",
        "::ffff:127.0.0.1",
        id="a client of both",
        marks=needs_ipv6,
    ),
]


# ------------------------------------------------------------------------------------------------- users of one machine


@pytest.mark.parametrize(("listen", "family", "host"), CONNECTIONS)
def test_the_servers_own_user_needs_no_token(app: FastAPI, listen: Listen, family: str, host: str) -> None:
    listening = listen()
    place = (host, listening.getsockname()[1])
    with serving(app, listening):
        assert status_for(OWN, place, "GET", f"{API}/studies", family) == 200


@needs_root
@pytest.mark.parametrize(("listen", "family", "host"), CONNECTIONS)
def test_another_user_of_the_machine_needs_a_token(
    app: FastAPI, study: str, listen: Listen, family: str, host: str
) -> None:
    listening = listen()
    place = (host, listening.getsockname()[1])
    with serving(app, listening):
        for method, path in (
            ("GET", f"{API}/studies"),
            ("GET", f"{API}/studies/{study}/events/stream"),
            ("GET", "/metrics"),
            ("POST", f"{API}/studies/{study}:cancel"),
        ):
            assert status_for(NOBODY, place, method, path, family) == 401, path
        assert status_for(NOBODY, place, "GET", "/healthz", family) == 200


def unix_socket(folder: Path) -> tuple[socket.socket, str]:
    """A socket in that folder that everybody may connect to, as uvicorn's is."""
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(place := str(folder / "api.sock"))
    os.chmod(place, 0o666)
    listening.listen()
    return listening, place


def test_a_unix_socket_is_open_to_the_servers_own_user(app: FastAPI, short_folder: Path) -> None:
    listening, place = unix_socket(short_folder)
    with serving(app, listening):
        assert status_for(OWN, place, "GET", f"{API}/studies", "AF_UNIX") == 200


@needs_root
def test_a_unix_socket_is_closed_to_other_users(app: FastAPI, short_folder: Path) -> None:
    short_folder.chmod(0o755)
    listening, place = unix_socket(short_folder)
    with serving(app, listening):
        assert status_for(NOBODY, place, "GET", f"{API}/studies", "AF_UNIX") == 401


@pytest.fixture
def handled_paths(app: FastAPI, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The paths of requests that the application has handled."""
    paths = list[str]()
    call = FastAPI.__call__

    async def record_path(self: FastAPI, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await call(self, scope, receive, send)
        finally:
            paths.append(scope.get("path", ""))

    monkeypatch.setattr(FastAPI, "__call__", record_path)
    return paths


@needs_root
@pytest.mark.parametrize("ending", ["close", "reset"])
def test_hanging_up_gives_no_rights(app: FastAPI, study: str, handled_paths: list[str], ending: Any) -> None:
    """A socket that was closed belongs to root in the kernel's table, and one that was reset has no address."""
    listening = socket.create_server(("127.0.0.1", 0))
    path = f"{API}/studies/{study}:cancel"
    send_as(NOBODY, listening.getsockname(), request_text("POST", path), ending=ending)
    with serving(app, listening) as url:
        deadline = time.monotonic() + 60
        while path not in handled_paths and time.monotonic() < deadline:
            time.sleep(0.01)
        assert path in handled_paths
        assert httpx.get(f"{url}{API}/studies/{study}").json()["state"] == "running"


def test_a_connections_owner_is_read_once(server: str, monkeypatch: pytest.MonkeyPatch) -> None:
    looked_up = list[Any]()

    def look_up(there: peers.Endpoint, here: peers.Endpoint) -> int | None:
        looked_up.append(there)
        return tcp_owner(there, here)

    monkeypatch.setattr(peers, "tcp_owner", look_up)
    for count in (1, 2):
        with httpx.Client(base_url=f"{server}{API}") as client:
            assert [client.get("/studies").status_code for _ in range(3)] == [200, 200, 200]
        assert len(looked_up) == count


# --------------------------------------------------------------------------------------------------- the kernel's table

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   7: {there} {here} 01 00000000:00000000 00:00000000 00000000 {uid:5}        0 {inode} 1 0000 20 4 30 10 -1\n"
THERE, HERE = ("127.0.0.1", 0xACCC), ("127.0.0.1", 0x1F40)
IPV4 = {"there": "0100007F:ACCC", "here": "0100007F:1F40"}
MAPPED = {name: f"0000000000000000FFFF0000{end}" for name, end in IPV4.items()}
IPV6 = {name: f"000000000000000000000000{end}".replace("0100007F", "01000000") for name, end in IPV4.items()}

Tables = Callable[..., None]


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Tables:
    """Replaces the kernel's tables by these texts."""
    monkeypatch.setattr(sockets, "TABLES", tmp_path)

    def write(**texts: str) -> None:
        for name, text in texts.items():
            (tmp_path / name).write_text(HEAD + text)

    return write


def owns(there: Any = THERE, here: Any = HERE) -> bool:
    return asyncio.run(peer_between(there, here).has_own_user())


def row(ends: dict[str, str], uid: int = OWN, inode: int = 4711) -> str:
    return ROW.format(uid=uid, inode=inode, **ends)


def test_the_owner_is_found_in_both_tables(tables: Tables) -> None:
    other_way = {"there": IPV4["here"], "here": IPV4["there"]}
    tables(tcp=row(other_way, OWN + 1) + row(IPV4), tcp6=row(IPV6, OWN + 1))
    assert owns() and owns(("::ffff:127.0.0.1", THERE[1]), ("::ffff:127.0.0.1", HERE[1]))
    assert not owns(("::1", THERE[1], 0, 0), ("::1", HERE[1], 0, 0))
    tables(tcp="", tcp6=row(MAPPED) + row(IPV6))
    assert owns() and owns(("::1", THERE[1], 0, 0), ("::1", HERE[1], 0, 0))


def test_root_is_let_in_and_others_are_not(tables: Tables, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    for uid, is_let_in in ((1000, True), (0, True), (1001, False), (OVERFLOW_UID, False)):
        tables(tcp=row(IPV4, uid))
        assert owns() == is_let_in, uid
    monkeypatch.setattr(os, "geteuid", lambda: OVERFLOW_UID)
    assert not owns(), "in a user namespace all unknown users have this uid"


def test_a_closed_or_unknown_socket_has_no_owner(tables: Tables) -> None:
    tables(tcp=row(IPV4, uid=0, inode=0))
    assert not owns()
    tables(tcp=row({"there": "0100007F:ACCD", "here": "0100007F:1F40"}))
    assert not owns()
    assert not peer_between(None, HERE).is_local, "it has been reset, so it has no address"


def test_a_socket_closed_while_its_row_is_written_has_no_owner(monkeypatch: pytest.MonkeyPatch) -> None:
    readings = iter([HEAD + row(IPV4, uid=0), HEAD, HEAD + row(IPV4, uid=0, inode=0), HEAD])
    monkeypatch.setattr(Path, "read_text", lambda path: next(readings))
    assert not owns()


def test_where_the_system_does_not_say_loopback_is_let_in(tables: Tables) -> None:
    assert owns()


def test_a_kernel_without_ipv6_has_one_table(tables: Tables) -> None:
    tables(tcp=row(IPV4))
    assert owns()


# -------------------------------------------------------------------------------------------------------------- proxies


@pytest.fixture
def make_app_with_proxies(sqlite_url: str, trainers: str) -> Iterator[Callable[[str], FastAPI]]:
    """Makes an application that trusts these proxies, and no other caller without a token."""

    def make(proxies: str) -> FastAPI:
        groups = {"proxies": proxies, "groups": "oncall=admin", "access": "always"}
        where = {"database_url": sqlite_url, "trainers": trainers, "broker_url": "memory://"}
        return create_app(Settings(**where, **groups))

    return make


SIDECAR = {"X-Forwarded-User": "eve", "X-Forwarded-Groups": "oncall"}


def session(url: str, forwarded_for: str) -> httpx.Response:
    return httpx.get(f"{url}{API}/session", headers={"X-Forwarded-For": forwarded_for, **SIDECAR})


def test_a_forged_header_makes_no_caller_a_proxy(make_app_with_proxies: Callable[[str], FastAPI]) -> None:
    """For a caller on this machine, uvicorn by default reports the address of this header as the caller's."""
    with serving(make_app_with_proxies("10.0.3.0/28")) as url:
        for forged in ("10.0.3.1", "10.0.3.1:80", "10.0.3.1, 127.0.0.1"):
            assert session(url, forged).status_code == 401, forged


def test_a_sidecar_is_believed(make_app_with_proxies: Callable[[str], FastAPI]) -> None:
    with serving(make_app_with_proxies("127.0.0.1")) as url:
        assert session(url, "192.0.2.7").json() == {"name": "eve", "scope": "admin", "project": None}


def test_without_the_connection_a_forwarded_request_comes_from_no_proxy(
    make_app_with_proxies: Callable[[str], FastAPI], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with another server, or with middleware around the application."""
    call = FastAPI.__call__

    async def call_without_connection(self: FastAPI, scope: Scope, receive: Receive, send: Send) -> None:
        await call(self, scope, lambda: receive(), send)

    monkeypatch.setattr(FastAPI, "__call__", call_without_connection)
    with serving(make_app_with_proxies("10.0.3.0/28,127.0.0.1")) as url:
        assert session(url, "10.0.3.1").status_code == 401
        assert httpx.get(f"{url}{API}/session", headers=SIDECAR).status_code == 200
