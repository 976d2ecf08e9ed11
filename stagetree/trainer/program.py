"""A running program: it trains some steps with the values in a file, and reports its progress."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from string import Formatter
from typing import Any, NoReturn

from stagetree.sequences import is_same_value
from stagetree.system.processes import end_with_parent

Values = Mapping[str, Any]

GIVEN = ("from", "to", "start", "stop", "schedule", "metrics", "evaluate", "seed", "device")
"""Names in a `CommandTrainer`'s template that are set for each process."""

FOLDERS = "stagetree-program-"

LAST_WORDS = 4000
"""Bytes of a program's stderr in its error message."""

OUT_OF_MEMORY = "MemoryError"
"""How Python's and torch's errors name exhausted memory; torch's is `OutOfMemoryError`."""

PAUSES = (0.001, 0.05)
"""The shortest and longest interval of reading a program's progress, in seconds."""


class ProgramFailed(RuntimeError):
    """A program failed or wrote an invalid line; the message says which and why."""


class ProgramKilled(ProgramFailed):
    """A program that was killed by a signal, for example by an accident of the machine."""


class ProgramOutOfMemory(ProgramFailed, MemoryError):
    """A program that ran out of memory of the machine or a device, by its own error."""


@dataclass(frozen=True, slots=True)
class ProgramOrder:
    """A program's task: train from step `start` with these values, step by step, and evaluate at some steps.

    checkpoint: where it writes its state. evaluate: the steps after which it evaluates. Without values it only
    evaluates.
    """

    start: int
    values: Sequence[Values]
    evaluate: frozenset[int]
    checkpoint: Path

    @property
    def stop(self) -> int:
        return self.start + len(self.values)

    @property
    def files(self) -> dict[str, Path]:
        """The files that the program reads and appends to, by their names in a template."""
        folder = self.checkpoint.parent
        return {"schedule": folder / "schedule.jsonl", "metrics": folder / "metrics.jsonl"}

    def trains(self, step: int, hp: Values) -> bool:
        """Whether that step is part of the task, with those values."""
        return self.start <= step < self.stop and is_same_value(self.values[step - self.start], hp)


