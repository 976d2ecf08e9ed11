"""Reads what studies name, without being blocked by it: on a dead mount a system call may never return.

A child process reads, and is killed when its time is over or no caller waits any more. It starts with the first
request, and then serves for as long as it answers.

Runs on: any thread.
"""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from threading import Lock
from typing import Any

from app import input_fingerprints
from app.input_fingerprints import EVERYWHERE, InputTimeout, InputUnread

logger = logging.getLogger(__name__)

Json = dict[str, Any]

POLL_SECONDS = 0.2
"""The time between two calls of `OnWait`."""

ALARM_SECONDS = 5.0
"""How much later the child ends by itself, if the owner is gone."""

MAX_PROCESSES = 8
"""The most processes of a reader, with killed ones that the kernel holds: a large folder takes half a gigabyte."""

MAX_IDLE = 2
END_SECONDS = 0.5


@dataclass(frozen=True, slots=True)
class ReadRequest:
    """operation: one of `app.input_process`. folders: what may be read. more: the operation's other arguments."""

    operation: str
    path: str
    folders: Sequence[str] = EVERYWHERE
    more: tuple[Any, ...] = ()

    @classmethod
    def look(cls, path: str, folders: Sequence[str]) -> ReadRequest:
        """As `input_fingerprints.look`."""
        return cls("look", path, folders)

    @classmethod
    def content_changed(cls, record: Mapping[str, Any], folders: Sequence[str] = EVERYWHERE) -> ReadRequest:
        """As `input_fingerprints.content_changed`."""
        return cls("content_changed", record["path"], folders, (dict(record),))

    @classmethod
    def stamp(cls, path: str, folders: Sequence[str]) -> ReadRequest:
        """As `look`, without the content."""
        return cls("stamp", path, folders)

    @classmethod
    def file_changed(cls, path: str, sha256: str) -> ReadRequest:
        """Whether a file has another `input_fingerprints.hash_of`."""
        return cls("file_changed", path, more=(sha256,))

    @classmethod
    def check_readable(cls, path: str, folders: Sequence[str]) -> ReadRequest:
        """As `input_fingerprints.check_readable`."""
        return cls("check_readable", path, folders)

    @classmethod
    def record_undeclared(cls, paths: Sequence[str]) -> ReadRequest:
        """As `undeclared_inputs.record_undeclared`, for files and patterns."""
        return cls("record_undeclared", paths[0], more=(list(paths),))

    @classmethod
    def undeclared_changed(cls, record: Mapping[str, Any], folders: Sequence[str] = EVERYWHERE) -> ReadRequest:
        """As `undeclared_inputs.has_changed`, for a file or a pattern."""
        return cls("undeclared_changed", record["path"], folders, (dict(record),))


READY = ReadRequest("ready", "")
"""Reads nothing: the answer comes when the process has started."""

OnWait = Callable[[str, float], None]
"""Called several times a second with a path and the seconds for which it is read. An error that it raises ends that."""


