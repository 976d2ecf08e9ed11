"""`stagetree doctor`: its report, besides missing parts."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Iterator
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import ClassVar

import pytest
import typer

from app.cli import doctor
from app.cli.doctor import NEEDS, Finding, examine
from app.cli.options import DEFAULT_DIR
from stagetree.backoff import Backoff

NOT_READY = b'{"title": "Service Unavailable", "detail": "Not ready: slots: no slot is at work"}'


class Answers(BaseHTTPRequestHandler):
    ahead = 0.0
    refusals: ClassVar = [NOT_READY]
    """The answers to whether it is ready, the last one for ever."""

    def do_GET(self) -> None:
        body = b"{}"
        if self.path.endswith("readyz"):
            body = self.refusals.pop(0) if len(self.refusals) > 1 else self.refusals[0]
        is_refused = body == NOT_READY
        self.send_response_only(503 if is_refused else 200)
        self.send_header("Date", formatdate(time.time() + self.ahead, usegmt=True))
        self.send_header("Content-Type", "application/problem+json" if is_refused else "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Nothing."""


@pytest.fixture
def url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Answers) as server:
        Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def examine_one(what: str, server: str | None = None) -> Finding:
    (one,) = [each for each in examine(server, DEFAULT_DIR) if each.what == what]
    return one


@pytest.mark.slow
@pytest.mark.parametrize(("ahead", "said"), [(120.0, r"(\d+) s behind"), (-3600.0, r"(\d+) s ahead of")])
def test_a_wrong_clock_is_reported(url: str, ahead: float, said: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert examine_one("clock", url).ok
    monkeypatch.setattr(Answers, "ahead", ahead)
    finding = examine_one("clock", url)
    seconds = re.search(said, finding.detail)
    assert not finding.ok and seconds is not None and "NTP" in finding.detail
    assert abs(float(seconds[1]) - abs(ahead)) < 5.0


def test_a_broken_service_is_reported(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "ASK_AGAIN", Backoff(0.0, 0.0))
    finding = examine_one("service", url)
    assert not finding.ok and "no slot is at work" in finding.detail


def test_a_service_that_is_late_at_first_is_asked_again(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """At its first look a server once imported for longer than it waits, and was called broken."""
    monkeypatch.setattr(doctor, "ASK_AGAIN", Backoff(0.0, 0.0))
    monkeypatch.setattr(Answers, "refusals", [NOT_READY, b"{}"])
    assert examine_one("service", url).ok


@pytest.mark.slow
def test_a_read_only_store_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert "none here yet" in examine_one("store").detail
    (tmp_path / ".stagetree").mkdir()
    assert examine_one("store").ok
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: access(path, mode) and not mode & os.W_OK)  # as root may all
    finding = examine_one("store")
    assert not finding.ok and "cannot be written by this user" in finding.detail


@pytest.mark.parametrize("lacks", [True, False])
def test_a_torchvision_for_another_torch_is_reported(monkeypatch: pytest.MonkeyPatch, lacks: bool) -> None:
    """`import lightning` failed in a program of a user's own, and nothing said why."""
    monkeypatch.setattr("stagetree.vision.lacks_operators", lambda: lacks)
    [found] = [each for each in examine(None, DEFAULT_DIR) if each.what == "torchvision"]
    assert found.ok and ("import_torchvision()" in found.detail) == lacks


def test_a_part_that_is_not_installed_is_named_and_is_no_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`doctor` once failed on a base install, which has no torch by design."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "is_installed", lambda module: False)
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor()
    assert ended.value.exit_code == 0
    printed = capsys.readouterr().out.splitlines()
    lacking = [line.split()[1] for line in printed if line.startswith("---") and "pip install 'stagetree[" in line]
    assert lacking == [*NEEDS]


def test_a_part_that_is_installed_and_broken_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("app.embedded.machine.redis_server", lambda: 1 / 0)
    assert examine_one("redis") == Finding("redis", False, "division by zero")
    with pytest.raises(typer.Exit) as ended:
        doctor.doctor()
    assert ended.value.exit_code == 1


def test_a_newer_python_is_named_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "is_installed", lambda module: module != "torch")
    assert "wheel" not in examine_one("torch").detail or sys.version_info > (3, 14)
    monkeypatch.setattr(doctor, "NEWEST_TRIED", (3, 10))
    assert "there may be no wheel for this Python: 3.10 is the newest that was tried" in examine_one("torch").detail
