"""`stagetree doctor`: whether this machine, and a server, have what studies need."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import time
from collections.abc import Callable
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple

import typer

from app.cli.errors import DONE, FAILED
from app.cli.extras import STORE, is_installed
from app.cli.options import DEFAULT_DIR, Output, Server
from app.cli.output import Format, one_line, print_answer
from app.cli.service import server_url
from stagetree.backoff import Backoff

Json = dict[str, Any]
NEWEST_TRIED = (3, 13)
"""The newest Python that anything was run with: docs/install.md says what."""

MOST_AHEAD = 5.0
"""Seconds by which two clocks may differ. Leases use the database's clock, but people compare times of all machines."""


ASKED, ASK_AGAIN = 3, Backoff(2.0, 2.0)
"""How often a server is asked whether it is ready. At its first look it imports what its store needs: on a busy machine
that takes longer than it waits."""


class Finding(NamedTuple):
    """The result of one check. installed: whether the part is there; only then can it be bad."""

    what: str
    ok: bool
    detail: str
    installed: bool = True

    @property
    def word(self) -> str:
        if not self.installed:
            return "---"
        return "ok " if self.ok else "BAD"


NEEDS = {
    "torch": ("all", ("torch", "safetensors")),
    "torchvision": ("vision", ("torch", "torchvision")),
    "redis": ("all", ("celery", "redis")),
    "sqlite": ("server", STORE),
    "trainers": ("all", ("torch",)),
}
"""The extra that brings a part, and the modules by which it is seen."""


def examine(server: str | None, store: Path) -> list[Finding]:
    """Check this machine, and the server if one is named."""
    looks: list[tuple[str, Callable[[], str]]] = [
        ("python", platform.python_version),
        ("torch", _torch),
        ("torchvision", _torchvision),
        ("redis", _redis),
        ("sqlite", _sqlite),
        ("folder", _folder),
        ("store", lambda: _store(store)),
        ("trainers", _trainers),
    ]
    findings = [_lacking(subject) or _look(subject, look) for subject, look in looks]
    if server:
        findings.append(_look("server", lambda: _server(server)))
        if findings[-1].ok:
            findings += [_look("clock", lambda: _clock(server)), _look("service", lambda: _service(server))]
    return findings


def _lacking(subject: str) -> Finding | None:
    """That a part is not installed, which is no fault: an installation may be for writing and submitting alone."""
    extra, modules = NEEDS.get(subject, ("", ()))
    if all(map(is_installed, modules)):
        return None
    text = f"not installed: pip install 'stagetree[{extra}]'"
    if sys.version_info[:2] > NEWEST_TRIED:
        newest = ".".join(map(str, NEWEST_TRIED))
        text += f"; there may be no wheel for this Python: {newest} is the newest that was tried"
    return Finding(subject, True, text, False)


def _look(subject: str, look: Callable[[], str]) -> Finding:
    try:
        return Finding(subject, True, look())
    except Exception as error:
        return Finding(subject, False, " ".join(str(error).split()) or type(error).__name__)


def _torch() -> str:
    import torch

    gpus = [torch.cuda.get_device_name(number) for number in range(torch.cuda.device_count())]
    return f"{torch.__version__}, " + (", ".join(gpus) if gpus else "no GPU: slots use the CPU")


def _torchvision() -> str:
    from stagetree.vision import import_torchvision, lacks_operators

    version = str(import_torchvision().__version__)
    if not lacks_operators():
        return version
    return (
        f"{version}, a build for another torch: slots import it without its compiled operators, and a program of your "
        "own does by stagetree.vision.import_torchvision()"
    )


def _redis() -> str:
    from app.embedded.machine import redis_server

    return redis_server()


def _sqlite() -> str:
    from app.events.sqlite import SAFE_WAL, SQLITE

    slow = "" if SQLITE.sqlite_version_info >= SAFE_WAL else ", without a write-ahead log: pip install pysqlite3"
    return f"{SQLITE.sqlite_version}{slow}"


def _folder() -> str:
    with tempfile.NamedTemporaryFile() as probe:
        free = shutil.disk_usage(Path(probe.name).parent).free
    if free < 2**30:
        raise RuntimeError(f"only {free / 2**20:.0f} MiB free in {tempfile.gettempdir()}: use --dir on a larger disk")
    return f"{free / 2**30:.0f} GiB free in {tempfile.gettempdir()}"


def _store(folder: Path) -> str:
    """Check the store of `run` and `up` in this folder."""
    if not folder.exists():
        return f"none here yet: {folder} will be made in {Path.cwd()}"
    closed = [path for path in (folder, *folder.iterdir()) if not os.access(path, os.R_OK | os.W_OK)]
    if closed:
        raise RuntimeError(f"{closed[0]} cannot be written by this user: give it to them with chown, or use --dir")
    return f"{folder}, {shutil.disk_usage(folder).free / 2**30:.0f} GiB free"


def _trainers() -> str:
    from app.cli.trainer_files import trainer_files
    from app.registry import describe

    return ", ".join(sorted(describe(trainer_files([])))) or "none registered"


def _server(url: str) -> str:
    from stagetree.client import Client

    with Client(url, retries=0) as client:
        client.health()
    return f"{url} answers"


def _clock(url: str) -> str:
    """Compare this machine's clock with the server's, whose Date header has full seconds."""
    import httpx2

    before = time.time()
    date = httpx2.get(f"{url.rstrip('/')}/healthz").headers["date"]
    ahead = (before + time.time()) / 2 - parsedate_to_datetime(date).timestamp() - 0.5
    if abs(ahead) > MOST_AHEAD:
        where = "ahead of" if ahead > 0 else "behind"
        raise RuntimeError(f"this machine's is {abs(ahead):.0f} s {where} the server's: set both by NTP")
    return f"within {MOST_AHEAD:.0f} s of the server's"


def _service(url: str) -> str:
    """Check the server's database, schema, broker, store, scheduler and slots."""
    from stagetree.client import Client, ProblemError

    with Client(url, retries=0) as client:
        for attempt in ASK_AGAIN.attempts():
            try:
                client.ready()
            except ProblemError:
                if attempt == ASKED:
                    raise
            else:
                break
    return "database, schema, broker, store, scheduler and slots are well"


def doctor(server: Server = None, output: Output = Format.table) -> None:
    """Check this installation: which parts are here, which are missing, and how to add them.

    A part that is not installed is marked by dashes. The exit code is 1 only if something installed does not work.

    \b
    Example:  stagetree doctor
    """
    findings = examine(server_url(server), DEFAULT_DIR)
    lines = [f"{each.word}  {each.what:<14} {one_line(each.detail)}" for each in findings]
    print_answer([each._asdict() for each in findings], output, *lines)
    raise typer.Exit(DONE if all(each.ok for each in findings) else FAILED)
