"""A trainer in its own process: typed calls that end, whatever the trainer's code does.

Runs on: the thread that trains.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.domain.chain_assignment import NextStop
from app.workers.state import State
from app.workers.trainer_connection import Deadline, TrainerConnection
from app.workers.warm import CPU_SETTINGS, TrainerSettings, Warm, resident_bytes
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import Message, Wire


@dataclass(frozen=True, slots=True)
class TrainedTo:
    """The result of `train`: the last step of the model.

    passed: the metrics of steps that it passed after it was told to stop.
    peak_bytes: the most memory since the model was built or trained last, see `stagetree.runtime.machine.peak_bytes`;
        of a group's first rank.
    free_bytes: of the device, beside everything on it; 0 if unknown or if other slots share it.
    """

    step: int
    passed: Mapping[int, dict[str, float | None]] = field(default_factory=dict)
    peak_bytes: int = 0
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PackTrained:
    """The result of `train_together`: how many steps each lane took, and which lanes failed in the last one.

    unpackable_reason: why the lanes were trained one after the other; empty if they were packed.
    evicted: lanes that were trained alone because a packed pass failed.
    profile: the costs of packs if they were measured, as fields of `PackingProfiled`; empty if the models cannot be
        packed.
    passed, peak_bytes: as for `TrainedTo`, of a single lane.
    """

    steps: int
    failed: Mapping[int, TrainerFailed]
    unpackable_reason: str
    evicted: frozenset[int] = frozenset()
    profile: Mapping[str, Any] | None = None
    passed: Mapping[int, dict[str, float | None]] = field(default_factory=dict)
    peak_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Compared:
    """The result of comparing two states.

    difference: the first leaf that differs; empty if all are equal.
    elsewhere: how the recorded state was made on another machine, in words that follow "made under".
    stray: other objects held by the trainers that differ.
    """

    difference: str
    elsewhere: tuple[str, ...]
    stray: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """unread: hyper-parameters that the trainer has not read in any step so far. files: the data files that it read."""

    unread: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class TrainerProcess(TrainerConnection):
    """One process, one trainer file, at most one model. `TrainerConnection` lists what every call raises.

    info: what the process reported: `torch`, `device_name` and, on a GPU, `cuda`.
    not_exact: operations without a deterministic form that the model has used since it was built.
    changed: state leaves that the last evaluation changed, if it was watched.
    reports_free_memory: whether it measures free memory beside its training.
    """

    reports_free_memory = True

    def __init__(self, connection: Wire, lifeline: Wire, pid: int) -> None:
        super().__init__(connection, lifeline, pid)
        self.info = Message()
        self._closed = deque[tuple[int, bool]]()  # numbers of buffers, and if lent; from any thread
        self.not_exact: tuple[str, ...] = ()
        self.changed: tuple[str, ...] = ()

    @classmethod
    def start(
        cls,
        warm: Warm,
        settings: TrainerSettings = CPU_SETTINGS,
        *,
        deadline: Deadline | None = None,
        rank: Mapping[str, Any] | None = None,
    ) -> TrainerProcess:
        """A fresh process with its device started. Raises `WarmFailed`, or `TrainerFailed` of kind `device` if it has
        none.

        rank: of a group on several machines, which the process has then joined: see
            `stagetree.trainer.ranks.group.Ranks.meet`.
        """
        process, place = cls(*warm.fork()), {} if rank is None else {"ranks": dict(rank)}
        try:
            deadline = deadline or Deadline(60.0)
            process.info, _ = process._ask("start", deadline, process._stacks, **settings.to_json(), **place)
        except BaseException:
            process.kill()
            process.close()
            raise
        return process

    def __enter__(self) -> TrainerProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def log(self, path: Path, rows: Path | None = None, **lane: int) -> None:
        """Append the trainer's output to that file from here on. Raises OSError.

        rows: the file for `Trainer.log`, of the trainer or of a `lane`: about one row a second; None keeps nothing.
        """
        fds = list[int]()
        try:
            for each in (path, rows):
                if each is not None:
                    each.parent.mkdir(parents=True, exist_ok=True)
                    fds.append(os.open(each, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644))
            self._tell("log", *fds, **lane)
        finally:
            for fd in fds:
                os.close(fd)

    def print_to_file(self, fd: int) -> None:
        """Append the trainer's output to that file from here on. The descriptor stays the caller's."""
        self._tell("log", fd)

    def build(
        self,
        file: str,
        name: str,
        args: Mapping[str, Any],
        seed: int,
        *,
        deadline: Deadline,
        determinism: str = "strict",
        shards: int = 0,
        parallel: str = "tree",
        **lane: Any,
    ) -> None:
        """Build a new model, before its first step; the previous model is freed first. A process serves one file only.

        determinism: see `stagetree.runtime.machine.set_determinism`.
        shards, parallel: of the study, see `stagetree.trainer.ranks.group.Ranks`.
        lane: of a model that will join a pack: the `names` of its hyper-parameters, and whether it `is_resumed` and
            must be loaded, so that it may take the place of a model that has left.
        """
        source = {"file": str(Path(file).resolve()), "name": name, "args": dict(args), "seed": seed}
        how = {"determinism": determinism, "shards": shards, "parallel": parallel}
        self._ask("build", deadline, **source, **how, **lane)
        self.not_exact = ()

    def begin(self, weights: State, hp: Mapping[str, Any], *, whole: bool, deadline: Deadline) -> None:
        """Initialize a newly built model from a file of weights, which stays the caller's.

        whole: load all of the state, which is a checkpoint.
        """
        weights.lend()
        self._ask("begin", deadline, weights.fd, hp=dict(hp), whole=whole)

    def load(
        self, state: State, hp: Mapping[str, Any], step: int, *, deadline: Deadline, **mean: float
    ) -> tuple[str, ...]:
        """Put the model where it was after `step` steps; `state` stays the caller's.

        Returns how this process differs from the one that made the state: see
        `stagetree.runtime.inexact_reasons.changes`.
        mean: of one of several states to be averaged: its `weight`, and how many are `left` to come.
        """
        state.lend()
        answer, _ = self._ask("load", deadline, *state.fds, hp=dict(hp), step=step, **mean)
        return tuple(answer["not_exact"])

    def train(
        self,
        hp: Mapping[str, Any],
        until: int,
        ahead: Callable[[int], NextStop] | None = None,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int | None] = lambda step: None,
    ) -> TrainedTo:
        """Train from the model's step up to step `until`. hp: the JSON of the trial's sequences.

        ahead: the coming work of the stage, given the model's step.

        `on_progress` is called several times a second, also while the trainer is silent, with the last reported step.
        It returns the new end of the training, or None for no change; 0 stops after the current step. If it raises, the
        next call stops the training in the same way and waits for that.
        """
        end, peak, free, passed = until, 0, 0, dict[int, dict[str, float | None]]()

        def look() -> None:
            nonlocal end
            until = on_progress(self.step)
            if until is not None and until != end:
                end = until
                self._tell("until", until=end)

        while True:
            coming = (end, (), ()) if ahead is None else ahead(self.step)
            number = self._send("train", hp=dict(hp), until=end, ahead=coming, room=self.reports_free_memory)
            answer, _ = self._answer(number, "train", deadline, look)
            self.not_exact = tuple(answer["not_exact"])
            passed |= dict(answer["passed"])
            peak, free = max(peak, answer["peak_bytes"]), answer["free_bytes"]
            if self.step >= end:  # else it arrived before it heard of the later end
                return TrainedTo(self.step, passed, peak, free)

    def evaluate(self, *, deadline: Deadline, watch: bool = False, **lane: int) -> dict[str, float | None]:
        """The metrics of the model, or of a `lane`'s. watch: note which state leaves the evaluation changes."""
        answer, _ = self._ask("evaluate", deadline, watch=watch, **lane)
        self.not_exact, self.changed = tuple(answer["not_exact"]), tuple(answer["changed"])
        metrics: dict[str, float | None] = answer["metrics"]
        return metrics

    def save(self, *, deadline: Deadline, look: bool = False, **lane: int) -> State:
        """The whole state of the model, or of a `lane`'s; the model may train on at once. look: include the trainer's
        other held objects, for comparisons.
        """
        state = self._state_in(*self._ask("save", deadline, closed=self._given_back(), look=look, **lane))
        state.looked = look
        return state

    def _given_back(self) -> list[tuple[int, bool]]:
        """The buffers of states that were closed since the last save."""
        return [self._closed.popleft() for _ in range(len(self._closed))]

    def _state_in(self, answer: Message, fds: list[int]) -> State:
        number: int = answer["buffer"]
        return State(fds[0], answer["size"], lambda is_lent: self._closed.append((number, is_lent)))

    def join(self, lane: int, width: int, *, deadline: Deadline) -> None:
        """Make the model that was built last a lane of a pack with room for `width` lanes."""
        self._ask("join", deadline, lane=lane, width=width)

    def train_together(
        self,
        hps: Mapping[int, Mapping[str, Any]],
        steps: int,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int],
        profile: bool = False,
    ) -> PackTrained:
        """Train these lanes for `steps` steps each, or until one fails. hps: by lane, the JSON of its sequences.

        `on_progress` is called as by `train`, with the number of steps taken, and returns how many to take in all.
        profile: also measure the costs of packs.
        """

        def look() -> None:
            if (until := on_progress(self.step)) < steps:
                self._tell("until", until=until)

        self.step = 0
        number = self._send(
            "train_together", hps={str(lane): dict(hp) for lane, hp in hps.items()}, until=steps, profile=profile
        )
        answer, _ = self._answer(number, "train", deadline, look)
        self.not_exact = tuple(answer["not_exact"])
        failed = {
            int(lane): TrainerFailed(each["kind"], each["error"], self.step, each["signature"])
            for lane, each in answer["lanes"].items()
        }
        return PackTrained(
            self.step, failed, answer["unpackable_reason"], frozenset(answer["evicted"]), answer["profile"]
        )

    def measure(
        self, lane: int, hp: Mapping[str, Any], widest: int, *, deadline: Deadline
    ) -> tuple[Mapping[str, Any], str]:
        """Measure the costs of packs of up to `widest` lanes of a lane's model: the fields of `PackingProfiled`.

        If it cannot be packed, there are none, and the second value is the reason.
        """
        answer, _ = self._ask("measure", deadline, lane=lane, hp=dict(hp), widest=widest)
        return answer["profile"], answer["unpackable_reason"]

    def leave(self, lanes: Iterable[int], *, deadline: Deadline) -> None:
        """Free the memory of these lanes' models."""
        self._ask("leave", deadline, lanes=list(lanes))

    def compare(self, mine: State, stored: State, ignored: Sequence[str] = (), *, deadline: Deadline) -> Compared:
        """Where a state that this process has saved differs from a recorded one. Both stay the caller's.

        ignored: leaves that may differ, unless they are tensors.
        """
        fds = (*mine.fds, *stored.fds)
        answer, _ = self._ask("compare", deadline, *fds, mine=len(mine.fds), ignored=list(ignored))
        return Compared(answer["difference"], tuple(answer["elsewhere"]), tuple(answer["stray"]))

    def seen(self, *, deadline: Deadline) -> Seen:
        """The inputs that the trainer has read since it was built."""
        answer, _ = self._ask("seen", deadline)
        return Seen(tuple(answer["unread"]), tuple(answer["files"]))

    def resident_bytes(self) -> int:
        """The process's memory now; 0 if unknown."""
        return resident_bytes(self.pid)
