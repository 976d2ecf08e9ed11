"""The processes of a trial on several devices, with the calls of one: the same answers and bits.

A command goes to every *rank*; the answer is the leader's. The first error ends the call, and the caller ends the
group. Only the leader hears where to stop, and tells the others with each step.

Runs on: the thread that trains; `kill` on any.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from app.workers.remote_ranks import RemoteRank, interface_of, listen
from app.workers.state import State
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import POLL_SECONDS, Deadline, Look, TrainerKilled, nothing
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import CPU_SETTINGS, TrainerSettings, Warm
from stagetree.runtime.commands import COMMANDS, Json, Saved, read_reply
from stagetree.runtime.failures import TrainerFailed
from stagetree.system.files import anonymous_file
from stagetree.system.processes import is_stopped

LATE_SECONDS = 60.0
"""Ranks wait this much longer for each other than the slot's deadline, so that the slot reports a hang with all stacks
first.
"""

STOPPED_SECONDS = 60.0
"""A rank that was stopped by a signal for this long counts as lost, however long a step may take."""

VERDICT_SECONDS = 3.0
"""How long to wait for the cause after a rank reports that it lost another one."""


@dataclass(frozen=True, slots=True)
class Meeting:
    """Where ranks find each other. fd: a shared file in memory, or the socket on which the leader listens.

    place: what each rank needs to know of it.
    """

    fd: int
    place: Mapping[str, Any]

    @classmethod
    def open(cls, host: str) -> Meeting:
        """host: of the leader, for ranks on other machines; empty if all are here."""
        if not host:
            return cls(anonymous_file(0), {})
        door = listen(host)
        port = door.getsockname()[1]
        return cls(door.detach(), {"host": host, "port": port, "interface": interface_of(host)})


class TrainerGroup(TrainerClient):
    """One trial, one process on each of its devices, with all calls but those of packs.

    Only the leader, rank 0, hears where to stop, and only its metrics, logged numbers and generators count. The leader
    saves; the others save only their parts of sharded tensors. So a group's facts, checkpoints and progress are like
    those of one process, and a saved state resumes on any number of ranks, 1 included.

    A call raises the error of the rank whose user code failed, as from one process (`exception`, `out_of_memory`,
    `device`). It raises `rank` if a process died, was stopped, or lost another one, which is an accident and charged to
    no trial. It raises `hang`, with all stacks, if all run and nothing was heard. After any error the group must be
    closed. Killing one process ends all.

    ranks: the processes, in order.
    """

    def __init__(self, leader: TrainerProcess, late_seconds: float = LATE_SECONDS) -> None:
        self.ranks = [leader]
        self._late = self._patience = late_seconds  # how long a rank waits for another one: in most calls, and now
        self._running_at = 0.0  # when all of them ran, as far as was seen
        self._is_killed = False
        leader.on_hang = self._hung

    @classmethod
    def start(
        cls,
        warm: Warm,
        settings: TrainerSettings = CPU_SETTINGS,
        *,
        deadline: Deadline | None = None,
        ranks: int = 1,
        late_seconds: float = LATE_SECONDS,
        far: Sequence[RemoteRank] = (),
        host: str = "",
    ) -> Self:
        """Fresh processes with their devices started, which have found each other. Raises as `TrainerProcess.start`.

        settings: of each rank.
        ranks: how many, a power of two.
        far: all ranks but the leader, if they are on other machines.
        host: where those reach this machine.
        """
        group, meeting = cls(TrainerProcess(*warm.fork()), late_seconds), Meeting.open(host)
        try:
            for _ in range(ranks - 1 - len(far)):
                group.ranks.append(TrainerProcess(*warm.fork()))
            group.ranks += far
            place = {"world": ranks, "seconds": late_seconds, **meeting.place}
            arguments = [
                each.start_arguments(settings, number, {"rank": number, **place}, meeting.fd)
                for number, each in enumerate(group.ranks)
            ]
            group._ask_each("start", arguments, deadline or Deadline(60.0))
        except BaseException:
            group.kill()
            group.close()
            raise
        finally:
            os.close(meeting.fd)
        return group

    @property
    def leader(self) -> TrainerProcess:
        return self.ranks[0]

    def log(self, path: Path, rows: Path | None = None, lane: int | None = None) -> None:
        """As for one process; the output of rank 1 goes to `N.r1.log` beside `N.log`. Raises OSError."""
        for rank, each in enumerate(self.ranks[1:], 1):
            each.log(path.with_suffix(f".r{rank}{path.suffix}"))
        self.leader.log(path, rows, lane)

    def save(self, *, deadline: Deadline, look: bool = False, lane: int | None = None) -> State:
        """As for one process, with the other ranks' parts of sharded tensors."""
        arguments: list[Json] = [{"closed": each.take_closed()} for each in self.ranks]
        arguments[0] = {**arguments[0], "look": look}
        saved = self._ask_each("save", arguments, deadline)
        state, *parts = (each.own_state(at) for each, at in zip(self.ranks, saved, strict=True) if at.fd is not None)
        state.looked, state.parts = look, tuple(parts)
        return state

    def resident_bytes(self) -> int:
        return max((each.resident_bytes() for each in self.ranks if each.pid), default=0)

    def kill(self) -> None:
        self._is_killed = True
        for each in self.ranks:
            each.begin_to_kill()
        for each in self.ranks:
            each.kill()

    def close(self, patience: float = 5.0) -> None:
        if self.leader.stacks < 0:
            return
        for each in reversed(self.ranks):
            each.ask_to_end()
        self.leader.await_end(patience)
        self.kill()
        for each in self.ranks:
            each.close(0.0)

    # ------------------------------------------------------------------------------------------------ talking

    def ask(self, do: str, given: Json, deadline: Deadline, look: Look = nothing) -> Any:
        if COMMANDS[do].ranks == "none":
            raise RuntimeError(f"several ranks have one model: there is no {do} for them")
        count = len(self.ranks) if COMMANDS[do].ranks == "all" else 1
        return self._ask_each(do, [given] * count, deadline, look)[0]

    def _ask_each(self, do: str, arguments: Sequence[Json], deadline: Deadline, look: Look = nothing) -> list[Any]:
        """Send the command to as many ranks as there are arguments; returns their replies."""
        if do != "train" and len(arguments) > 1:
            self._give_up_after(self._late)
        for rank, given in reversed(list(enumerate(arguments))):
            with self._telling(rank):
                self.ranks[rank].send((rank and COMMANDS[do].others) or do, given)
        replies, waiting = dict[int, Any](), set(range(1, len(arguments)))
        self._running_at = time.monotonic()

        def look_at_all() -> None:
            self._hear_others(do, waiting, replies)
            self._refuse_stopped(do)
            if do == "train":
                self._give_up_after(deadline.seconds + LATE_SECONDS)
            look()

        try:
            with self._telling(0):
                replies[0] = self.leader.await_reply(do, deadline, look_at_all)
            begun_at = time.monotonic()
            while self._hear_others(do, waiting, replies):
                if (seconds := time.monotonic() - begun_at) > deadline.seconds:
                    raise self._hung(do, seconds)
                self.ranks[min(waiting)].wait()
        except BaseException:
            for each in replies.values():
                if isinstance(each, Saved) and each.fd is not None:
                    os.close(each.fd)
            raise
        return [replies[rank] for rank in range(len(arguments))]

    def _hear_others(self, do: str, waiting: set[int], replies: dict[int, Any]) -> bool:
        """Collect the replies of ranks, which then leave `waiting`. Returns whether some are missing."""
        for rank in list(waiting):
            with self._telling(rank):
                while (heard := self.ranks[rank].hear()) is not None:
                    if "done" in heard[0]:
                        waiting.remove(rank)
                        replies[rank] = read_reply(do, *heard)
                        break
        return bool(waiting)

    def _give_up_after(self, seconds: float) -> None:
        """Set how long each rank waits for another: longer than the slot does, which can report all stacks."""
        if seconds != self._patience:
            self._patience = seconds
            for rank, each in enumerate(self.ranks):
                with self._telling(rank):
                    each.tell("patience", {"seconds": seconds})

    def _refuse_stopped(self, do: str) -> None:
        """Raises `TrainerFailed` if a rank has been stopped by a signal for too long."""
        now = time.monotonic()
        if not any(is_stopped(each.pid) for each in self.ranks):
            self._running_at = now
        elif now - self._running_at > STOPPED_SECONDS:
            raise self._hung(do, now - self._running_at)

    # ------------------------------------------------------------------------------------------------ who failed

    @contextlib.contextmanager
    def _telling(self, rank: int) -> Iterator[None]:
        """Raise the failure of a rank in the block as the group's."""
        try:
            yield
        except _Verdict:
            raise
        except TrainerFailed as failed:
            raise self._verdict(rank, failed) from failed

    def _verdict(self, rank: int, failed: TrainerFailed) -> Exception:
        """Why the group cannot continue, given the first failure that was heard."""
        failures = {rank: failed}
        ends = time.monotonic() + VERDICT_SECONDS
        while failed.kind == "rank" and time.monotonic() < ends:  # a lost rank is a consequence: look for its cause
            for other, each in enumerate(self.ranks):
                if other not in failures and (failure := _failure(each)) is not None:
                    failures[other] = failure
                    if failure.kind != "rank":
                        rank, failed = other, failure
            if len(failures) == len(self.ranks):
                break
            time.sleep(POLL_SECONDS)
        if self._is_killed and failed.kind in ("crash", "rank"):
            return TrainerKilled("the trainer's processes were ended on purpose")
        kind = "rank" if failed.kind == "crash" else failed.kind
        text = f"In rank {rank} of {len(self.ranks)}:\n{failed.error}"
        step, may_divide = failed.step or self.leader.step, failed.may_divide
        return _Verdict(kind, text, step, failed.signature, may_divide=may_divide)

    def _hung(self, do: str, seconds: float) -> TrainerFailed:
        """Kill all ranks, with their stacks in the error. A rank that was stopped by a signal is an accident."""
        stopped = [rank for rank, each in enumerate(self.ranks) if is_stopped(each.pid)]
        where = [f"Rank {rank}. {each.describe_place()}" for rank, each in enumerate(self.ranks) if rank not in stopped]
        self.kill()
        text = f"nothing was heard from the ranks for {seconds:.1f} s (last command: {do}), so they were ended"
        if stopped:
            text = f"rank {stopped[0]} was stopped by a signal: {text}"
        return _Verdict("rank" if stopped else "hang", "".join(where) + text, self.leader.step)


class _Verdict(TrainerFailed):
    """The group's failure, decided after hearing all ranks."""


def _failure(process: TrainerProcess) -> TrainerFailed | None:
    """A process's failure, if one has been heard."""
    try:
        while process.hear() is not None:
            pass
    except TrainerFailed as failed:
        return failed
    except TrainerKilled:
        return None
    return None
