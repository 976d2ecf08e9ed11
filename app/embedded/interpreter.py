"""The stack's interpreter that has imported torch. It imports most, so it starts first.

It starts before the decision whether there will be a stack, and receives later which trainers to import.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from app.embedded.machine import PRIVATE, Scratch, checkout_path, kill
from stagetree.runtime.failures import STACK
from stagetree.runtime.warm import TOLD, launch
from stagetree.runtime.wire import Wire
from stagetree.system.processes import end_with_parent


class Interpreter:
    """Forks trainer processes for all slots, at `address`. `folder` is deleted with it.

    It ends with this process. If it dies earlier, each slot starts one of its own.
    """

    def __init__(self) -> None:
        self._scratch = Scratch()
        self.folder = self._scratch.path
        self.address = f"{self.folder}/trainers.sock"
        with Path(self.folder, "trainers.log").open("a+b") as log:
            self.process, ours = launch(
                self.address,
                log,
                [TOLD],
                env={STACK: self.folder, "PYTHONPATH": import_path()},
                umask=PRIVATE,
                preexec_fn=partial(end_with_parent, os.getpid()),
            )
        self._wire = Wire(ours)

    def tell(self, files: Sequence[str], log: IO[bytes]) -> None:
        """Send the trainer files to import, and the log for its output, past and future."""
        try:
            self._wire.send({"files": list(files)}, log.fileno())
        except ConnectionError:
            return  # it has ended: slots help themselves

    def close(self) -> None:
        """End it and all its forks. May be called twice."""
        if self.process.returncode is None:  # else its id may be another's
            kill(self.process)
            self._wire.close()
            self._scratch.delete()


def import_path() -> str:
    """The import path of a stack's processes: this package first, if it is a checkout."""
    return os.pathsep.join(filter(None, (checkout_path(), os.environ.get("PYTHONPATH"))))