class Program:
    """A process that carries out an order.

    step: the reported number of steps; -1 before the first report. measured: its reported metrics, by step.
    """

    def __init__(self, words: Sequence[str], order: ProgramOrder, cwd: Path) -> None:
        """Start it. Raises `ProgramFailed`, and OSError if there is no room for its files."""
        self.order, self.step = order, -1
        self._name = " ".join(words[:2])
        self.measured = dict[int, dict[str, float]]()
        self._logged = deque[tuple[int, dict[str, Any]]]()
        rows = ({"step": step, **each} for step, each in enumerate(order.values, order.start))
        order.files["schedule"].write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        order.files["metrics"].touch()
        self._lines, self._rest = order.files["metrics"].open("rb"), b""
        self._stderr, self._told = (order.checkpoint.parent / "stderr").open("wb+"), 0
        os.write(1, f"--- {shlex.join(words)}\n".encode())
        path = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        try:
            self._process = subprocess.Popen(
                words,
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stderr=self._stderr,
                env={**os.environ, "PATH": path},
                preexec_fn=end_with_us,
            )
        except OSError as error:
            raise ProgramFailed(f"{words[0]} cannot be started in {cwd}: {error.strerror}") from None

    def wait_for(self, step: int) -> None:
        """Wait until it has done `step` steps. Raises `ProgramFailed` if it ends before."""
        self._wait(lambda: self.step >= step)

    def metrics(self, step: int) -> dict[str, float]:
        """The metrics of a step in its order. Raises `ProgramFailed`."""
        self._wait(lambda: step in self.measured or self.step > step)
        if step not in self.measured:
            self._refuse(f"continued after step {step}, one of {{evaluate}}, without a line with its metrics")
        return self.measured[step]

    def take_logged(self, step: int) -> Iterator[tuple[str, Any]]:
        """The values logged up to that step, each once."""
        while self._logged and self._logged[0][0] <= step:
            yield from self._logged.popleft()[1].items()

    def finish(self) -> None:
        """Wait for its end and its checkpoint. Raises `ProgramFailed`."""
        order = self.order
        if code := self._code_at_its_end():
            self._refuse(self._ending_text(code), code)
        if self.step != order.stop:
            self._refuse(f"{self._ending_text(0)}, before step {order.stop}")
        if order.values and not order.checkpoint.exists():
            self._refuse(f"{self._ending_text(0)}, and wrote no checkpoint to {order.checkpoint}")

    def stop(self) -> int | None:
        """Stop it and shorten its order to the step of its checkpoint; None without one. Raises `ProgramFailed`."""
        order = self.order
        self._read()
        if self.step < order.stop and self._process.poll() is None:  # otherwise it is about to end anyway
            self._process.terminate()
        if self._code_at_its_end() or not order.checkpoint.exists() or self.step <= order.start:
            return None
        evaluate = frozenset(step for step in order.evaluate if step <= self.step)
        self.order = replace(order, values=order.values[: self.step - order.start], evaluate=evaluate)
        return self.step

    def kill(self) -> None:
        """Kill it and close its files."""
        self._end()
        self._lines.close()
        self._stderr.close()

    # ------------------------------------------------------------------------------------------------ progress

    def _wait(self, is_there: Callable[[], bool]) -> None:
        pause, longest = PAUSES
        while not is_there():
            code = self._process.poll()  # before its last lines are read
            if self._read():
                pause = PAUSES[0]
            elif code is not None:
                self._refuse(self._ending_text(code), code)
            else:
                time.sleep(pause)
                pause = min(longest, pause * 1.5)

    def _code_at_its_end(self) -> int:
        pause, longest = PAUSES
        while (code := self._process.poll()) is None:
            self._read()
            time.sleep(pause)
            pause = min(longest, pause * 1.5)
        self._read()
        return code

    def _read(self) -> bool:
        """Read new lines. Returns whether there were any."""
        self._pass_on()
        if not (new := self._lines.read()):
            return False
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            self._take(line)
        return True

    def _take(self, line: bytes) -> None:
        least, most = max(self.order.start, self.step), self.order.stop
        try:
            entry = json.loads(line)
            step, metrics, logged = entry["step"], entry.get("metrics"), entry.get("log") or {}
            if type(step) is not int or not least <= step <= most:
                raise ValueError(step)
            self._logged.append((step, dict(logged)))
            if metrics is not None:
                self.measured[step] = dict(metrics)
        except (ValueError, TypeError, KeyError, AttributeError):
            shown = line[:200].decode(errors="replace")
            expected = f'{{"step": N}}, with N from {least} to {most}'
            self._refuse(f"wrote a line to its file of metrics that is not like {expected}: {shown}")
        self.step = step

    def _pass_on(self) -> None:
        """Copy new output on stderr to the log."""
        self._stderr.seek(self._told)
        if new := self._stderr.read():
            self._told += len(new)
            os.write(2, new)

    # ------------------------------------------------------------------------------------------------ ending

    def _end(self) -> None:
        self._process.kill()
        self._process.wait()
        self._pass_on()

    def _ending_text(self, code: int) -> str:
        how = f"with exit code {code}" if code >= 0 else f"by signal {-code} ({signal.Signals(-code).name})"
        return f"ended at step {max(self.step, self.order.start)} {how}"

    def _refuse(self, deed: str, code: int = 0) -> NoReturn:
        self._end()
        self._stderr.seek(max(0, self._told - LAST_WORDS))
        words = self._stderr.read().decode(errors="replace").strip()
        kind = ProgramKilled if code < 0 else ProgramOutOfMemory if OUT_OF_MEMORY in words else ProgramFailed
        raise kind(f"{self._name} {deed}" + (f"; its last words:\n{words}" if words else ""))


def placeholders(command: str) -> list[str]:
    """The names in a command's template that stand for `trainer_args`. Raises ValueError for a bad template."""
    names = dict.fromkeys(name for _, name, _, _ in Formatter().parse(command) if name is not None)
    return [name for name in names if name not in GIVEN]


def end_with_us() -> None:
    """In the new process: die with the parent, and reset inherited signal handlers."""
    end_with_parent()
    for each in (signal.SIGTERM, signal.SIGINT):
        signal.signal(each, signal.SIG_DFL)


def folder_for_programs() -> Path:
    """A new temporary folder of this process. Raises OSError if there is no room."""
    # Remove the folders of processes that were killed.
    for folder in Path(tempfile.gettempdir()).glob(f"{FOLDERS}*"):
        pid = folder.name.removeprefix(FOLDERS).partition("-")[0]
        if pid.isdigit() and not _is_alive(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDERS}{os.getpid()}-"))


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True
