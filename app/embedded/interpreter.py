"""The interpreter of a stack that has imported torch: it has most to import, so it begins first.

It is started before it is known whether there will be a stack at all, and told later which trainers that has.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import IO

from app.embedded.machine import PRIVATE, Scratch, checkout_path, end_with_parent, kill
from stagetree.runtime.failures import STACK
from stagetree.runtime.warm import TOLD, launch
from stagetree.runtime.wire import Wire


class Interpreter:
    """It forks a process that trains for whichever slot asks, at `address`; `folder` is deleted with it.

    It ends when this process does. Should it end before, each slot starts one of its own.
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
        """Which files have trainers, and the log for all that it says, so far and from here on."""
        try:
            self._wire.send({"files": list(files)}, log.fileno())
        except ConnectionError:
            return  # it has ended: slots help themselves

    def close(self) -> None:
        """End it, and all that it forked. Harmless where that was done."""
        if self.process.returncode is None:  # else its id may be another's
            kill(self.process)
            self._wire.close()
            self._scratch.delete()


def import_path() -> str:
    """Where the processes of a stack import from: this package first, where it is a checkout."""
    return os.pathsep.join(filter(None, (checkout_path(), os.environ.get("PYTHONPATH"))))