class InputReader:
    """seconds: how long all requests of one call may take together."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._pool = seconds, _Pool()

    def read(self, requests: Iterable[ReadRequest], on_wait: OnWait = lambda path, seconds: None) -> list[Any]:
        """For each request the value, or the `InputMissing`; `InputTimeout` for all that follow one that is late.

        Raises what `on_wait` does.
        """
        results, ends_at = list[Any](), time.monotonic() + self._seconds
        problem: InputUnread | None = None
        for request in requests:
            if problem is None:
                results.append(self._read(request, ends_at, on_wait))
                problem = results[-1] if isinstance(results[-1], InputTimeout) else None
            else:
                results.append(InputTimeout(f"{request.path} was not read, because {problem}"))
        return results

    def prepare(self) -> None:
        """Start a process for the next request, if none waits for one: that takes a fifth of a second."""
        with suppress(OSError):  # the next request reports it
            self._pool.prepare()

    def close(self) -> None:
        """End the processes that serve no request."""
        self._pool.close()

    def _read(self, request: ReadRequest, ends_at: float, on_wait: OnWait) -> Any:
        """The value, or the problem as an exception."""
        begun_at, child = time.monotonic(), None
        try:
            while (child := self._pool.take()) is None:
                if time.monotonic() >= ends_at:
                    return InputTimeout(f"{request.path} was not read: {MAX_PROCESSES} other reads do not end")
                on_wait(request.path, time.monotonic() - begun_at)
                time.sleep(POLL_SECONDS)
            return self._await(child, request, ends_at, on_wait)
        except (EOFError, OSError) as problem:
            logger.warning("%s was not read: its process has ended, or could not start (%s)", request.path, problem)
            return InputUnread(f"{request.path} was not read: its process has ended")
        finally:
            if child is not None:
                self._pool.give_back(child)

    def _await(self, child: _Child, request: ReadRequest, ends_at: float, on_wait: OnWait) -> Any:
        """Raises EOFError or OSError if the process ends."""
        begun_at = now = time.monotonic()
        child.ask(request, max(0.0, ends_at - now) + ALARM_SECONDS)
        while (answer := child.answer(min(POLL_SECONDS, max(0.0, ends_at - now)))) is None:
            now = time.monotonic()
            if now >= ends_at:
                return InputTimeout(f"{request.path} was not read within {self._seconds:.0f} s")
            on_wait(request.path, now - begun_at)
        if "problem" in answer:
            kind, text = answer["problem"]
            return getattr(input_fingerprints, kind)(text)
        return answer["value"]


class _Pool:
    """At most `MAX_PROCESSES` children. Thread-safe."""

    def __init__(self) -> None:
        self._idle, self._ending = list[_Child](), list[_Child]()
        self._busy, self._lock = 0, Lock()

    def take(self) -> _Child | None:
        """A child that waits for a request; None if there are too many. Raises OSError."""
        with self._lock:
            self._idle, self._ending = (
                [each for each in some if not each.has_ended] for some in (self._idle, self._ending)
            )
            if self._busy + len(self._ending) >= MAX_PROCESSES:
                return None
            child = self._idle.pop() if self._idle else _Child()
            self._busy += 1
            return child

    def prepare(self) -> None:
        """Raises OSError."""
        child = self.take()
        if child is not None:
            self.give_back(child)

    def give_back(self, child: _Child) -> None:
        with self._lock:
            self._busy -= 1
            if child.is_free and len(self._idle) < MAX_IDLE:
                self._idle.append(child)
                return
            self._ending.append(child)
        child.kill()

    def close(self) -> None:
        with self._lock:
            idle, self._idle = self._idle, []
        for child in idle:
            child.close()


class _Child:
    """A process that reads. is_free: whether it owes no answer. Raises OSError if it cannot be started."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "app.input_process"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            bufsize=0,
            start_new_session=True,  # keeps Ctrl-C away from it
        )
        self._received, self.is_free = b"", True

    @property
    def has_ended(self) -> bool:
        return self._process.poll() is not None

    def ask(self, request: ReadRequest, seconds: float) -> None:
        """Raises OSError if the process has ended."""
        asked: Json = {"operation": request.operation, "path": request.path, "folders": list(request.folders)}
        asked |= {"more": request.more, "seconds": seconds}
        self.is_free = False
        assert self._process.stdin is not None
        rest = memoryview(json.dumps(asked).encode() + b"\n")
        while rest:
            rest = rest[self._process.stdin.write(rest) :]

    def answer(self, seconds: float) -> Json | None:
        """The answer, or None if it has not come within this time. Raises EOFError if the process has ended."""
        assert self._process.stdout is not None
        waiting = select.poll()
        waiting.register(self._process.stdout, select.POLLIN)
        if not waiting.poll(1000 * seconds):
            return None
        part = self._process.stdout.read(2**20)
        if not part:
            raise EOFError
        self._received += part
        if not self._received.endswith(b"\n"):
            return None
        answered, self._received, self.is_free = self._received, b"", True
        return dict(json.loads(answered))

    def kill(self) -> None:
        """Waits for the end only for a moment: it may not come while a system call blocks."""
        self._process.kill()
        self._close_pipes()
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(END_SECONDS)

    def close(self) -> None:
        """End the process, which serves no request."""
        self._close_pipes()
        self._process.wait()

    def _close_pipes(self) -> None:
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()
