"""The process that trains: it does what it is told over a connection, one command after the other, with one trainer.

Every command is answered with `done`, or with `failed` and what failed. While it trains it says by itself how far it
is, and looks between two steps whether it is wanted to train for longer, or shorter.
"""

from __future__ import annotations

import faulthandler
import os
import signal
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from stagetree.runtime import inexact, machine, state_format
from stagetree.runtime.buffers import Buffers
from stagetree.runtime.comparing import Looks, compare
from stagetree.runtime.failures import TrainerFailed, kind_of, plain, signature_of, user_code
from stagetree.runtime.loading import imports_of, load_trainer, package_versions
from stagetree.runtime.machine import Machine, print_to
from stagetree.runtime.model import HpTimeline, Journal, LaunchedTrainer, Model
from stagetree.runtime.packed import Lanes
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer import ranks
from stagetree.trainer.data import DataTrainer

PROGRESS_SECONDS = 0.1
"""How often it says how far it is; after each step, if steps are longer."""

COMMANDS = (
    *("start", "build", "begin", "load", "train", "evaluate", "save", "save_part"),
    *("join", "train_together", "measure", "leave"),  # packs
    *("compare", "look", "stray", "uses"),  # proofs
)


def run(wire: Wire) -> int:
    """Serve until told to exit, or until the other side is gone."""
    machine.log_to_stderr()
    machine.refuse_breakpoints()
    machine.prefer_for_killing()
    inexact.watch()
    held = machine.spread_addresses()
    try:
        Child(wire).serve()
    except (EOFError, ConnectionError):
        return 1
    held.clear()
    return 0


