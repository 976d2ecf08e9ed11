"""Runs on: the thread that trains.

A trainer in a process of its own, as the slot sees it: calls that end, whatever the trainer's code does.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app.domain.chain_assignment import Ahead
from app.workers.state import State
from app.workers.trainer_connection import Deadline, TrainerConnection
from app.workers.warm import CPU_SETTINGS, TrainerSettings, Warm, resident_bytes
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import Message, Wire


@dataclass(frozen=True, slots=True)
class TrainedTo:
    """How many steps a model has been trained for so far.

    passed: the metrics of the steps that it went past when it was told to stop. peak_bytes: the most memory since it
    was built or trained last, see `stagetree.runtime.machine.peak_bytes`; of a group's first rank. free_bytes: of the
    device, beside all that is on it; 0 where that is not known, or other slots share it.
    """

    step: int
    passed: Mapping[int, dict[str, float | None]] = field(default_factory=dict)
    peak_bytes: int = 0
    free_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PackTrained:
    """How many steps each lane of a pack has taken in a call, and which of them failed in the last one.

    unpackable_reason: why they were trained one after the other; empty if they were not. evicted: the lanes that were
    trained alone only because a pass had failed. profile: the costs of packs, if they were asked for: the fields of
    `PackingProfiled`, none where the models cannot be packed. passed, peak_bytes: as of `TrainedTo`, of one lane alone.
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
    """difference: the first leaf that differs; nothing if all are equal. elsewhere: how the state on record was made
    on another machine, in words that follow "made under". stray: what the two trainers held besides that differs."""

    difference: str
    elsewhere: tuple[str, ...]
    stray: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Seen:
    """unread: hyper-parameters that it has read in no step so far. files: the data files that were read."""

    unread: tuple[str, ...] = ()
    files: tuple[str, ...] = ()


