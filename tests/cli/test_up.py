"""`up`: where it listens and how it is reached there, and whose trainers it has."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from contextlib import closing
from functools import partial
from pathlib import Path

import httpx
import pytest
from commandline import Stagetree
from stacks import ROOT, wait_for

from app.cli.api import api
from app.cli.trainer_files import trainer_files
from app.cli.up import up
from app.embedded import machine
from app.embedded.machine import StackFailed, external_url, reserve, url
from app.settings import Settings
from stagetree.client import Client

TRAINER = """
from stagetree import Trainer

class Mine(Trainer):
    name = "mine"
"""
NAME = socket.gethostname()


@pytest.mark.slow
def test_up_listens_at_another_address(tmp_path: Path) -> None:
    """A laptop could not submit to it: it listened where only its own machine is heard."""
    (tmp_path / "trainer.py").write_text(TRAINER)
    command = [sys.executable, "-P", "-m", "stagetree", "up", "--slots", "1", "--host", "0.0.0.0", "--port", "0"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, text=True) as up:
        assert up.stdout is not None
        try:
            said = "".join(up.stdout.readline() for _ in range(4))
            port = said.split("stagetree is up at http://127.0.0.1:")[1].split()[0]
            token = said.split(f"Other machines reach it at http://{NAME}:{port}/#token=")[1].split()[0]
            file = tmp_path / ".stagetree" / "token"
            assert (file.read_text().strip(), file.stat().st_mode & 0o777) == (token, 0o600)
            with closing(Client(f"http://127.0.0.2:{port}", retries=0)) as client:
                assert "mine" in {trainer.name for trainer in client.trainers()}
            forwarded = {"X-Forwarded-For": "192.0.2.7"}
            asked = partial(httpx.get, f"http://127.0.0.1:{port}/api/v1/session")
            assert asked(headers=forwarded).status_code == 401
            known = asked(headers=forwarded | {"Authorization": f"Bearer {token}"}).json()
            assert known == {"name": "up", "scope": "admin", "project": None}
        finally:
            up.send_signal(signal.SIGINT)
            wait_for("its end", lambda: up.poll() is not None)


@pytest.mark.parametrize(("insecure", "access"), [(True, "open"), (False, "always")])
def test_only_insecure_allows_callers_without_a_token(
    insecure: bool, access: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("STAGETREE_ACCESS", "always")
    monkeypatch.setattr("uvicorn.run", lambda *_, **__: said.append(Settings().access))
    monkeypatch.setattr("app.cli.own_stack.own_stack", lambda *_, **__: said.append(Settings().access))
    said = list[str]()
    api(host="0.0.0.0", insecure=insecure)
    with pytest.raises(TypeError, match="context manager"):  # there is no stack
        up(host="0.0.0.0", insecure=insecure)
    assert said == [access, access]


@pytest.mark.parametrize(
    ("host", "here", "others"),
    [
        ("127.0.0.1", "http://127.0.0.1:8000", None),
        ("localhost", "http://localhost:8000", None),
        ("0.0.0.0", "http://127.0.0.1:8000", f"http://{NAME}:8000"),
        ("::", "http://[::1]:8000", f"http://{NAME}:8000"),
        ("::1", "http://[::1]:8000", None),
        ("10.0.0.7", "http://10.0.0.7:8000", "http://10.0.0.7:8000"),
        ("gpu-box", "http://gpu-box:8000", "http://gpu-box:8000"),
    ],
)
def test_the_printed_address_is_reachable(host: str, here: str, others: str | None) -> None:
    assert (url(host, 8000), external_url(host, 8000)) == (here, others)


@pytest.mark.skipif(not socket.has_dualstack_ipv6(), reason="this machine has no IPv6")
def test_an_address_of_ipv6() -> None:
    port, kept = reserve("::1", 0)
    kept.close()
    assert port > 0


@pytest.mark.skipif(sys.platform != "linux", reason="other systems let no process listen on a reserved port")
def test_a_reserved_port_is_given_only_by_its_number() -> None:
    """Between the choice of a port and its use, seconds later, another process could be given it as a free one."""
    port, kept = reserve("127.0.0.1", 0)
    with kept, socket.socket() as another:
        with pytest.raises(OSError, match="in use"):
            another.bind(("127.0.0.1", port))
        with socket.create_server(("127.0.0.1", port)), socket.create_connection(("127.0.0.1", port)):
            pass


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nothing is kept")
def test_the_second_server_of_a_port_is_refused() -> None:
    """Both said that they were up, and one of them was answered by the other's server until it died."""
    port, kept = reserve("127.0.0.1", 0)
    with kept:
        first, kept_first = reserve("127.0.0.1", port)
        with kept_first, pytest.raises(StackFailed, match=r"in use\): choose another with --port"):
            reserve("127.0.0.1", port)
        again, kept_again = reserve("127.0.0.1", port)
        kept_again.close()
    assert first == again == port


@pytest.mark.parametrize("host", ["192.0.2.1", "a..b"])  # an address for documents, and no name
def test_an_address_of_another_machine(host: str) -> None:
    with pytest.raises(StackFailed, match="--host is an address of this machine"):
        reserve(host, 0)


@pytest.mark.slow
def test_the_trainer_of_the_current_folder_is_found(
    stagetree: Stagetree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "trainer.py").write_text(TRAINER)
    monkeypatch.chdir(tmp_path)
    assert "mine" in stagetree("trainers").out
    assert "mine" in stagetree("doctor").out
    assert "trainer.py" in trainer_files([])


def test_a_long_log_is_rotated_when_its_process_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MAX_LOG_BYTES", 10)
    path = tmp_path / "api.log"
    for text in (b"short", b" and long", b"the next", b" line"):
        with machine.open_log(path) as log:
            log.write(text)
    assert (tmp_path / "api.log.1").read_bytes() == b"short and long"
    assert path.read_bytes() == b"the next line"
