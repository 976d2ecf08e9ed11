"""A process that runs tests in a copy of the tree, as often as asked, and has imported once what all of them need.

Each run is a fork of it: what takes long to import is there, and the project's own modules are read anew. It reads
`{"arguments": [...], "seconds": s, "environment": {...}}` from stdin, line by line, and answers with pytest's exit
code, or null where one test took longer.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import signal
import sys
from typing import NoReturn

import psutil
import pytest
from _pytest.config import default_plugins

from tools.mutants.tests_of import SOURCES

NEEDED = (
    "pytest hypothesis torch numpy scipy.special sqlmodel alembic.command psycopg celery.canvas celery.signals psutil"
    " kombu.transport.redis fsspec fastapi httpx2 redis pydantic_settings moto.server stagetree.spec stagetree.client"
    " stagetree.trainer.torch_trainer stagetree.runtime.model stagetree.source.discovery app.domain.decide app.settings"
    " app.scheduling.fair_share sqlalchemy.dialects.sqlite sqlalchemy.dialects.postgresql.psycopg"
)
"""What most tests import, and what imports nothing that is changed: `app.events` does."""

CHANGED = tuple(source.removesuffix(".py").replace("/", ".") for source in SOURCES)
PR_SET_CHILD_SUBREAPER = 36


def main() -> None:
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)  # what a run leaves behind becomes a child of this one
    signal.signal(signal.SIGTERM, _end)
    answers = os.fdopen(os.dup(1), "w", buffering=1)
    for name in [*NEEDED.split(), *(f"_pytest.{name}" for name in default_plugins)]:
        importlib.import_module(name)
    assert not [name for name in sys.modules if name.startswith(CHANGED)], "each run must import the changed file"
    gc.freeze()  # no run scans the objects of earlier ones
    for line in sys.stdin:
        wanted = json.loads(line)
        answers.write(json.dumps(run(**wanted)) + "\n")


class Limit:
    """A plugin of pytest: a test that takes longer, or a set-up before the first one, ends the process."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        signal.alarm(seconds)

    def pytest_runtest_logstart(self) -> None:
        signal.alarm(self._seconds)


def run(arguments: list[str], seconds: int, environment: dict[str, str]) -> int | None:
    """The exit code of pytest in a fork; None when a test took longer, and it and all it started were ended."""
    pid = os.fork()
    if pid == 0:
        os.environ.update(environment)
        _run_fork(arguments, seconds)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    _end_all()
    return None if code == -signal.SIGALRM else code


def _run_fork(arguments: list[str], seconds: int) -> None:
    code = 70
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        nowhere, log = os.open(os.devnull, os.O_RDONLY), os.open("run.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(nowhere, 0)
        os.dup2(log, 1)
        os.dup2(log, 2)
        code = int(pytest.main(arguments, plugins=[Limit(seconds)]))
        sys.stdout.flush()
    finally:
        os._exit(code)


def _end(*_: object) -> NoReturn:
    _end_all()
    os._exit(0)


def _end_all() -> None:
    """End the remaining children until none is left: orphans come to this process when their parents end."""
    while children := psutil.Process().children(recursive=True):
        for child in children:
            with contextlib.suppress(psutil.NoSuchProcess):
                child.send_signal(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            while os.waitpid(-1, 0)[0]:
                pass


if __name__ == "__main__":
    main()
