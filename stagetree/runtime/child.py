"""The trainer process: carries out the slot's commands, one after the other, with one trainer."""

from __future__ import annotations

import multiprocessing
import os
import time
import traceback
from functools import partial
from pathlib import Path
from typing import Any

from stagetree.runtime import inexact_reasons, machine
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.checkpoints.buffers import Buffers
from stagetree.runtime.command_channel import Conversation
from stagetree.runtime.exactness.comparison import HELD_VALUES, compare, leaf_digests
from stagetree.runtime.exactness.held_values import (
    LAUNCHED,
    RESTARTED,
    WORKERS,
    HeldValues,
    differing_names,
    digest_held_values,
)
from stagetree.runtime.exactness.process_changes import ProcessChanges
from stagetree.runtime.failures import TrainerFailed, plain, user_code
from stagetree.runtime.loading import code_modules, imports_of, load_trainer, package_versions
from stagetree.runtime.machine import Machine, print_to
from stagetree.runtime.model import HpTimeline, LaunchedTrainer, Model
from stagetree.runtime.reads.undeclared_reads import reads_of, watch_reads
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer.base import TrainsAhead
from stagetree.trainer.data import DataTrainer
from stagetree.trainer.ranks import group

COMMANDS = (
    *("start", "build", "become_template", "begin", "load", "train", "evaluate", "save", "save_part"),
    *("join", "train_together", "measure", "leave"),  # packs
    *("compare", "seen"),  # comparisons
)


