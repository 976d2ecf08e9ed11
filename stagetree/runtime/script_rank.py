"""A rank of a launched script: it runs the script, command by command.

    torchrun --nproc-per-node 2 -m stagetree.runtime.script_rank

The launcher sets the environment for `torch.distributed`. The global generators are the rank's own: they are seeded
with the study's seed when the script begins, belong to the state, and are not affected by evaluations.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed, user_code
from stagetree.runtime.loading import imports_of
from stagetree.runtime.machine import Machine, log_to_stderr, print_to, refuse_breakpoints
from stagetree.runtime.model import HpTimeline, Model
from stagetree.runtime.reads.undeclared_reads import reads_of, watch_reads
from stagetree.runtime.scripts.launched_trainer import SOCKET
from stagetree.runtime.scripts.script_trainer import script_trainer
from stagetree.runtime.scripts.step_grant import Grant, GrantLost
from stagetree.runtime.wire import Message, Wire
from stagetree.system.processes import end_with_parent, prefer_for_killing
from stagetree.trainer import generators


class Rank:
    """The handlers of the trainer process's commands. Each returns the answer and its files."""

    def __init__(self, number: int, world: int) -> None:
        self._number, self._world = number, world
        self._device, self._file = "cpu", ""
        self._grant: Grant | None = None
        self._model: Model | None = None
        self.taken = 0  # steps taken in the current command
        watch_reads()

    def begin(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        """Run the script up to its loop."""
        self._grant, device, self._file = Grant(files[0], self._world), message["device"], message["file"]
        if device != "cpu":
            device = f"cuda:{int(os.environ.get('LOCAL_RANK', '0')) % torch.cuda.device_count()}"
        Machine(device, None, message["threads"], message["determinism"]).prepare()
        with user_code():
            imports = imports_of(Path(self._file))
            if imports.version != message["version"]:
                raise RuntimeError(f"{imports.path} has changed since this version of the trainer was loaded")
            kind = script_trainer(message["name"], imports)
        self._device = device
        self._model = Model.build(kind, message["args"], message["seed"], device)
        return {}, []

    def train(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        """Take steps as far as they are granted, each with its new values.

        Nothing has changed the generators since the last step.
        """
        assert self._grant is not None
        trainer, begins, self.taken = self._current_model.trainer, self._grant.may_begin, 0
        with user_code(but=GrantLost):
            for values in message["changes"]:
                if not begins(self._number, self.taken):
                    break
                if values:
                    trainer.setup(values)
                trainer.train()
                self.taken += 1
        return {"taken": self.taken}, []

    def evaluate(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        with self._saving_generators():
            return {"metrics": self._current_model.evaluate(), "not_exact": inexact_reasons.recorded_operations()}, []

    def save(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        with self._saving_generators():
            return {}, [self._current_model.save()[0]]

    def load(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        """Load the state in the file, with these values in force."""
        self._current_model.load(state_format.read(files[0]), HpTimeline(message["values"]), 1)
        generators.restore(self._current_model.generators, self._device)
        return {}, []

    def logged(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        return {"logged": self._current_model.logged_means()}, []

    def unread(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        return {"unread": self._current_model.unread()}, []

    def files(self, message: Message, files: list[int]) -> tuple[Message, list[int]]:
        return {"files": reads_of(self._current_model.trainer, self._file)}, []

    def log(self, message: Message, files: list[int]) -> None:
        """Redirect output to these files."""
        print_to(os.dup(files[0]))

    @property
    def _current_model(self) -> Model:
        assert self._model is not None
        return self._model

    @contextmanager
    def _saving_generators(self) -> Iterator[None]:
        """Save and restore the generators around a command: their current states belong to the state."""
        self._current_model.finish_step(generators.state(self._device))
        yield
        generators.restore(self._current_model.generators, self._device)


def serve(wire: Wire, rank: Rank) -> None:
    """Carry out commands. Raises EOFError, ConnectionError or `GrantLost` when the trainer's process is gone."""
    while (arrived := wire.receive(None)) is not None:
        message, files = arrived
        answer: Message | None
        passed: list[int] = []
        try:
            result: Any = getattr(rank, message["do"])(message, files)
            answer, passed = result if result is not None else (None, [])
        except TrainerFailed as failed:
            told = {"error": failed.error, "signature": failed.signature, "taken": rank.taken}
            answer = {"failed": failed.kind, **told}
        if answer is not None:
            wire.send(answer, *passed)
        for fd in (*files, *passed):
            os.close(fd)


def main() -> None:
    end_with_parent()  # ranks die with a killed launcher
    os.environ.pop("PYTHONSAFEPATH", None)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(os.environ.pop(SOCKET))
    wire = Wire(connection)
    number, world = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    wire.send({"rank": number, "world": world})
    log_to_stderr()
    refuse_breakpoints()
    prefer_for_killing()
    inexact_reasons.watch()
    try:
        serve(wire, Rank(number, world))
    except (EOFError, ConnectionError, GrantLost):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)  # destroying the process group might wait for ranks that are gone


if __name__ == "__main__":
    main()
