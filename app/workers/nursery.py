"""The workers of one machine as forks of one interpreter that has imported what they share; torch alone takes seconds.

    python -m app.workers.nursery LOGS '{"gpu0": ["celery", "-A", "app.workers", "worker", "-Q", "gpu0"], ...}'

Each fork becomes the worker that its command describes, with a log of its own, once standard input has ended: by then
the database must be there. Slots begin last, because only they need torch. The nursery ends when a fork does so by
itself; on SIGTERM it asks all of them to end, and waits.
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import signal
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from celery.__main__ import main as celery_main

from app.workers.process import SLOT_QUEUE
from app.workers.signals import end_with_parent

FOR_ALL = ("celery.bin.worker", "app.workers.tasks", "app.workers.scheduler.tick")
FOR_SLOTS = ("app.workers.slot", "app.workers.checkpoints", "torch._inductor.config", "torch._dynamo")
"""The last two are what torch imports when it is told to be deterministic, and for the first optimizer."""


def main() -> int:
    logs, commands = Path(sys.argv[1]), json.loads(sys.argv[2])
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")  # CUDA must not be started before the forks
    slots = {name: command for name, command in commands.items() if SLOT_QUEUE.fullmatch(name)}
    others = {name: command for name, command in commands.items() if name not in slots}
    nursery = Nursery(logs)
    load(FOR_ALL)
    sys.stdin.read()
    nursery.start(others)
    load(FOR_SLOTS)
    nursery.start(slots)
    return nursery.watch()


def load(modules: Sequence[str]) -> None:
    for name in modules:
        importlib.import_module(name)


class Nursery:
    """The forks, by process id."""

    def __init__(self, logs: Path) -> None:
        self._logs, self._ending = logs, False
        self._names: dict[int, str] = {}

    def start(self, commands: Mapping[str, Sequence[str]]) -> None:
        """Fork. In a fork, this ends in SystemExit when the worker does."""
        gc.freeze()  # what is there by now stays shared between the forks
        for name, command in commands.items():
            self._names[self._fork(name, command)] = name

    def watch(self) -> int:
        """Wait until a fork ends by itself, or all have ended because they were asked to; the exit code."""
        signal.signal(signal.SIGTERM, self._end)
        while self._names:
            pid, status = os.wait()
            name, code = self._names.pop(pid), os.waitstatus_to_exitcode(status)
            if not self._ending:
                print(f"{name} ended with exit code {code}; its log is {self._logs / name}.log", flush=True)
                return 1
        return 0

    def _fork(self, name: str, command: Sequence[str]) -> int:
        if pid := os.fork():
            return pid
        end_with_parent()
        with (self._logs / f"{name}.log").open("ab") as log:
            os.dup2(log.fileno(), sys.stdout.fileno())
            os.dup2(log.fileno(), sys.stderr.fileno())
        sys.argv = list(command)
        sys.exit(celery_main())

    def _end(self, number: int, _: object) -> None:
        self._ending = True
        for pid in self._names:
            os.kill(pid, number)


if __name__ == "__main__":
    sys.exit(main())
