"""The bytes of states that all slots of a host hold in memory for upload, and their limit.

Runs on: any thread.
"""

from __future__ import annotations

import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Lock
from uuid import uuid4

from app.workers.slot.worker_thread import LOOK_SECONDS
from stagetree.backoff import Backoff

logger = logging.getLogger(__name__)


class HostBacklog:
    """Each slot may always have one state, however large, so none waits forever.

    Each slot writes its bytes into its own file, whose lock the kernel releases when the process dies. If the folder is
    unusable, there is no limit.
    """

    def __init__(self, folder: Path, limit: int) -> None:
        self.limit, self._folder, self._mine, self._lock = limit, folder, 0, Lock()
        self._path, self._file = folder / f"{uuid4().hex}.bytes", -1
        with self._log_errors():
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._file = _open_locked(self._path)

    def add(self, size: int) -> int:
        """Count a state if there is room for it. Returns 0, or the present bytes if there is no room."""
        with self._lock:
            with self._log_errors(), self._lock_folder():
                if self._mine and (there := self._mine + self._others()) + size > self.limit:
                    return there
                self._write(self._mine + size)
            self._mine += size
            return 0

    def remove(self, size: int) -> None:
        """A state is stored, or not needed any more."""
        with self._lock:
            self._mine -= size
            with self._log_errors():
                self._write(self._mine)

    def close(self) -> None:
        if self._file >= 0:
            self._path.unlink(missing_ok=True)
            os.close(self._file)
            self._file = -1

    def _others(self) -> int:
        return sum(_read_bytes(path) for path in self._folder.glob("*.bytes") if path != self._path)

    def _write(self, size: int) -> None:
        if self._file >= 0:
            os.pwrite(self._file, f"{size:020}".encode(), 0)

    @contextmanager
    def _lock_folder(self) -> Iterator[None]:
        """If two slots ask at once, the second sees the first one's state."""
        file = _open_locked(self._folder / "lock")
        try:
            yield
        finally:
            os.close(file)

    @contextmanager
    def _log_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as problem:
            logger.warning("bytes on their way to the store are not counted in %s: %s", self._folder, problem)


def _open_locked(path: Path) -> int:
    """Raises BlockingIOError if another process holds the lock for long, for example a stopped one."""
    file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        for _ in Backoff(0.001, LOOK_SECONDS).attempts(most=20):
            with suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return file
        raise BlockingIOError(f"{path} is locked by another process")
    except BaseException:
        os.close(file)
        raise


def _read_bytes(path: Path) -> int:
    """Another slot's bytes; 0 if it is dead, and its file is deleted."""
    with suppress(FileNotFoundError):
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(os.read(file, 20) or 0)
        finally:
            os.close(file)
        path.unlink(missing_ok=True)
    return 0
