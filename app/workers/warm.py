"""Runs on: the thread that trains.

Trainers' processes as a slot has them: forked on request from an interpreter that is always there; how much memory
each holds, which must not become more and more.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import subprocess
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from threading import Lock
from typing import Any

from stagetree.runtime.warm import launch
from stagetree.runtime.wire import Message, Wire, pair

logger = logging.getLogger(__name__)

START_SECONDS = 120.0
"""Importing torch takes a few seconds, on a cold network disk a minute."""

END_SECONDS = 1.0
"""It has nothing to do before it ends."""


@dataclass(frozen=True, slots=True)
class TrainerSettings:
    """What a process that trains is given of its machine, or each rank of a group: see
    `stagetree.runtime.machine.Machine`.

    visible_devices: of all ranks of a group, in their order: `0,1,2,3`, of which rank 1 trains on the second.
    """

    device: str = "cpu"
    visible_devices: str | None = None
    memory_fraction: float = 1.0
    threads: int = 1
    determinism: str = "strict"
    cuda_graphs: bool = False

    def to_json(self, rank: int = 0) -> dict[str, Any]:
        """For a rank, each of which has a device of its own."""
        return asdict(self) | {"device": self.device if self.device == "cpu" else f"cuda:{rank}"}


CPU_SETTINGS = TrainerSettings()


class WarmFailed(Exception):
    """There is no warm interpreter to fork a trainer's process from; the message is one sentence that says why."""


class Warm:
    """One for this process alone, or, where `path` is a socket that one listens on, that of the whole machine.

    files: of trainers; the libraries that they name are imported once, before anything is forked.
    """

    def __init__(self, path: str = "", files: Sequence[str] = ()) -> None:
        self._path, self._files, self._asking = path, files, Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Wire | None = None

    def fork(self) -> tuple[Wire, Wire, int]:
        """A new process: the connection to it, its lifeline, its id. From any thread. Raises `WarmFailed`.

        An interpreter that has died is started again, once.
        """
        with self._asking:
            return self._fork_or_restart()

    def _fork_or_restart(self) -> tuple[Wire, Wire, int]:
        try:
            return self._fork()
        except (EOFError, OSError) as problem:
            logger.warning("the warm interpreter is started again: it has ended (%s)", problem)
        try:
            return self._fork()
        except (EOFError, OSError) as problem:
            raise WarmFailed(f"the interpreter that forks trainers cannot be started: {self._end(problem)}") from None

    def close(self) -> None:
        """Ask for no more. One of our own ends when the last process of it has, so those are closed first."""
        if self._requests is not None:
            self._requests.close()
            self._requests = None
        if self._process is not None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(END_SECONDS)

    def _fork(self) -> tuple[Wire, Wire, int]:
        try:
            return ForkRequest.send(self._connect(), START_SECONDS).answer(START_SECONDS)
        except BaseException:
            self.close()  # whoever asks again asks another one, which may have more luck
            raise

    def _connect(self) -> Wire:
        if self._requests is None:
            self._requests = Wire(self._open())
        return self._requests

    def _open(self) -> socket.socket:
        if self._path:
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                sock.connect(self._path)
                return sock
            except OSError as problem:
                sock.close()
                logger.warning("the warm interpreter of this machine is away (%s): this slot has its own", problem)
        self._process, ours = launch(files=self._files)
        return ours

    def _end(self, problem: Exception) -> str:
        """How our own interpreter ended, or else what was wrong."""
        if self._process is None:
            return str(problem)
        try:
            return f"it ended with exit code {self._process.wait(END_SECONDS)}; its log says more"
        except subprocess.TimeoutExpired:
            return str(problem)


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A fork that a `ForkServer` was asked for: the connection to it, and its lifeline."""

    connection: Wire
    lifeline: Wire

    @classmethod
    def send(cls, requests: Wire, seconds: float) -> ForkRequest:
        """Ask for a fork. Raises OSError, and `WireTimeout` if the request is not taken within `seconds`."""
        (connection, its_connection), (lifeline, its_lifeline) = pair(), pair()
        request = cls(Wire(connection), Wire(lifeline))
        try:
            with its_connection, its_lifeline:
                requests.send({}, its_connection.fileno(), its_lifeline.fileno(), timeout=seconds)
        except BaseException:
            request.close()
            raise
        return request

    def answer(self, seconds: float) -> tuple[Wire, Wire, int]:
        """The connection to the fork, its lifeline and its id. Raises `WarmFailed`, EOFError, OSError."""
        try:
            return self.connection, self.lifeline, _pid(self.lifeline.receive(seconds), seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The fork is wanted no more, and ends."""
        self.connection.close()
        self.lifeline.close()


def _pid(arrived: tuple[Message, list[int]] | None, seconds: float) -> int:
    if arrived is None:
        raise WarmFailed(f"the interpreter that forks trainers was not ready after {seconds:.0f} s")
    if "refused" in arrived[0]:
        raise WarmFailed(f"the interpreter that forks trainers cannot be started: {arrived[0]['refused']}")
    return int(arrived[0]["pid"])


FIRST_STAGES = 2
"""By the end of these, what a trainer loads when it is first used is there."""

LEAK_FRACTION = 0.25
"""Growth by less than that share is no leak, however large the process is."""


def resident_bytes(pid: int) -> int:
    """What the process has in memory for itself, without what it shares, such as the memory of checkpoints.

    0 where the system does not say, or when it has ended.
    """
    try:
        resident, shared = Path(f"/proc/{pid}/statm").read_text().split()[1:3]
    except (OSError, ValueError):
        return 0
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped by a signal, and not gone on. Linux only."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in ("T", "t")
    except (OSError, IndexError):
        return False


@dataclass(slots=True)
class MemoryWatch:
    """Told after each stage which model it trained, and what its process has in memory.

    Only stages of one model are compared: another one may be larger. allowed_bytes: growth by so much is no leak.
    growth: bytes since the first stages of the model that was trained last. has_grown: whether that is a leak.
    """

    allowed_bytes: int
    growth: int = 0
    has_grown: bool = False
    _first: dict[Hashable, list[int]] = field(default_factory=dict)

    def begin(self) -> None:
        """The process is another one."""
        self._first.clear()
        self.growth, self.has_grown = 0, False

    def note(self, model: Hashable, resident: int) -> None:
        """A stage is done."""
        first = self._first.setdefault(model, [])
        if len(first) < FIRST_STAGES:
            first.append(resident)
        self.growth = resident - max(first)
        self.has_grown = self.growth > max(self.allowed_bytes, LEAK_FRACTION * max(first))
