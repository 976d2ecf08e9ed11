"""The warm interpreter: forks trainer processes on request; also measures how much memory each process holds.

Runs on: the thread that trains.
"""

from __future__ import annotations

import contextlib
import logging
import socket
import subprocess
from collections.abc import Hashable, Sequence
from dataclasses import asdict, dataclass, field
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
    """The machine's share for a trainer process, or for each rank of a group: see `stagetree.runtime.machine.Machine`.

    visible_devices: of all ranks of a group, in order: with `0,1,2,3`, rank 1 trains on the second.
    """

    device: str = "cpu"
    visible_devices: str | None = None
    memory_fraction: float = 1.0
    threads: int = 1
    determinism: str = "strict"
    cuda_graphs: bool = False

    def to_json(self, rank: int = 0) -> dict[str, Any]:
        """The settings of a rank, each of which has a device of its own."""
        return asdict(self) | {"device": self.device if self.device == "cpu" else f"cuda:{rank}"}


CPU_SETTINGS = TrainerSettings()


class WarmFailed(Exception):
    """No trainer process can be forked; the message is one sentence with the reason."""


class Warm:
    """A warm interpreter of this process, or the machine's common one, which listens on the socket `path`.

    files: of trainers, whose libraries are imported once, before the first fork.
    """

    def __init__(self, path: str = "", files: Sequence[str] = ()) -> None:
        self._path, self._files, self._asking = path, files, Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._requests: Wire | None = None

    def fork(self) -> tuple[Wire, Wire, int]:
        """A new process: its connection, lifeline and id. From any thread. Raises `WarmFailed`.

        An interpreter that has died is restarted once.
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
        """Request no more forks. Close the forks first: an interpreter of our own ends after its last process."""
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
            self.close()  # the next request starts another interpreter
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
        """How our own interpreter ended, or else the problem."""
        if self._process is None:
            return str(problem)
        try:
            return f"it ended with exit code {self._process.wait(END_SECONDS)}; its log says more"
        except subprocess.TimeoutExpired:
            return str(problem)


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """A requested fork: its connection and its lifeline."""

    connection: Wire
    lifeline: Wire

    @classmethod
    def send(cls, requests: Wire, seconds: float) -> ForkRequest:
        """Request a fork. Raises OSError, and `WireTimeout` if the request is not taken within `seconds`."""
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
        """The fork's connection, lifeline and id. Raises `WarmFailed`, EOFError, OSError."""
        try:
            return self.connection, self.lifeline, _pid(self.lifeline.receive(seconds), seconds)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """The fork is not needed, and ends."""
        self.connection.close()
        self.lifeline.close()


def _pid(arrived: tuple[Message, list[int]] | None, seconds: float) -> int:
    if arrived is None:
        raise WarmFailed(f"the interpreter that forks trainers was not ready after {seconds:.0f} s")
    if "refused" in arrived[0]:
        raise WarmFailed(f"the interpreter that forks trainers cannot be started: {arrived[0]['refused']}")
    return int(arrived[0]["pid"])


FIRST_STAGES = 2
"""After this many stages, a trainer has loaded everything that it loads on first use."""

LEAK_FRACTION = 0.25
"""Growth by a smaller share is no leak, however large the process is."""


@dataclass(slots=True)
class MemoryWatch:
    """Watches a process's memory after each stage. Stages are compared only with stages of the same model.

    allowed_bytes: smaller growth is no leak.
    growth: bytes since the first stages of the model that was trained last.
    has_grown: whether that is a leak.
    """

    allowed_bytes: int
    growth: int = 0
    has_grown: bool = False
    _first: dict[Hashable, list[int]] = field(default_factory=dict)

    def begin(self) -> None:
        """Start anew for another process."""
        self._first.clear()
        self.growth, self.has_grown = 0, False

    def note(self, model: Hashable, resident: int) -> None:
        """Record the memory after a stage."""
        first = self._first.setdefault(model, [])
        if len(first) < FIRST_STAGES:
            first.append(resident)
        self.growth = resident - max(first)
        self.has_grown = self.growth > max(self.allowed_bytes, LEAK_FRACTION * max(first))
