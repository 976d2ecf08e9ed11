"""Another user of this machine has no access to an embedded stack."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import httpx
import psutil
import pytest
from other_user import NOBODY, needs_root, send_as, status_for
from redis import Redis
from stacks import PATIENCE, TOYS, Service, accepts_connections, wait_for

import stagetree
from app.embedded.machine import Scratch, redis_command


@pytest.fixture
def broker() -> Iterator[tuple[psutil.Process, Path]]:
    """The Redis of an embedded stack, and its socket."""
    scratch = Scratch()
    place = Path(scratch.path) / "redis.sock"
    with subprocess.Popen(redis_command(scratch.path), stdout=subprocess.DEVNULL) as process:
        try:
            with Redis(unix_socket_path=str(place)) as client:
                wait_for("the start of Redis", lambda: accepts_connections(client))
            yield psutil.Process(process.pid), place
        finally:
            process.terminate()
            process.wait(PATIENCE)
            scratch.delete()


def test_redis_is_a_private_socket_in_a_private_folder(broker: tuple[psutil.Process, Path]) -> None:
    process, place = broker
    assert [path.stat().st_mode & 0o777 for path in (place.parent, place)] == [0o700, 0o700]
    assert process.net_connections("inet") == []


@needs_root
def test_another_user_does_not_reach_redis(broker: tuple[psutil.Process, Path]) -> None:
    _, place = broker
    assert send_as(NOBODY, str(place), "PING\r\n", family="AF_UNIX") == "PermissionError"
    place.parent.chmod(0o755)
    assert send_as(NOBODY, str(place), "PING\r\n", family="AF_UNIX") == "PermissionError"


@pytest.mark.slow
def test_a_stack_works_where_all_callers_need_a_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once it waited for its own API until a timeout."""
    monkeypatch.setenv("STAGETREE_ACCESS", "always")
    with stagetree.local(1, dir=tmp_path / "kept", trainers=TOYS) as server:
        assert httpx.get(f"{server.url}/api/v1/slots").status_code == 401
        assert [slot.name for slot in server.client.slots()]


@needs_root
@pytest.mark.slow
def test_another_user_does_not_reach_a_stack(stack: Service) -> None:
    url = urlsplit(stack.client.url)
    for method, path in (("GET", "/api/v1/slots"), ("POST", "/api/v1/studies")):
        assert status_for(NOBODY, (url.hostname, url.port), method, path) == 401
    assert stack.client.slots()
