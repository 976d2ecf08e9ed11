"""Forks the API and all workers of a machine from one interpreter that has imported their common modules.

    python -P -m app.workers.prefork

Standard input is a socket to the stack, which may start this interpreter before it knows what to run. Its first message
has the settings, the queues of the workers, and the address of the API. If there is an API, this stack owns the
database, which is migrated; the answer reports the problem with it, or nothing. The forks begin once the stack sends no
more.

This process ends when a fork ends by itself. On SIGTERM it asks all workers to end and waits while one trains or saves;
the API answers until then. A worker of a cluster (`stagetree worker QUEUE`) imports the same modules, even if the
working folder contains others of these names.

Runs on: the interpreter that workers are forked from; `work` on a worker's main process.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from app.domain.slots import SCHEDULER
from app.process.logs import last_line
from stagetree.runtime.wire import Wire
from stagetree.system.processes import end_with_parent, redirect_output

if TYPE_CHECKING:
    from app.events.sql_log import SqlRecords

API = "api"
"""The name of the process that is no worker."""

MODULES = (
    "anyio.streams.memory",
    "anyio.streams.tls",
    "billiard.popen_fork",
    "billiard.synchronize",
    "celery.apps.worker",
    "celery.beat",
    "celery.concurrency.prefork",
    "celery.concurrency.solo",
    "celery.backends.base",
    "celery.events.receiver",
    "celery.worker.components",
    "celery.worker.consumer",
    "celery.worker.loops",
    "app.api.application",
    "app.api.server",
    "app.events.sql_log",
    "app.events.trial_logs",
    "app.simulation.forecast",
    "app.storage.object_store",
    "app.workers.scheduler.tick",
    "app.workers.slot.slot",
    "app.workers.trainer_process",
    "app.workers.warm",
)
"""They read no setting when they are imported."""

CONFIGURED_MODULES = ("app.workers.consumer", "app.workers.tasks", "app.workers.roles", "app.workers.queue_worker")
"""They import the Celery application, which reads the settings."""


def main() -> int:
    owner = Wire(socket.socket(fileno=os.dup(sys.stdin.fileno())))
    gc.disable()  # an import makes next to no garbage
    import_early_modules()
    try:
        orders = receive_orders(owner)
        import_worker_modules()
        if orders.api:
            problem = prepare_database()
            owner.send({"problem": problem})
            if problem:
                return 1
            importlib.import_module("app.main")
            importlib.import_module("stagetree.spec").StudySpec.model_rebuild()  # else each fork builds its validators
        read_trainers()
        await_end(owner)
    except (EOFError, ConnectionError):
        return 1  # the stack has ended
    owner.close()
    processes = Prefork(orders.logs)
    processes.start(orders.commands())
    code = processes.watch()
    sys.stdout.flush()
    os._exit(code)  # nothing is left to do, and Python would take a quarter of a second to delete all modules


def import_early_modules() -> None:
    """Import what needs no settings."""
    for name in MODULES:
        importlib.import_module(name)
    with contextlib.suppress(OSError):  # elsewhere than on Linux
        importlib.import_module("billiard.util").get_pdeathsig()  # it imports a C parser, if one is installed


def import_worker_modules() -> None:
    """Import all of a worker's modules, before the working folder is on the import path."""
    import_early_modules()
    for name in CONFIGURED_MODULES:
        importlib.import_module(name)


@dataclass(frozen=True)
class Orders:
    """What to run. logs: the folder of the logs. api: host and port, if there is an API."""

    logs: Path
    queues: Sequence[str]
    api: tuple[str, int] | None

    def commands(self) -> dict[str, Callable[[], object]]:
        """What the forks run, by the names of their logs."""
        # The API first: a worker ends an interrupted study that a client would resume.
        first = {} if self.api is None else {API: partial(serve_api, *self.api)}
        return first | {queue: partial(serve_queue, queue, **worker_options(queue)) for queue in self.queues}


def receive_orders(owner: Wire) -> Orders:
    """Wait for the orders, and take over the settings and the log that come along. Raises EOFError when the owner is
    gone.
    """
    while (arrived := owner.receive(timeout=None)) is None:
        continue
    orders, (log,) = arrived
    redirect_output(log)
    os.close(log)
    os.environ |= orders["settings"]
    return Orders(Path(orders["logs"]), orders["queues"], orders["api"] and tuple(orders["api"]))


def await_end(owner: Wire) -> None:
    """Wait until the owner has sent its last message."""
    with contextlib.suppress(EOFError):
        while True:
            owner.receive(timeout=None)


