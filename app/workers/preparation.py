"""Starts the next chain's process and builds its trainer while another chain trains.

For trainers that can have no template, as on a GPU: see `app.workers.template`.

Runs on: the thread that trains; `_run` on a thread of its own.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable

from app.workers.template import TemplateKey
from app.workers.threads import THREADS, Executor
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import TrainerKilled
from app.workers.warm import WarmFailed
from stagetree.runtime.failures import TrainerFailed
from stagetree.system.files import anonymous_file

logger = logging.getLogger(__name__)

MAX_OUTPUT_BYTES = 2**18


class Preparation:
    """key: of the trainer that the process builds.
    start: starts a fresh process.
    build: builds the model in it.
    """

    def __init__(
        self,
        key: TemplateKey,
        start: Callable[[], TrainerClient],
        build: Callable[[TrainerClient], object],
        executor: Executor = THREADS,
    ) -> None:
        self.key, self._start, self._build = key, start, build
        self._process: TrainerClient | None = None
        self._is_built = self._is_dropped = False
        self._printed, self._begun_at = anonymous_file(0), time.time()
        self._task = executor.spawn("preparation", self._run)

    def take(self) -> tuple[TrainerClient, bytes] | None:
        """The process and its output, once it is ready; None if it failed or is outdated."""
        self._task.join()
        process, self._process = self._process, None
        printed = os.pread(self._printed, MAX_OUTPUT_BYTES, 0)
        os.close(self._printed)
        if process is None or not self._is_built or self._is_outdated(process):
            if process is not None:
                process.close()
            return None
        return process, printed

    def drop(self) -> None:
        """Kill the process; if it is still starting, it ends afterwards."""
        self._is_dropped = True
        if (process := self._process) is None:
            return
        process.kill()
        self._task.join()
        process.close()
        os.close(self._printed)

    def _run(self) -> None:
        try:
            self._process = process = self._start()
            if self._is_dropped:
                process.close()
                os.close(self._printed)
                return
            process.leader.tell("log", {"fds": [self._printed]})
            self._build(process)
            self._is_built = True
        except (WarmFailed, TrainerFailed, TrainerKilled, OSError) as problem:
            logger.info("no process is ready for the next chain of trainer %r: %s", self.key.trainer, problem)

    def _is_outdated(self, process: TrainerClient) -> bool:
        """Whether a file that the trainer read has changed since: a process built now would read the new one."""
        return any(_change_time(name) >= self._begun_at for name, *_ in process.leader.uses["read"])


def _change_time(name: str) -> float:
    try:
        return os.stat(name).st_ctime
    except OSError:
        return time.time()
