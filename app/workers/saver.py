"""Checkpoints are hashed, stored and put on record by one thread, while the next stage trains.

Everything goes through one queue, so that a chain is closed only after its last checkpoint is on record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from queue import Queue
from threading import Thread

from app.workers.checkpoints import Checkpoints, Stored

logger = logging.getLogger(__name__)

RETRY_SECONDS = (0.5, 2.0, 5.0)
"""How long to wait before storing a checkpoint again that could not be stored."""


class Saver:
    """Runs jobs in order on its own thread; at most `backlog` of them wait, then `submit` does."""

    def __init__(self, checkpoints: Checkpoints, backlog: int = 4) -> None:
        self._checkpoints = checkpoints
        self._jobs: Queue[Callable[[], None] | None] = Queue(maxsize=backlog)
        self._thread = Thread(target=self._work, name="saver", daemon=True)
        self._thread.start()

    def save(
        self, place: str, state: bytes, then: Callable[[Stored, float], None], failed: Callable[[str], None]
    ) -> None:
        """Store `state`; `then` gets what was stored and the seconds it took, or `failed` the reason why it was not."""
        self.submit(lambda: self._save(place, state, then, failed))

    def submit(self, job: Callable[[], None]) -> None:
        """Run a job after those before it."""
        self._jobs.put(job)

    def is_idle(self) -> bool:
        return self._jobs.unfinished_tasks == 0

    def wait(self) -> None:
        """Return when every job so far is done."""
        self._jobs.join()

    def _work(self) -> None:
        while True:
            job = self._jobs.get()
            try:
                if job is not None:
                    job()
            except Exception:
                logger.exception("a job of the saver failed")
            finally:
                self._jobs.task_done()

    def _save(
        self, place: str, state: bytes, then: Callable[[Stored, float], None], failed: Callable[[str], None]
    ) -> None:
        begun = time.monotonic()
        try:
            stored = self._store(place, state)
        except Exception as error:  # whatever the storage library raises
            logger.warning("checkpoint %s could not be written: %s", place, error)
            failed(f"the checkpoint could not be written: {error}")
        else:
            then(stored, time.monotonic() - begun)

    def _store(self, place: str, data: bytes) -> Stored:
        for pause in RETRY_SECONDS:
            try:
                return self._checkpoints.write(place, data)
            except Exception as error:
                logger.info("checkpoint %s is tried again in %s s: %s", place, pause, error)
                time.sleep(pause)
        return self._checkpoints.write(place, data)