def read_trainers() -> None:
    """Read the trainers' files once for all forks, each of which looks only whether they have changed."""
    from app.registry import Catalogue
    from app.settings import settings

    Catalogue(settings().trainer_files).describe()


def prepare_database() -> str:
    """Migrate the schema and delete all slots' rows: the folder is ours, so every recorded worker is dead.

    Returns the problem, or nothing.
    """
    from app.events import DatabaseUnavailable

    try:
        with _open_records() as records:
            records.database.create()
            with records.write() as rows:
                rows.slots.forget_all()
    except DatabaseUnavailable as problem:
        return " ".join(str(problem).split())
    return ""


def has_work(*, if_unavailable: bool) -> bool:
    """Whether a slot still trains or saves: a chain is live until its last state is recorded.

    if_unavailable: the answer during an outage of the database.
    """
    from app.events import DatabaseUnavailable

    try:
        with _open_records() as records, records.read() as rows:
            return bool(rows.chains.live())
    except DatabaseUnavailable:
        return if_unavailable


@contextlib.contextmanager
def _open_records() -> Iterator[SqlRecords]:
    """Open the records and close them again, so that no fork inherits a connection."""
    from app.events.database import Database
    from app.events.sql_log import SqlRecords
    from app.settings import settings

    records = SqlRecords(Database(settings().database_url))
    try:
        yield records
    finally:
        records.close()


def work(queue: str) -> NoReturn:
    """Run the Celery worker of a queue until it ends."""
    import_worker_modules()  # Celery puts the working folder first on the path, but imports no module twice
    serve_queue(queue)


def serve_api(host: str, port: int) -> None:
    """Run the API of a stack, which logs no requests."""
    importlib.import_module("app.api.server").serve(host, port, access_log=False)


def serve_queue(queue: str, **options: Any) -> NoReturn:
    """As `app.workers.queue_worker.serve`, which reads the settings when it is imported."""
    from app.workers.queue_worker import serve

    serve(queue, **options)


def worker_options(queue: str) -> dict[str, Any]:
    """The scheduler needs no process of its own for its tasks, and no process of this machine reads heartbeats."""
    return {"without_heartbeat": True, **({"pool": "solo"} if queue == SCHEDULER else {})}


MAX_LOG_CHARACTERS = 200
"""How many characters of a log's last line are printed."""

LOOK_SECONDS = 0.05


class StopRequested(Exception):
    """This process received SIGTERM."""


class Prefork:
    """The forks, by process id."""

    def __init__(self, logs: Path) -> None:
        self._logs = logs
        self._names: dict[int, str] = {}

    def start(self, commands: Mapping[str, Callable[[], object]]) -> None:
        """Fork. In a fork, this ends in SystemExit when its command does."""
        gc.freeze()  # keeps the present objects' memory shared between the forks, and out of every collection
        gc.enable()
        for name, command in commands.items():
            self._names[self._fork(name, command)] = name

    def watch(self) -> int:
        """Wait until a fork ends by itself, or until SIGTERM and the workers' last saves; return the exit code."""
        try:
            signal.signal(signal.SIGTERM, _raise_stop)
            pid, status = os.wait()
        except StopRequested:
            self._wait_for_workers()
            return 0
        name, code = self._names.pop(pid), os.waitstatus_to_exitcode(status)
        log = self._logs / f"{name}.log"
        ending = last_line(log)[:MAX_LOG_CHARACTERS]
        print(f"{name} ended with exit code {code}{ending} (its log is {log})", flush=True)
        return 1

    def _wait_for_workers(self) -> None:
        """Let the workers save. The API shows their progress meanwhile, and ends with this process."""
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        workers = {pid for pid, name in self._names.items() if name != API}
        if not has_work(if_unavailable=False):
            return
        for pid in workers:
            os.kill(pid, signal.SIGTERM)
        while workers and has_work(if_unavailable=True):
            workers -= {pid for pid in workers if _has_ended(pid)}
            time.sleep(LOOK_SECONDS)

    def _fork(self, name: str, command: Callable[[], object]) -> int:
        parent = os.getpid()
        if pid := os.fork():
            return pid
        end_with_parent()
        if os.getppid() != parent:  # the parent died before end_with_parent took effect
            os._exit(1)
        with (self._logs / f"{name}.log").open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        command()
        sys.exit()


def _has_ended(pid: int) -> bool:
    try:
        return os.waitpid(pid, os.WNOHANG)[0] == pid
    except ChildProcessError:  # it was reaped when SIGTERM arrived
        return True


def _raise_stop(*_: object) -> NoReturn:
    raise StopRequested


if __name__ == "__main__":
    sys.exit(main())
