"""Requests of another user of this machine. Only root can start a process of another user."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any, Literal

import pytest

NOBODY = 65534
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start a process of another user")

PROGRAM = """
import json, os, socket, struct, sys
uid, family, place, request, ending = json.loads(sys.argv[1])
if uid != os.geteuid():
    os.setgroups([])
    os.setgid(uid)
    os.setuid(uid)
connected = socket.socket(getattr(socket, family))
try:
    connected.connect(tuple(place) if isinstance(place, list) else place)
except OSError as problem:
    sys.exit(print(type(problem).__name__))
connected.sendall(request.encode())
if ending == "reset":
    connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
if ending == "answer":
    print(b"".join(iter(lambda: connected.recv(65536), b"")).decode())
connected.close()
"""
"""Imports everything before it becomes another user, who may not read the modules."""


def send_as(
    uid: int,
    place: Any,
    request: str,
    *,
    family: str = "AF_INET",
    ending: Literal["answer", "close", "reset"] = "answer",
) -> str:
    """What a process of this user gets for a request to a socket: the answer, or the name of the error.

    With another ending it closes its connection without waiting for an answer.
    """
    options = json.dumps([uid, family, place, request, ending])
    sent = subprocess.run([sys.executable, "-c", PROGRAM, options], check=True, capture_output=True, text=True)
    return sent.stdout.strip()


def request_text(method: str, path: str) -> str:
    """A request without a body, after whose answer the connection is closed."""
    return f"{method} {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


def status_for(uid: int, place: Any, method: str, path: str, family: str = "AF_INET") -> int:
    """The status of the answer to a request of this user."""
    return int(send_as(uid, place, request_text(method, path), family=family).split()[1])
