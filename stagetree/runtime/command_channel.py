"""The trainer's side of its conversation with the slot: commands, answers, and progress while it trains.

Each command is answered by `done`, or by `failed` with the error, and with the files that were opened meanwhile. Behind
a command that `has_next` another one is already on its way: if the first takes only a moment, both are answered
together. While it trains, the process reports its step on its own, and checks between steps whether its last step was
changed.
"""

from __future__ import annotations

import os
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

from stagetree.runtime import inexact_reasons, machine
from stagetree.runtime.commands import Saved
from stagetree.runtime.failures import TrainerFailed, kind_of, plain, signature_of
from stagetree.runtime.machine import print_to
from stagetree.runtime.model import Journal, Model
from stagetree.runtime.packed import Lanes
from stagetree.runtime.reads import file_reads
from stagetree.runtime.reads.undeclared_reads import uses_of
from stagetree.runtime.template import TemplateRole
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer.ranks import group

TOGETHER_SECONDS = 0.5
"""The answer to a command that took longer does not wait for the next one: the slot must hear from the process."""

PROGRESS_SECONDS = 0.1
"""The interval of progress reports; longer steps are reported one by one."""


class Conversation:
    """A process with one model, or with the models of a pack. `_commands`: see `stagetree.runtime.commands`."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._commands: dict[str, Callable[..., Any]] = {}
        self._number = 0  # of the present command
        self._left: Sequence[str] = []
        self._file = ""  # of the trainer
        self._device, self._may_divide = "cpu", False
        self._model: Model | None = None
        self._lanes, self._journal, self._template = Lanes(), Journal(), TemplateRole()
        self._waiting: tuple[Message, list[int]] | None = None
        self._reported_at = 0.0

    def serve(self) -> None:
        """Raises EOFError, ConnectionError."""
        while (arrived := self._waiting or self._wire.receive(None)) is not None:
            (message, fds), self._waiting = arrived, None
            if message["do"] == "exit":
                self._journal.write_to(-1)
                self._template.end_at_once()
                return
            if (
                not self._handle_unanswered(message, fds) and message["do"] in self._commands
            ):  # else of a training that has ended
                self._answer(message, fds)
            if self._template.is_asked_for:
                self._journal.write_to(-1)
                self._wire = self._template.serve(self._wire)  # returns only in a fork, with its own connection
                if self._model is not None:
                    self._model.touch()

    def _answer(self, message: Message, fds: list[int]) -> None:
        do, self._number = message["do"], message["number"]
        file_reads.uses.begin(do)
        passed = list[int]()
        has_next, begun_at = message.pop("has_next", False), time.monotonic()
        given = {name: each for name, each in message.items() if name not in ("do", "number")}
        try:
            reply = self._commands[do](**given, fds=fds) if fds else self._commands[do](**given)
            facts = {"not_exact": inexact_reasons.recorded_operations(), "left": self._left}
            answer = {"done": do, "reply": reply, **facts}
            passed = [reply.fd] if isinstance(reply, Saved) and reply.fd is not None else []
        except TrainerFailed as failed:
            answer = {"failed": failed.kind, "error": failed.error, "signature": failed.signature}
        except (EOFError, ConnectionError):
            raise
        except Exception as error:
            kind = blame if (blame := kind_of(error)) in ("device", "rank") else "internal"
            answer = {"failed": kind, "error": plain(traceback.format_exc()), "signature": signature_of(error)}
        if answer.get("failed") == "out_of_memory":
            answer["may_divide"] = self._may_divide
            machine.collect(self._device)
        if self._file and (uses := uses_of(self._file)):
            answer["uses"] = uses
        for fd in fds:
            os.close(fd)
        model = self._lanes.get(message["lane"]) if "lane" in message else self._model
        answer |= {"number": self._number, "step": model.step if model else 0}
        if has_next and "done" in answer and time.monotonic() - begun_at < TOGETHER_SECONDS:
            self._wire.hold(answer)
        else:
            self._wire.send(answer, *passed)
        for fd in passed:
            os.close(fd)

    def _read_new_end(self, until: int) -> int:
        """The step at which the training must end now."""
        while (arrived := self._wire.receive()) is not None:
            message, fds = arrived
            if message["do"] == "until":
                until = message["until"]
            elif not self._handle_unanswered(message, fds):  # a new command ends this training
                self._waiting = arrived
                return 0
        return until

    def _handle_unanswered(self, message: Message, fds: list[int]) -> bool:
        """Handle a message that needs no answer and may come at any time. Returns whether it was one."""
        if message["do"] == "log":
            print_to(fds[0])  # the second file, if there is one, is for logged numbers
            journal = self._lanes.journal(message["lane"]) if "lane" in message else self._journal
            journal.write_to(fds[1] if len(fds) > 1 else -1)
        elif message["do"] == "patience":
            group.here().give_up_after(message["seconds"])
        elif message["do"] == "take_over":  # in a fork of a template, with a file as that of `start`
            machine.write_stacks_to(fds[0])
            os.close(fds[0])
        return message["do"] in ("log", "patience", "take_over")

    def _report_progress(self, step: int) -> bool:
        """Report the step from time to time. Returns whether the slot has sent nothing meanwhile."""
        if (now := time.monotonic()) - self._reported_at >= PROGRESS_SECONDS:
            self._wire.send({"number": self._number, "step": step})
            self._reported_at = now
        return self._wire.is_silent()