class Child:
    """commands: what can be asked for, by name. The model is there from `build` on."""

    def __init__(self, wire: Wire) -> None:
        self._wire = wire
        self._device, self._file, self._may_divide = "cpu", "", False
        self._machine: dict[str, Any] = {}
        self._waiting: tuple[Message, list[int]] | None = None
        self._model: Model | None = None
        self._lanes, self._looks, self._said_at = Lanes(), Looks(), 0.0
        self._hp: dict[str, Any] | None = None
        self._timeline, self._buffers, self._journal = HpTimeline({}), Buffers("cpu"), Journal()
        self._commands: dict[str, Callable[[Message, list[int]], Message]] = {
            name: getattr(self, f"_{name}") for name in COMMANDS
        }

    def serve(self) -> None:
        """Raises EOFError, ConnectionError."""
        while (arrived := self._waiting or self._wire.receive(None)) is not None:
            (message, fds), self._waiting = arrived, None
            if message["do"] == "exit":
                return
            if not self._heeds(message, fds) and message["do"] in self._commands:  # else of a training that has ended
                self._answer(message, fds)

    def _answer(self, message: Message, fds: list[int]) -> None:
        self._looks.begin(message["do"])
        try:
            answer = {"done": message["do"], **self._commands[message["do"]](message, fds)}
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
        for fd in fds:
            os.close(fd)
        passed = [answer.pop("fd")] if "fd" in answer else []
        model = self._lanes.get(message["lane"]) if "lane" in message else self._model
        self._wire.send({"number": message["number"], "step": model.step if model else 0, **answer}, *passed)
        for fd in passed:
            os.close(fd)

    # ------------------------------------------------------------------------------------------------ commands

    def _start(self, message: Message, fds: list[int]) -> Message:
        """Its file gets the stacks of all threads when the process crashes, and whenever SIGUSR1 arrives."""
        stacks = os.fdopen(os.dup(fds[0]), "wb", buffering=0)
        faulthandler.enable(stacks)
        faulthandler.register(signal.SIGUSR1, stacks)
        self._device = message["device"]
        self._buffers = Buffers(self._device)
        settings = ("visible_devices", "threads", "determinism", "memory_fraction", "cuda_graphs")
        machine = Machine(self._device, *(message[name] for name in settings))
        self._machine = {**machine.prepare(), "threads": machine.threads}
        if "ranks" in message:
            ranks.be(ranks.Ranks.meet(os.dup(fds[-1]), device=self._device, **message["ranks"]))
        return dict(self._machine)

    def _build(self, message: Message, fds: list[int]) -> Message:
        if self._file not in ("", message["file"]):
            raise RuntimeError(f"this process serves {self._file}, and no other file")
        self._file = message["file"]
        self._drop()
        machine.set_determinism(message["determinism"])
        inexact.forget()
        ranks.here().shards, ranks.here().parallel = message["shards"], message["parallel"]
        self._machine = ranks.here().noted_in(self._machine, self._device)
        kind = (message["name"], repr(message["args"]), message["seed"], *message.get("names", ()))
        self._model = self._lanes.begin(kind, message["is_resumed"]) if "names" in message else None
        if self._model is None:
            with user_code():
                trainer = load_trainer(self._file, message["name"])
            self._may_divide = not issubclass(trainer, DataTrainer) or message.get("parallel") == "fsdp"
            self._model = Model.build(trainer, message["args"], message["seed"], self._device)
        code = imports_of(file := Path(self._file).resolve())
        self._machine["packages"] = package_versions(file)
        left = [] if "names" in message else self._looks.leftovers.left(self._built.trainer, self._file)
        return {"version": code.version, "left": left}

    def _begin(self, message: Message, fds: list[int]) -> Message:
        self._built.begin(fds[0], self._values(message["hp"]), is_whole=message["whole"])
        return {}

    def _load(self, message: Message, fds: list[int]) -> Message:
        saved = state_format.read(*fds)
        for reason in (reasons := inexact.changes(saved.get("machine", {}), self._machine)):
            print(f"--- not exact: {reason}")
        if "weight" in message:
            saved = self._built.averaging.add(saved, message["weight"], message["left"])
        if message.get("left"):
            return {"not_exact": reasons, "left": []}
        before = self._looks.leftovers.before(self._built.trainer, self._file)
        self._built.load(saved, self._values(message["hp"]), message["step"])
        return {"not_exact": reasons, "left": self._looks.leftovers.left(self._built.trainer, self._file, before)}

    def _train(self, message: Message, fds: list[int]) -> Message:
        model, timeline, until = self._built, self._values(message["hp"]), message["until"]
        end, say = until, partial(self._say, message["number"])
        model.expect(timeline, until, *message["ahead"])
        self._looks.leftovers.is_used = True
        while model.step < (until := ranks.here().agree(until)):
            model.advance_some(timeline, until, say)
            self._journal.look(model, time.monotonic())
            say(model.step)
            until = self._new_end(until)  # of the ranks of a trial, the leader alone is told
            if until not in (0, end):
                end = until
                model.expect(timeline, end, end, message["ahead"][1])
        passed = model.settle(timeline) if model.step < end and self._waiting is None else []
        self._journal.write(model, time.monotonic())
        is_elsewhere = isinstance(model.trainer, LaunchedTrainer)  # in processes of a script
        peak = 0 if is_elsewhere else machine.peak_bytes(self._device)
        return {"passed": passed, "not_exact": inexact.seen(), "peak_bytes": peak, "opened": self._looks.opened()}

    def _evaluate(self, message: Message, fds: list[int]) -> Message:
        model = self._model_of(message)
        with self._looks.measuring(model):
            metrics = model.evaluate()
        return {"metrics": metrics, "not_exact": inexact.seen(), "opened": self._looks.opened()}

    def _save(self, message: Message, fds: list[int]) -> Message:
        self._buffers.take_back(message["closed"])
        buffer, size = self._model_of(message).save_in(self._buffers, self._machine)
        return {"fd": os.dup(buffer.fd), "size": size, "buffer": buffer.number}

    def _save_part(self, message: Message, fds: list[int]) -> Message:
        self._buffers.take_back(message["closed"])
        part = self._model_of(message).save_part_in(self._buffers)
        return {} if part is None else {"fd": os.dup(part[0].fd), "size": part[1], "buffer": part[0].number}

    # ------------------------------------------------------------------------------------------------ packs

    def _join(self, message: Message, fds: list[int]) -> Message:
        """The model that was built last is a lane of a pack from here on."""
        self._lanes.put(message["lane"], self._built, message["width"])
        self._model = None
        return {"step": self._lanes[message["lane"]].step}

    def _train_together(self, message: Message, fds: list[int]) -> Message:
        """So many steps of each; all of them stop where one fails. Its `step` is how many they took."""
        timelines = {int(lane): HpTimeline(hp) for lane, hp in message["hps"].items()}
        until, steps = message["until"], 0
        failed: dict[int, TrainerFailed] = {}
        while steps < until and not failed:
            failed, steps = self._lanes.advance(timelines), steps + 1
            self._say(message["number"], steps)
            until = self._new_end(until)
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
            "not_exact": inexact.seen(),
            "profile": profile,
        }

    def _measure(self, message: Message, fds: list[int]) -> Message:
        """Measure what packs of up to so many lanes would cost the model of a lane, and train nothing."""
        profile = self._lanes.measure(message["lane"], HpTimeline(message["hp"]), message["widest"])
        return {"profile": profile, "unpackable_reason": self._lanes.unpackable_reason}

    def _leave(self, message: Message, fds: list[int]) -> Message:
        self._lanes.drop(message["lanes"])
        return {}

    # ------------------------------------------------------------------------------------------------ proofs

    def _compare(self, message: Message, fds: list[int]) -> Message:
        return compare(fds[: message["mine"]], fds[message["mine"] :])

    def _uses(self, message: Message, fds: list[int]) -> Message:
        return self._looks.uses(self._file)

    def _look(self, message: Message, fds: list[int]) -> Message:
        self._looks.take(message["name"], self._built, self._file)
        return {}

    def _stray(self, message: Message, fds: list[int]) -> Message:
        stray = self._looks.stray(message["first"], message["words"], self._built, self._timeline)
        return stray | {"files": self._looks.files(self._built.trainer, self._file)}

    # ------------------------------------------------------------------------------------------------ their parts

    def _model_of(self, message: Message) -> Model:
        return self._lanes[message["lane"]] if "lane" in message else self._built

    @property
    def _built(self) -> Model:
        if self._model is None:
            raise RuntimeError("there is no model yet: build one first")
        return self._model

    def _values(self, hp: dict[str, Any]) -> HpTimeline:
        if self._hp != hp:
            self._hp, self._timeline = hp, HpTimeline(hp)
        return self._timeline

    def _new_end(self, until: int) -> int:
        """Where the training must end now."""
        while (arrived := self._wire.receive()) is not None:
            message, fds = arrived
            if message["do"] == "until":
                until = message["until"]
            elif not self._heeds(message, fds):  # whoever wants something else has given this training up
                self._waiting = arrived
                return 0
        return until

    def _heeds(self, message: Message, fds: list[int]) -> bool:
        """Whether it is something that has no answer, and may come at any time."""
        if message["do"] == "log":
            print_to(fds[0])  # from here on, what is printed, and what is logged to the second, if there is one
            journal = self._lanes.journal(message["lane"]) if "lane" in message else self._journal
            journal.write_to(fds[1] if len(fds) > 1 else -1)
        elif message["do"] == "patience":
            ranks.here().give_up_after(message["seconds"])
        return message["do"] in ("log", "patience")

    def _say(self, number: int, step: int) -> bool:
        """Say from time to time how far that command is. Whether the slot has said nothing meanwhile."""
        if (now := time.monotonic()) - self._said_at >= PROGRESS_SECONDS:
            self._wire.send({"number": number, "step": step})
            self._said_at = now
        return self._wire.is_silent()

    def _drop(self) -> None:
        """Free the memory of the model; in a cycle of references it would wait for the collector."""
        if self._model is not None:
            try:
                self._model.trainer.close()
            except Exception:  # the next model, which may be another trial's, is not to blame
                traceback.print_exc()
            self._model = None
            self._buffers.forget()
            machine.collect(self._device)
