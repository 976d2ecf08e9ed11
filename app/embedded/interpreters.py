"""The two interpreters that a stack's processes are forked from: of the trainers, and of the API and the workers.

They import most, so they start first, before it is known whether there will be a stack. They receive later what to run.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import IO

from app.embedded.machine import PRIVATE, PYTHON, Scratch, checkout_path, kill
from app.process.logs import last_line
from stagetree.runtime.failures import SAME_ORDER, STACK
from stagetree.runtime.warm import TOLD, launch
from stagetree.runtime.wire import Wire, pair
from stagetree.system.processes import end_with_parent


class Interpreters:
    """Both, and the temporary folder of their stack, which is deleted with them. They end with this process."""

    def __init__(self) -> None:
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self.trainers = TrainerInterpreter(self.folder)  # first: torch takes longest
        self.workers = WorkerInterpreter(self.folder)

    def close(self) -> None:
        """End both and all their forks. May be called twice."""
        for each in (self.workers, self.trainers):
            if each.process.returncode is None:  # else its id may be another's
                kill(each.process)
            each.wire.close()
        self._scratch.delete()


class TrainerInterpreter:
    """Forks trainer processes for all slots, at `address`. If it dies, each slot starts one of its own."""

    def __init__(self, folder: str) -> None:
        self.address = f"{folder}/trainers.sock"
        with Path(folder, "trainers.log").open("a+b") as log:
            self.process, ours = launch(
                self.address,
                log,
                [TOLD],
                env={STACK: folder, "PYTHONPATH": import_path()},
                umask=PRIVATE,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )
        self.wire = Wire(ours)

    def tell(self, files: Sequence[str], log: IO[bytes]) -> None:
        """Send the trainer files to import, and the log for its output, past and future."""
        with suppress(ConnectionError):  # it has ended: slots help themselves
            self.wire.send({"files": list(files)}, log.fileno())


class WorkerInterpreter:
    """Forks the API and the workers, see `app.workers.prefork`."""

    def __init__(self, folder: str) -> None:
        ours, theirs = pair()
        self._early_log = Path(folder, "workers.log")
        # Celery's pools leave a folder among the temporary files when they are killed: it goes with ours.
        own = {STACK: folder, "TMPDIR": folder, "PYTHONPATH": import_path()}
        with theirs, self._early_log.open("a+b") as log:
            self.process = subprocess.Popen(
                [*PYTHON, "app.workers.prefork"],
                env={**SAME_ORDER, **os.environ, **own},
                stdin=theirs.fileno(),
                stdout=log,
                stderr=subprocess.STDOUT,
                umask=PRIVATE,
                start_new_session=True,  # Ctrl-C is for us to handle
                preexec_fn=partial(end_with_parent, os.getpid()),
            )
        self.wire = Wire(ours)

    def tell(
        self,
        queues: Sequence[str],
        logs: Path,
        settings: Mapping[str, str],
        log: IO[bytes],
        api: tuple[str, int] | None = None,
    ) -> None:
        """Send what to run.

        queues: of the workers.
        logs: the folder of the forks' logs.
        settings: environment variables.
        log: of its own output, past and future.
        api: host and port of the API, if there is one.
        """
        orders = {"queues": queues, "api": api, "logs": str(logs), "settings": settings}
        with suppress(ConnectionError):  # it has ended, which `await_database` finds
            self.wire.send(orders, log.fileno())

    def await_database(self, seconds: float) -> str:
        """Wait until the database is ready; the problem with it, or nothing. Raises TimeoutError, and EOFError if the
        interpreter has ended.
        """
        if (answer := self.wire.receive(seconds)) is None:
            raise TimeoutError
        return str(answer[0]["problem"])

    def release(self) -> None:
        """Let the forks begin."""
        self.wire.finish()

    def last_words(self, log: Path) -> str:
        """The last line of its log, or of what it wrote before it had that; as `last_line`."""
        return last_line(log) or last_line(self._early_log)


def import_path() -> str:
    """The import path of a stack's processes: this package first, if it is a checkout."""
    return os.pathsep.join(filter(None, (checkout_path(), os.environ.get("PYTHONPATH"))))
