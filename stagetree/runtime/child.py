"""The trainer process: carries out the slot's commands, one after the other, with one trainer.

Each command is answered by `done`, or by `failed` with the error, and with the files that were opened meanwhile. Behind
a command that `has_next` another one is already on its way: if the first takes only a moment, both are answered
together. While it trains, the process reports its step on its own, and checks between steps whether its last step was
changed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from stagetree.runtime import inexact_reasons, machine
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.buffers import Buffers
from stagetree.runtime.commands import COMMANDS, Compared, Evaluation, Json, PackTrained, Saved, Seen, Trained
from stagetree.runtime.exactness.differences import HELD_VALUES, compare, leaf_digests
from stagetree.runtime.exactness.held_values import (
    LAUNCHED,
    RESTARTED,
    WORKERS,
    HeldValues,
    ProcessChanges,
    differing_names,
    digest_held_values,
)
from stagetree.runtime.failures import TrainerFailed, kind_of, plain, signature_of, user_code
from stagetree.runtime.loading import code_modules, load_trainer, package_versions
from stagetree.runtime.machine import Machine, print_to
from stagetree.runtime.model import HpTimeline, Journal, Model
from stagetree.runtime.packed import Lanes
from stagetree.runtime.reads import file_reads
from stagetree.runtime.reads.undeclared_reads import reads_of, uses_of, watch_reads
from stagetree.runtime.scripts.launched_trainer import LaunchedTrainer
from stagetree.runtime.template import TemplateRole
from stagetree.runtime.wire import Message, Wire
from stagetree.sequences import is_same_value
from stagetree.system.processes import prefer_for_killing
from stagetree.trainer.base import TrainsAhead
from stagetree.trainer.data import DataTrainer
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
            if not self._handle_unanswered(message, fds) and message["do"] in self._commands:
                self._answer(message, fds)  # other messages are of a training that has ended
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


def run(wire: Wire) -> int:
    """Serve commands until `exit`, or until the slot is gone."""
    machine.log_to_stderr()
    machine.refuse_breakpoints()
    prefer_for_killing()
    inexact_reasons.watch()
    held = machine.spread_addresses()
    try:
        Child(wire).serve()
    except (EOFError, ConnectionError):
        return 1
    held.clear()
    return 0


class Child(Conversation):
    """The commands of a trainer process. There is a model from `build` on."""

    def __init__(self, wire: Wire) -> None:
        super().__init__(wire)
        self._machine: dict[str, Any] = {}
        self._shares_device = False
        self._changes = ProcessChanges()
        watch_reads()
        self._timeline, self._buffers = HpTimeline({}), Buffers("cpu")
        self._commands = {name: getattr(self, name) for name in COMMANDS}

    # ------------------------------------------------------------------------------------------------ commands

    def start(self, *, fds: Sequence[int], settings: Json, ranks: Json | None = None) -> None:
        """Prepare the machine. The first file gets the stacks of all threads on a crash and on SIGUSR1.

        ranks: how it meets other ranks, in the second file: see `stagetree.trainer.ranks.group.Ranks.meet`.
        """
        machine.write_stacks_to(fds[0])
        here = Machine(**settings)
        self._device, self._buffers = here.device, Buffers(here.device)
        self._shares_device = here.memory_fraction < 1
        self._machine = {**here.prepare(), "threads": here.threads}
        if ranks is not None:
            group.be(group.Ranks.meet(os.dup(fds[-1]), device=self._device, **ranks))

    def build(
        self,
        *,
        file: str,
        name: str,
        args: Json,
        seed: int,
        determinism: str = "strict",
        shards: int = 0,
        parallel: str = "tree",
        names: Sequence[str] | None = None,
        is_resumed: bool = False,
    ) -> None:
        """Build a new model, before its first step; the previous model is freed first. A process serves one file only.

        determinism: see `stagetree.runtime.machine.set_determinism`.
        shards, parallel: of the study, see `stagetree.trainer.ranks.group.Ranks`.
        names: of its hyper-parameters, if it will join a pack.
        is_resumed: it must be loaded, so that it may take the place of a model that has left the pack.
        """
        if self._file not in ("", file):
            raise RuntimeError(f"this process serves {self._file}, and no other file")
        self._file = file
        self._template.begin()
        self._drop()
        machine.set_determinism(determinism)
        inexact_reasons.forget()
        group.here().shards, group.here().parallel = shards, parallel
        self._machine = group.here().with_nccl_settings(self._machine, self._device)
        kind = (name, repr(args), seed, *(names or ()))
        self._model = None if names is None else self._lanes.begin(kind, is_resumed)
        if self._model is None:
            with user_code():
                trainer = load_trainer(file, name)
            self._may_divide = not issubclass(trainer, DataTrainer) or parallel == "fsdp"
            self._model = Model.build(trainer, args, seed, self._device)
        self._machine["packages"] = package_versions(Path(file).resolve())
        self._left = self._changes.find(self._current_model.trainer, file) if names is None else []

    def become_template(self, *, fds: Sequence[int]) -> tuple[str, list[str]]:
        """From now on only serve forks, in each of which a chain trains, if that is safe; see `TemplateRole.ask`.

        fds: for the template's own output.
        """
        answer = self._template.ask(self._device, fds)
        if self._template.is_asked_for:
            print_to(os.dup(fds[0]))
        return answer

    def begin(self, *, fds: Sequence[int], hp: Json, whole: bool) -> None:
        """Initialize a newly built model from a file of weights. whole: load all of the state of a checkpoint."""
        self._current_model.begin(fds[0], self._values(hp), is_whole=whole)

    def load(
        self, *, fds: Sequence[int], hp: Json, step: int, weight: float | None = None, left: int = 0
    ) -> Sequence[str]:
        """Put the model where it was after `step` steps. fds: the images of the state.

        Returns how this process differs from the one that made the state: see `inexact_reasons.changes`.
        weight, left: of one of several states to be averaged, and how many are still to come.
        """
        saved = state_format.read(*fds)
        for reason in (reasons := inexact_reasons.changes(saved.get("machine", {}), self._machine)):
            print(f"--- not exact: {reason}")
        if weight is not None:
            saved = self._current_model.averaging.add(saved, weight, left)
        self._left = []
        if not left:
            before = self._changes.values_before_load(self._current_model.trainer, self._file)
            self._current_model.load(saved, self._values(hp), step)
            self._left = self._changes.find(self._current_model.trainer, self._file, before)
        return reasons

    def train(self, *, hp: Json, until: int, ahead: tuple[int, Sequence[int], Sequence[int]], room: bool) -> Trained:
        """Train to step `until`, or where the message `until` says meanwhile. hp: the JSON of the trial's sequences.

        ahead: the coming work of the stage, see `Model.expect`. room: measure free memory.
        """
        model, timeline, end = self._current_model, self._values(hp), until
        model.expect(timeline, until, *ahead)
        self._changes.is_used = True
        while model.step < (until := group.here().agree(until)):
            model.advance_some(timeline, until, self._report_progress)
            self._journal.look(model, time.monotonic())
            self._report_progress(model.step)
            until = self._read_new_end(until)  # the slot talks only to the leader of several ranks
            if until not in (0, end):
                end = until
                model.expect(timeline, end, end, ahead[1])
        passed = model.settle(timeline) if model.step < end and self._waiting is None else []
        self._journal.write(model, time.monotonic())
        is_elsewhere = isinstance(model.trainer, LaunchedTrainer)  # in processes of a script
        peak = 0 if is_elsewhere else machine.peak_bytes(self._device)
        free = machine.free_bytes(self._device) if room and not (is_elsewhere or self._shares_device) else 0
        return Trained(model.step, dict(passed), peak, free)

    def evaluate(self, *, watch: bool = False, lane: int | None = None) -> Evaluation:
        """Evaluate the model, or a `lane`'s. watch: note which state leaves the evaluation changes."""
        model = self._model_of(lane)
        is_watched = watch and not isinstance(model.trainer, LaunchedTrainer | TrainsAhead)
        before = leaf_digests(model) if is_watched else {}
        metrics = model.evaluate()
        changed = list(map(plain, differing_names(before, leaf_digests(model)))) if is_watched else []
        return Evaluation(metrics, changed)

    def save(self, *, closed: Sequence[tuple[int, bool]], look: bool = False, lane: int | None = None) -> Saved:
        """Save the whole state of the model, or of a `lane`'s; the model may train on at once.

        closed: the buffers of states that were closed since the last save, and whether a model was loaded from each.
        look: include the trainer's other held objects, for comparisons.
        """
        self._buffers.take_back(closed)
        model = self._model_of(lane)
        more = partial(self._held_values, model) if look else None
        buffer, size = model.save_in(self._buffers, self._machine, more)
        return Saved(os.dup(buffer.fd), size, buffer.number)

    def save_part(self, *, closed: Sequence[tuple[int, bool]]) -> Saved:
        """As `save`, of a rank that does not lead: only its parts of sharded tensors."""
        self._buffers.take_back(closed)
        part = self._current_model.save_part_in(self._buffers)
        return Saved() if part is None else Saved(os.dup(part[0].fd), part[1], part[0].number)

    # ------------------------------------------------------------------------------------------------ packs

    def join(self, *, lane: int, width: int) -> None:
        """Make the model that was built last a lane of a pack with room for `width` lanes."""
        self._lanes.add(lane, self._current_model, width)
        self._model = None

    def train_together(self, *, hps: Mapping[str, Json], until: int, profile: bool) -> PackTrained:
        """Train up to `until` steps of each lane; all stop when one fails. profile: also measure the costs of packs."""
        timelines = {int(lane): HpTimeline(hp) for lane, hp in hps.items()}
        lanes, steps, failed = self._lanes, 0, dict[int, TrainerFailed]()
        while steps < until and not failed:
            failed, steps = lanes.advance(timelines), steps + 1
            self._report_progress(steps)
            until = self._read_new_end(until)
        costs = lanes.profile() if profile else None
        lanes.write_journals()
        failures = {lane: (each.kind, each.error, each.signature) for lane, each in failed.items()}
        return PackTrained(steps, failures, lanes.unpackable_reason, lanes.evicted, costs)

    def measure(self, *, lane: int, hp: Json, widest: int) -> tuple[Json, str]:
        """Measure the costs of packs of up to `widest` lanes of a lane's model, without training it.

        Returns the fields of `PackingProfiled`; none if it cannot be packed, for the reason in the second value.
        """
        return self._lanes.measure(lane, HpTimeline(hp), widest), self._lanes.unpackable_reason

    def leave(self, *, lanes: Sequence[int]) -> None:
        """Free the memory of these lanes' models."""
        self._lanes.drop(lanes)

    # ------------------------------------------------------------------------------------------------ comparisons

    def compare(self, *, fds: Sequence[int], mine: int, ignored: Sequence[str] = ()) -> Compared:
        """Where a state that this process has saved differs from a recorded one.

        fds: the images of both, of which the first `mine` belong to the saved one.
        ignored: leaves that may differ, unless they are tensors.
        """
        return compare(fds[:mine], fds[mine:], ignored)

    def seen(self) -> Seen:
        """The undeclared inputs that the trainer has read since it was built."""
        files = reads_of(self._current_model.trainer, self._file)
        return Seen(list(map(plain, self._current_model.unread())), files)

    # ------------------------------------------------------------------------------------------------ their parts

    def _held_values(self, model: Model, state: Mapping[str, Any]) -> dict[str, HeldValues]:
        held = digest_held_values(model.trainer, code_modules(self._file), state=state["trainer"])
        unseen = {
            RESTARTED: isinstance(model.trainer, TrainsAhead),
            LAUNCHED: isinstance(model.trainer, LaunchedTrainer),
            WORKERS: bool(multiprocessing.active_children()),
        }
        return {HELD_VALUES: held | {name: os.urandom(8).hex() for name, is_there in unseen.items() if is_there}}

    def _model_of(self, lane: int | None) -> Model:
        return self._current_model if lane is None else self._lanes[lane]

    @property
    def _current_model(self) -> Model:
        if self._model is None:
            raise RuntimeError("there is no model yet: build one first")
        return self._model

    def _values(self, hp: Json) -> HpTimeline:
        if not is_same_value(self._timeline.hp, hp):
            self._timeline = HpTimeline(hp)
        return self._timeline

    def _drop(self) -> None:
        """Free the model's memory at once; a reference cycle would delay that."""
        if self._model is not None:
            try:
                self._model.trainer.close()
            except Exception:  # the next model may be another trial's, which this error does not concern
                traceback.print_exc()
            self._model = None
            self._buffers.forget()
            machine.collect(self._device)