class TrainerProcess(TrainerConnection):
    """One process, one trainer file, at most one model. What every call raises, its connection says.

    info: what the process said of itself: `torch`, `device_name` and, on a GPU, `cuda`. not_exact: the operations
    without a deterministic form that the model has used since it was built, as far as was heard. changed: the leaves of
    the state that the last evaluation changed, if that was looked at. tells_room: whether it says how much memory is
    free beside its training.
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
        """A fresh process, its device started. Raises `WarmFailed`, `TrainerFailed`: `device` if it has none.

        rank: of a group on several machines, which it then has found: see `stagetree.trainer.ranks.group.Ranks.meet`.
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
        """From here on, what the trainer prints goes to the end of that file. Raises OSError.

        rows: the file for what it, or that of a `lane`, says with `Trainer.log`, a row about once a second; None keeps
        nothing of it.
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
        """From here on, what the trainer prints goes to the end of that file, which stays the caller's."""
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
        """A new model before its first step; that before it is freed first. A process serves one file only.

        shards, parallel: of the study, see `stagetree.trainer.ranks.group.Ranks`.
        lane: of one that is to join a pack, the `names` of its hyper-parameters, and `is_resumed`: whether it must be
        loaded, so that one which has left may take its place. determinism: see
        `stagetree.runtime.machine.set_determinism`.
        """
        source = {"file": str(Path(file).resolve()), "name": name, "args": dict(args), "seed": seed}
        how = {"determinism": determinism, "shards": shards, "parallel": parallel}
        self._ask("build", deadline, **source, **how, **lane)
        self.not_exact = ()

    def begin(self, weights: State, hp: Mapping[str, Any], *, whole: bool, deadline: Deadline) -> None:
        """Have a model that was just built begin with the weights in a file, which stays the caller's.

        whole: with all of the state in it, which is a checkpoint.
        """
        weights.lend()
        self._ask("begin", deadline, weights.fd, hp=dict(hp), whole=whole)

    def load(
        self, state: State, hp: Mapping[str, Any], step: int, *, deadline: Deadline, **mean: float
    ) -> tuple[str, ...]:
        """Put the model where it was after `step` steps; `state` stays the caller's. How this process differs from
        the one that made the state: see `stagetree.runtime.inexact_reasons.changes`.

        mean: of one of several states with whose mean it begins, its `weight`, and how many are `left` to come.
        """
        state.lend()
        answer, _ = self._ask("load", deadline, *state.fds, hp=dict(hp), step=step, **mean)
        return tuple(answer["not_exact"])

    def train(
        self,
        hp: Mapping[str, Any],
        until: int,
        ahead: Callable[[int], Ahead] | None = None,
        *,
        deadline: Deadline,
        on_progress: Callable[[int], int | None] = lambda step: None,
    ) -> TrainedTo:
        """Train from where the model is up to step `until`. hp: the JSON of the trial's sequences.

        ahead: says, of the step where the model is, what comes of the stage.

        `on_progress` is called several times a second, also while the trainer is silent, with the last step heard of.
        What it returns is the new end of the training, None for no change; 0 stops after the step under way. If it
        raises, the next call stops the training in the same way, and waits for that.
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
            if self.step >= end:  # else it had arrived before it heard that it should go on
                return TrainedTo(self.step, passed, peak, free)

    def evaluate(self, *, deadline: Deadline, watch: bool = False, **lane: int) -> dict[str, float | None]:
        """The metrics of the model as it stands, or of that of a `lane`. watch: note what that changes in its state."""
        answer, _ = self._ask("evaluate", deadline, watch=watch, **lane)
        self.not_exact, self.changed = tuple(answer["not_exact"]), tuple(answer["changed"])
        metrics: dict[str, float | None] = answer["metrics"]
        return metrics

    def save(self, *, deadline: Deadline, look: bool = False, **lane: int) -> State:
        """The whole state of the model, or of that of a `lane`; the model may train on at once. look: with what the
        trainer holds besides, to be compared."""
        state = self._state_in(*self._ask("save", deadline, closed=self._given_back(), look=look, **lane))
        state.looked = look
        return state

    def _given_back(self) -> list[tuple[int, bool]]:
        """The buffers of the states that were closed meanwhile."""
        return [self._closed.popleft() for _ in range(len(self._closed))]

    def _state_in(self, answer: Message, fds: list[int]) -> State:
        number: int = answer["buffer"]
        return State(fds[0], answer["size"], lambda is_lent: self._closed.append((number, is_lent)))

    def join(self, lane: int, width: int, *, deadline: Deadline) -> None:
        """The model that was built last is a lane of a pack from here on, which has room for `width` of them."""
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
        """Train these lanes for so many steps each, or until one fails. hps: of each, the JSON of its sequences.

        `on_progress` is called as that of `train`, with the number of steps that they have taken, and returns how many
        they are to take in all. profile: whether to measure what packs cost, too.
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
        """What packs of up to so many lanes would cost a lane's model: the fields of `PackingProfiled`.

        None of them, and why, where it cannot be packed.
        """
        answer, _ = self._ask("measure", deadline, lane=lane, hp=dict(hp), widest=widest)
        return answer["profile"], answer["unpackable_reason"]

    def leave(self, lanes: Iterable[int], *, deadline: Deadline) -> None:
        """Free the memory of these lanes' models."""
        self._ask("leave", deadline, lanes=list(lanes))

    def compare(self, mine: State, stored: State, ignored: Sequence[str] = (), *, deadline: Deadline) -> Compared:
        """Where a state that this process has saved differs from one on record. Both stay the caller's.

        ignored: leaves that may differ, but for tensors.
        """
        fds = (*mine.fds, *stored.fds)
        answer, _ = self._ask("compare", deadline, *fds, mine=len(mine.fds), ignored=list(ignored))
        return Compared(answer["difference"], tuple(answer["elsewhere"]), tuple(answer["stray"]))

    def seen(self, *, deadline: Deadline) -> Seen:
        """What the trainer has read since it was built."""
        answer, _ = self._ask("seen", deadline)
        return Seen(tuple(answer["unread"]), tuple(answer["files"]))

    def resident_bytes(self) -> int:
        """What the process has in memory now; 0 where that is not known."""
        return resident_bytes(self.pid)
