"""What `stagetree doctor` looks at: each finding says what is well, or what to do."""

from __future__ import annotations

import platform
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Finding(NamedTuple):
    """One thing that was looked at."""

    what: str
    ok: bool
    detail: str


def examine(server: str | None) -> list[Finding]:
    """Everything that matters on this machine, and the server if one is named."""
    looks: list[tuple[str, Callable[[], str]]] = [
        ("python", _python),
        ("torch", _torch),
        ("torchvision", _torchvision),
        ("redis", _redis),
        ("sqlite", _sqlite),
        ("folder", _folder),
        ("trainers", _trainers),
    ]
    if server:
        looks.append(("server", lambda: _server(server)))
    return [_look(what, look) for what, look in looks]


def _look(what: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(what, True, look())
    except Exception as error:
        return Finding(what, False, " ".join(str(error).split()) or type(error).__name__)


def _python() -> str:
    return platform.python_version()


def _torch() -> str:
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{torch.__version__}, " + (", ".join(gpus) if gpus else "no GPU: slots use the CPU")


def _torchvision() -> str:
    from stagetree.vision import import_torchvision

    return str(import_torchvision().__version__)


def _redis() -> str:
    from app.embedded import redis_server

    return redis_server()


def _sqlite() -> str:
    from app.events.connections import SAFE_WAL, SQLITE

    slow = "" if SQLITE.sqlite_version_info >= SAFE_WAL else ", without a write-ahead log: pip install pysqlite3"
    return f"{SQLITE.sqlite_version}{slow}"


def _folder() -> str:
    with tempfile.NamedTemporaryFile() as probe:
        free = shutil.disk_usage(Path(probe.name).parent).free
    if free < 2**30:
        raise RuntimeError(f"only {free / 2**20:.0f} MiB free in {tempfile.gettempdir()}: use --dir on a larger disk")
    return f"{free / 2**30:.0f} GiB free in {tempfile.gettempdir()}"


def _trainers() -> str:
    from app.cli.stacks import trainer_files
    from app.registry import describe

    return ", ".join(sorted(describe(trainer_files([])))) or "none registered"


def _server(url: str) -> str:
    from stagetree.client import Client

    with Client(url, retries=0) as client:
        client.health()
    return f"{url} answers"
