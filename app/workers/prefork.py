"""Runs on: the interpreter that workers are forked from; `work` on a worker's main process.

The workers of one machine, and its API, as forks of one interpreter that has imported what they share.

    python -P -m app.workers.prefork LOGS '{"gpu0": ["celery", "-A", "app.workers", "worker", "-Q", "gpu0"], ...}'

Each fork becomes what its command describes, with a log of its own, once standard input has ended: then the database
must be there. It ends when a fork does so by itself; on SIGTERM it asks all workers to end, and waits. The API answers
until then.
A worker of a cluster, as `stagetree worker QUEUE` starts it, imports the same, whatever the working folder holds.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn, cast

from app.processes import last_words

QUIET = ("--without-gossip", "--without-mingle")
"""Workers need not know of each other: the database says what each has."""

API = "api"
"""What a stack calls the one of its processes that is no worker."""

MODULES = (
    "billiard.popen_fork",
    "celery.__main__",
    "celery.bin.celery",
    "celery.apps.worker",
    "celery.beat",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.backends.base",
    "celery.events.receiver",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.loops",
    "app.workers.tasks",
    "app.workers.roles",
    "app.object_store",
    "app.workers.trainer_process",
    "app.workers.warm",
)


def main() -> int:
    logs, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
    gc.disable()  # an import makes next to no garbage
    import_all()
    if api := commands.get(API):
        import_served(api)
    gc.enable()
    sys.stdin.read()
    processes = Prefork(logs)
    processes.start(commands)
    return processes.watch()


def import_all() -> None:
    """What a worker imports, before it looks anywhere else."""
    for name in MODULES:
        importlib.import_module(name)
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        importlib.import_module("billiard.util").get_pdeathsig()  # it imports a parser of C where there is one


def import_served(command: Sequence[str]) -> None:
    """What uvicorn's command, which ends with it, is to serve: workers have imported most of that, too."""
    importlib.import_module("uvicorn.main")
    importlib.import_module(command[-1].partition(":")[0])


def work(queue: str) -> NoReturn:
    """Be the Celery worker on a queue, until it ends."""
    import_all()  # Celery imports with the working folder first; what is there now, it does not look for
    sys.argv = command(queue)
    sys.exit(celery())


def command(queue: str) -> list[str]:
    """What starts the same worker where nothing of ours is hidden."""
    from app.workers.celery_app import SCHEDULER_QUEUE

    beat = ["-B"] if queue == SCHEDULER_QUEUE else []
    name = ["-n", f"{queue}@%h"]
    return ["celery", "-A", "app.workers", "worker", "-l", "INFO", *QUIET, "-Q", queue, "-c", "1", *beat, *name]


def celery() -> int:
    """Be what the command line of this process says, as Celery's own command would."""
    from celery.__main__ import main as celery_main

    return cast(int, celery_main())


MOST_WORDS = 200
"""Characters of a log's last line that are told."""


class Prefork:
    """The forks, by process id."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._ending = logs, False
        self._names: dict[int, str] = {}

    def start(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Fork. In a fork, this ends in SystemExit when what it became does."""
        gc.freeze()  # what is there now stays shared between the forks
        for name, command in commands.items():
            self._names[self._fork(name, command)] = name

    def watch(self) -> int:
        """Wait until a fork ends by itself, or all workers have because they were asked to; the exit code."""
        signal.signal(signal.SIGTERM, self._end)
        while self._workers():
            pid, status = os.wait()
            name, code = self._names.pop(pid), os.waitstatus_to_exitcode(status)
            if not self._ending:
                log = self._logs / f"{name}.log"
                said = last_words(log)[:MOST_WORDS]
                print(f"{name} ended with exit code {code}{said} (its log is {log})", flush=True)
                return 1
        return 0

    def _workers(self) -> list[int]:
        return [pid for pid, name in self._names.items() if name != API]

    def _fork(self, name: str, command: Sequence[str]) -> int:
        from app.workers.tasks import end_with_parent

        parent = os.getpid()
        if pid := os.fork():
            return pid
        end_with_parent()
        if os.getppid() != parent:  # it was killed before that was said
            os._exit(1)
        with (self._logs / f"{name}.log").open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        sys.argv = list(command)
        if name == API:
            importlib.import_module("uvicorn.main").main()
        sys.exit(celery())

    def _end(self, number: int, _: object) -> None:
        """The API goes on: it says meanwhile how far they are, and ends with this process."""
        self._ending = True
        for pid in self._workers():
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
