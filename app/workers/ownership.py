"""Which worker has a slot: one at a time, decided without comparing process ids.

On one machine a file lock tells at once whether the previous worker is dead, since the kernel releases it. For a worker
on another machine, only its heartbeat shows whether it is alive. A worker that takes over a slot names the owner that
it replaces in the same statement, so that only one of two succeeds.

Runs on: a worker's main process, which holds the lock of its slot, and the heartbeat's thread in its fork.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import socket
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, Protocol
from uuid import uuid4

from app.events import RowsPort, SlotRecord, SlotTaken

LOCK_SECONDS = 3.0
"""A killed process may take a moment to end."""

SILENT_BEATS = 3.0
"""A worker on another machine is dead when its heartbeat has not moved for this many intervals."""


class Owner(Protocol):
    """A process's claim to a slot, as `Ownership` is one. `owner` is its token."""

    slot: str
    owner: str
    kind: str
    host: str
    address: str

    def take(self, rows: RowsPort, device: str) -> bool:
        """Become the slot's worker. False: another worker may have it; try again in a moment. Raises `SlotTaken`."""


def have_same_parent(owner: str, other: str) -> bool:
    """Whether one main process forked both owners: then it survived the death of the first."""
    return owner.count(":") == 2 and owner.rpartition(":")[0] == other.rpartition(":")[0]


class SlotLock:
    """The lock of one slot of one database on this machine, held until this process and its forks have ended.

    `id` is the lock file's. An earlier owner that recorded this id is dead.
    """

    def __init__(self, file: IO[str], id: str) -> None:
        self._file, self.id = file, id

    @classmethod
    def acquire(cls, slot: str, database_url: str, folder: str = "") -> SlotLock:
        """Raises `SlotTaken`. folder: by default a folder of this user that all its processes on this machine share."""
        digest = hashlib.sha256(f"{database_url}\n{slot}".encode()).hexdigest()[:16]
        path = runtime_folder(folder) / f"{digest}.lock"
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC  # refuses symbolic links
        file = os.fdopen(os.open(path, flags, 0o600), "r+")
        deadline = time.monotonic() + LOCK_SECONDS
        while not _try_lock(file):
            if time.monotonic() > deadline:
                file.seek(0)
                pid = file.read().partition(" ")[2] or "another"
                file.close()
                raise SlotTaken(f"slot {slot} is taken by process {pid} on this machine")
            time.sleep(0.05)
        return cls(file, _read_lock_id(file))

    def close(self) -> None:
        self._file.close()


class Ownership:
    """One worker's claim to a slot. `owner` is its token; a fork calls `begin` to get one of its own.

    heartbeat_seconds: the interval of all workers' heartbeats.
    clock: monotonic.
    kind: the model of the slot's device.
    host: this machine's name.
    address: where workers of other machines reach this one.
    """

    kind = address = ""
    host = socket.gethostname()

    def __init__(
        self,
        slot: str,
        lock: SlotLock,
        *,
        lease_seconds: float,
        heartbeat_seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.slot, self._lock, self._worker = slot, lock, uuid4().hex
        self._lease_seconds, self._watch_seconds = lease_seconds, SILENT_BEATS * heartbeat_seconds
        self._clock = clock
        self._seen: tuple[str, float] | None = None
        self._seen_since = 0.0
        self.begin()

    def begin(self) -> None:
        """Get a new token, which replaces all earlier ones of this machine."""
        self.owner = f"{self._lock.id}:{self._worker}:{uuid4().hex}"

    def is_ours(self, row: SlotRecord) -> bool:
        """Whether the row's owner held our lock: this process, its fork, or a dead predecessor."""
        return row.owner.startswith(f"{self._lock.id}:")

    def is_free(self, rows: RowsPort) -> bool:
        """Whether the slot may be taken. False: a worker elsewhere has it and may be dead; try again in a moment.

        Raises `SlotTaken` if that worker is alive.
        """
        return self._may_replace(rows, rows.slots.get(self.slot))

    def take(self, rows: RowsPort, device: str) -> bool:
        """Become the slot's worker. False as for `is_free`. Raises `SlotTaken`."""
        row = rows.slots.get(self.slot)  # read once: an owner that comes in between is not replaced
        if not self._may_replace(rows, row):
            return False
        instead_of = None if row is None else row.owner
        where: dict[str, Any] = {"host": self.host, "pid": os.getpid(), "address": self.address}
        rows.slots.take(self.slot, self.owner, instead_of=instead_of, device=device, kind=self.kind, **where)
        return True

    def _may_replace(self, rows: RowsPort, row: SlotRecord | None) -> bool:
        if row is None or self.is_ours(row) or rows.now() - row.seen_at > self._lease_seconds:
            return True
        return self._is_silent(row)

    def _is_silent(self, row: SlotRecord) -> bool:
        """Whether the other worker's heartbeat has stopped for long enough. Raises `SlotTaken` when it moves."""
        beat = row.owner, row.seen_at
        if self._seen is None:
            self._seen, self._seen_since = beat, self._clock()
        if beat != self._seen:
            raise SlotTaken(f"slot {self.slot} is taken by process {row.pid} on {row.host}")
        return self._clock() - self._seen_since >= self._watch_seconds


def runtime_folder(folder: str) -> Path:
    """The folder of lock files, private to this user. It must not be on a network disk."""
    base = os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()
    path = Path(folder) if folder else Path(base) / f"stagetree-{os.getuid()}"
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if path.stat().st_uid != os.getuid():
        raise SlotTaken(f"the folder for locks, {path}, is another user's")
    return path


def _try_lock(file: IO[str]) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _read_lock_id(file: IO[str]) -> str:
    """Read the file's permanent id, and write this process's id behind it, for people."""
    file.seek(0)
    id = file.read().partition(" ")[0] or uuid4().hex
    file.seek(0)
    file.truncate()
    file.write(f"{id} {os.getpid()}")
    file.flush()
    return id
