"""Runs on: the interpreter that workers are forked from; `work` on a worker's main process.

The workers of one machine, and its API, as forks of one interpreter that has imported what they share.

    python -P -m app.workers.prefork LOGS '{"gpu0": ["celery", "-A", "app.workers", "worker", "-Q", "gpu0"], ...}'

Each fork becomes what its command describes, with a log of its own, once standard input has ended. It ends when a fork
does so by itself; on SIGTERM it asks all workers to end, and waits as long as one trains or saves something. The API
answers until then. Where there is an API, the database is that of a stack alone: it is made ready before, and standard
input is a socket, on which a line is said then: the reason why it is not ready, or nothing.
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
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn, cast

from app.process.logs import last_line

if TYPE_CHECKING:
    from app.events import SqlRecords

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
    "app.storage.object_store",
    "app.workers.trainer_process",
    "app.workers.warm",
)


def main() -> int:
    logs, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
    gc.disable()  # an import makes next to no garbage
    import_all()
    if api := commands.get(API):
        problem = prepare_database()
        os.write(sys.stdin.fileno(), f"{problem}\n".encode())
        if problem:
            return 1
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


def prepare_database() -> str:
    """Bring the schema up to date and forget all slots: the folder is ours, so whoever is on record there is dead.

    Returns the reason where that cannot be, else nothing.
    """
    from app.events import DatabaseUnavailable

    try:
        with _records() as records:
            records.database.create()
            with records.write() as rows:
                rows.slots.forget_all()
    except DatabaseUnavailable as problem:
        return " ".join(str(problem).split())
    return ""


def has_work(*, if_away: bool) -> bool:
    """Whether a slot still trains or saves something: a chain is live until its last state is recorded.

    if_away: the answer where the database gives none.
    """
    from app.events import DatabaseUnavailable

    try:
        with _records() as records, records.read() as rows:
            return bool(rows.chains.live())
    except DatabaseUnavailable:
        return if_away


@contextlib.contextmanager
def _records() -> Iterator[SqlRecords]:
    """Opened, and closed again: no fork has a connection of ours."""
    from app.events import Database, SqlRecords
    from app.settings import settings

    records = SqlRecords(Database(settings().database_url))
    try:
        yield records
    finally:
        records.close()


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

LOOK_SECONDS = 0.05


class Asked(Exception):
    """This process was asked to end."""


class Prefork:
    """The forks, by process id."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._names: dict[int, str] = {}

    def start(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Fork. In a fork, this ends in SystemExit when what it became does."""
        gc.freeze()  # what is there now stays shared between the forks
        for name, command in commands.items():
            self._names[self._fork(name, command)] = name

    def watch(self) -> int:
        """Wait until a fork ends by itself, or nothing is left to save when this process is asked to end: the code."""
        try:
            signal.signal(signal.SIGTERM, _say_so)
            pid, status = os.wait()
        except Asked:
            self._let_workers_save()
            return 0
        name, code = self._names.pop(pid), os.waitstatus_to_exitcode(status)
        log = self._logs / f"{name}.log"
        said = last_line(log)[:MOST_WORDS]
        print(f"{name} ended with exit code {code}{said} (its log is {log})", flush=True)
        return 1

    def _let_workers_save(self) -> None:
        """The API goes on: it says meanwhile how far they are, and ends with this process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        workers = {pid for pid, name in self._names.items() if name != API}
        if not has_work(if_away=False):
            return
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        while workers and has_work(if_away=True):
            workers -= {pid for pid in workers if _has_ended(pid)}
            time.sleep(LOOK_SECONDS)

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


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # it was waited for as we were asked to end
        return True


def _say_so(*_: object) -> NoReturn:
    raise Asked


if __name__ == "__main__":
    sys.exit(main())
