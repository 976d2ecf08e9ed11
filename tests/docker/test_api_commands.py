"""Each documented command that starts the API: a header of the caller changes nothing about who its peer is."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml
from stacks import PATIENCE, wait_for

from app.embedded.machine import reserve

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MANIFESTS = (ROOT / "docker" / "kubernetes.yaml", ROOT / "tests" / "docker" / "helm_rendered.yaml")
IMAGES = re.findall(r"^CMD (\[.*\])$", (ROOT / "docker" / "Dockerfile").read_text(), re.MULTILINE)


def containers(documents: Any) -> Iterator[dict[str, Any]]:
    """The containers of all pods of a manifest."""
    for each in filter(None, documents):
        yield from each.get("spec", {}).get("template", {}).get("spec", {}).get("containers", ())


def documented_commands() -> list[tuple[str, ...]]:
    """The commands of pages, images and manifests."""
    lines = (line for page in PAGES for line in page.read_text().splitlines())
    found = [shlex.split(line) for line in lines if re.match(r"(stagetree api|uvicorn) ", line)]
    found += [json.loads(command) for command in IMAGES]
    found += [each["command"] for file in MANIFESTS for each in containers(yaml.safe_load_all(file.read_text()))]
    return sorted({tuple(each) for each in found if each[:2] == ["stagetree", "api"] or each[:1] == ["uvicorn"]})


COMMANDS = documented_commands()


@contextmanager
def start_api(command: tuple[str, ...], environment: dict[str, str]) -> Iterator[str]:
    """The URL of the server that the command starts, at a free port."""
    port, held = reserve("127.0.0.1", 0)
    words = [str(port) if before == "--port" else word for before, word in zip(("", *command), command, strict=False)]
    with held, subprocess.Popen([sys.executable, "-P", "-m", *words], env=environment) as server:
        url = f"http://127.0.0.1:{port}"
        try:
            wait_for("the start of the API", lambda: is_alive(server, url))
            yield url
        finally:
            server.terminate()
            server.wait(PATIENCE)


def is_alive(server: subprocess.Popen[bytes], url: str) -> bool:
    assert server.poll() is None, "it ended"
    try:
        return httpx.get(f"{url}/healthz").status_code == 200
    except httpx.TransportError:
        return False


def test_the_commands_were_found() -> None:
    assert {command[0] for command in COMMANDS} == {"stagetree", "uvicorn"}


@pytest.mark.slow
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: " ".join(command).replace(str(ROOT), "."))
def test_only_the_connection_says_who_is_a_proxy(command: tuple[str, ...], sqlite_url: str) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "STAGETREE_DATABASE_URL": sqlite_url,
        "STAGETREE_BROKER_URL": "memory://",
        "STAGETREE_ACCESS": "always",
        "STAGETREE_PROXIES": "127.0.0.1",
        "STAGETREE_GROUPS": "oncall=admin",
        "FORWARDED_ALLOW_IPS": "*",
    }

    def status(source: str, forwarded_for: str) -> int:
        headers = {"X-Forwarded-For": forwarded_for, "X-Forwarded-User": "eve", "X-Forwarded-Groups": "oncall"}
        with httpx.Client(transport=httpx.HTTPTransport(local_address=source)) as client:
            return client.get(f"{url}/api/v1/session", headers=headers).status_code

    with start_api(command, environment) as url:
        assert status("127.0.0.2", "127.0.0.1") == 401, "any client can write the proxy's address into a header"
        assert status("127.0.0.1", "192.0.2.7") == 200, "the proxy names its client"