def run(wire: Wire) -> int:
    """Serve commands until `exit`, or until the slot is gone."""
    machine.log_to_stderr()
    machine.refuse_breakpoints()
    machine.prefer_for_killing()
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
        self._commands = {name: getattr(self, f"_{name}") for name in COMMANDS}

    # ------------------------------------------------------------------------------------------------ commands

    def _start(self, message: Message, fds: list[int]) -> Message:
        """Prepare the machine. The file gets the stacks of all threads on a crash and on SIGUSR1."""
        machine.write_stacks_to(fds[0])
        self._device = message["device"]
        self._buffers = Buffers(self._device)
        settings = ("visible_devices", "threads", "determinism", "memory_fraction", "cuda_graphs")
        here = Machine(self._device, *(message[name] for name in settings))
        self._shares_device = here.memory_fraction < 1
        self._machine = {**here.prepare(), "threads": here.threads}
        if "ranks" in message:
            group.be(group.Ranks.meet(os.dup(fds[-1]), device=self._device, **message["ranks"]))
        return dict(self._machine)

    def _build(self, message: Message, fds: list[int]) -> Message:
        if self._file not in ("", message["file"]):
            raise RuntimeError(f"this process serves {self._file}, and no other file")
        self._file = message["file"]
        self._template.begin()
        self._drop()
        machine.set_determinism(message["determinism"])
        inexact_reasons.forget()
        group.here().shards, group.here().parallel = message["shards"], message["parallel"]
        self._machine = group.here().with_nccl_settings(self._machine, self._device)
        kind = (message["name"], repr(message["args"]), message["seed"], *message.get("names", ()))
        self._model = self._lanes.begin(kind, message["is_resumed"]) if "names" in message else None
        if self._model is None:
            with user_code():
                trainer = load_trainer(self._file, message["name"])
            self._may_divide = not issubclass(trainer, DataTrainer) or message.get("parallel") == "fsdp"
            self._model = Model.build(trainer, message["args"], message["seed"], self._device)
        code = imports_of(file := Path(self._file).resolve())
        self._machine["packages"] = package_versions(file)
        left = [] if "names" in message else self._changes.find(self._current_model.trainer, self._file)
        return {"version": code.version, "left": left}

    def _become_template(self, message: Message, fds: list[int]) -> Message:
        """From now on each chain trains in a fork of this process, if that is safe; see `TemplateRole.ask`. This
        process's own output goes to the file that comes along."""
        answer = self._template.ask(self._device, fds)
        if self._template.is_asked_for:
            print_to(os.dup(fds[0]))
        return answer

    def _begin(self, message: Message, fds: list[int]) -> Message:
        self._current_model.begin(fds[0], self._values(message["hp"]), is_whole=message["whole"])
        return {}

    def _load(self, message: Message, fds: list[int]) -> Message:
        saved = state_format.read(*fds)
        for reason in (reasons := inexact_reasons.changes(saved.get("machine", {}), self._machine)):
            print(f"--- not exact: {reason}")
        if "weight" in message:
            saved = self._current_model.averaging.add(saved, message["weight"], message["left"])
        if message.get("left"):
            return {"not_exact": reasons, "left": []}
        before = self._changes.values_before_load(self._current_model.trainer, self._file)
        self._current_model.load(saved, self._values(message["hp"]), message["step"])
        return {"not_exact": reasons, "left": self._changes.find(self._current_model.trainer, self._file, before)}

    def _train(self, message: Message, fds: list[int]) -> Message:
        model, timeline, until = self._current_model, self._values(message["hp"]), message["until"]
        end, say = until, partial(self._report_progress, message["number"])
        model.expect(timeline, until, *message["ahead"])
        self._changes.is_used = True
        while model.step < (until := group.here().agree(until)):
            model.advance_some(timeline, until, say)
            self._journal.look(model, time.monotonic())
            say(model.step)
            until = self._read_new_end(until)  # the slot talks only to the leader of several ranks
            if until not in (0, end):
                end = until
                model.expect(timeline, end, end, message["ahead"][1])
        passed = model.settle(timeline) if model.step < end and self._waiting is None else []
        self._journal.write(model, time.monotonic())
        is_elsewhere = isinstance(model.trainer, LaunchedTrainer)  # in processes of a script
        peak = 0 if is_elsewhere else machine.peak_bytes(self._device)
        is_told = message.get("room") and not (is_elsewhere or self._shares_device)
        free = machine.free_bytes(self._device) if is_told else 0
        return {
            "passed": passed,
            "not_exact": inexact_reasons.recorded_operations(),
            "peak_bytes": peak,
            "free_bytes": free,
        }

    def _evaluate(self, message: Message, fds: list[int]) -> Message:
        model = self._model_of(message)
        is_watched = message.get("watch", False) and not isinstance(model.trainer, LaunchedTrainer | TrainsAhead)
        before = leaf_digests(model) if is_watched else {}
        metrics = model.evaluate()
        changed = list(map(plain, differing_names(before, leaf_digests(model)))) if is_watched else []
        return {"metrics": metrics, "not_exact": inexact_reasons.recorded_operations(), "changed": changed}

    def _save(self, message: Message, fds: list[int]) -> Message:
        self._buffers.take_back(message["closed"])
        model = self._model_of(message)
        more = {HELD_VALUES: self._held_values(model)} if message.get("look") else {}
        buffer, size = model.save_in(self._buffers, self._machine, **more)
        return {"fd": os.dup(buffer.fd), "size": size, "buffer": buffer.number}

    def _save_part(self, message: Message, fds: list[int]) -> Message:
        self._buffers.take_back(message["closed"])
        part = self._model_of(message).save_part_in(self._buffers)
        return {} if part is None else {"fd": os.dup(part[0].fd), "size": part[1], "buffer": part[0].number}

    # ------------------------------------------------------------------------------------------------ packs

    def _join(self, message: Message, fds: list[int]) -> Message:
        """Make the model that was built last a lane of a pack."""
        self._lanes.add(message["lane"], self._current_model, message["width"])
        self._model = None
        return {"step": self._lanes[message["lane"]].step}

    def _train_together(self, message: Message, fds: list[int]) -> Message:
        """Train up to `until` steps of each lane; all stop when one fails. `step` in the answer is the number of
        steps."""
        timelines = {int(lane): HpTimeline(hp) for lane, hp in message["hps"].items()}
        until, steps = message["until"], 0
        failed: dict[int, TrainerFailed] = {}
        while steps < until and not failed:
            failed, steps = self._lanes.advance(timelines), steps + 1
            self._report_progress(message["number"], steps)
            until = self._read_new_end(until)
        profile = self._lanes.profile() if message["profile"] else None
        self._lanes.write_journals()
        answer = {
            lane: {"kind": each.kind, "error": each.error, "signature": each.signature} for lane, each in failed.items()
        }
        return {
            "step": steps,
            "lanes": answer,
            "unpackable_reason": self._lanes.unpackable_reason,
            "evicted": self._lanes.evicted,
            "not_exact": inexact_reasons.recorded_operations(),
            "profile": profile,
        }

    def _measure(self, message: Message, fds: list[int]) -> Message:
        """Measure packs of up to `widest` lanes for the model of a lane, without training it."""
        profile = self._lanes.measure(message["lane"], HpTimeline(message["hp"]), message["widest"])
        return {"profile": profile, "unpackable_reason": self._lanes.unpackable_reason}

    def _leave(self, message: Message, fds: list[int]) -> Message:
        self._lanes.drop(message["lanes"])
        return {}

    # ------------------------------------------------------------------------------------------------ comparisons

    def _compare(self, message: Message, fds: list[int]) -> Message:
        return compare(fds[: message["mine"]], fds[message["mine"] :], message["ignored"])

    def _seen(self, message: Message, fds: list[int]) -> Message:
        """The undeclared inputs that the trainer has read, and the hyper-parameters that it has not."""
        files = reads_of(self._current_model.trainer, self._file)
        return {"unread": list(map(plain, self._current_model.unread())), "files": files}

    # ------------------------------------------------------------------------------------------------ their parts

    def _held_values(self, model: Model) -> HeldValues:
        with model.given.ignoring_reads():  # these looks do not count as reads of hyper-parameters
            held = digest_held_values(model.trainer, code_modules(self._file), state=model.state()["trainer"])
        unseen = {
            RESTARTED: isinstance(model.trainer, TrainsAhead),
            LAUNCHED: isinstance(model.trainer, LaunchedTrainer),
            WORKERS: bool(multiprocessing.active_children()),
        }
        return held | {name: os.urandom(8).hex() for name, is_there in unseen.items() if is_there}

    def _model_of(self, message: Message) -> Model:
        return self._lanes[message["lane"]] if "lane" in message else self._current_model

    @property
    def _current_model(self) -> Model:
        if self._model is None:
            raise RuntimeError("there is no model yet: build one first")
        return self._model

    def _values(self, hp: dict[str, Any]) -> HpTimeline:
        if not self._timeline.matches(hp):
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
