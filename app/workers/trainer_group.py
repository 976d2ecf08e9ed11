"""The processes of a trial on several devices, with the interface of one: the same calls, answers and bits.

A command goes to every *rank*; the answer is the leader's. The first error ends the call, and the caller ends the
group. Only the leader hears where to stop, and tells the others with each step.

Runs on: the thread that trains; `kill` on any.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from app.workers.remote_ranks import RemoteRank, interface_of, listen
from app.workers.state import State
from app.workers.trainer_connection import POLL_SECONDS, Deadline, TrainerConnection, TrainerKilled
from app.workers.trainer_process import TrainerProcess
from app.workers.warm import CPU_SETTINGS, TrainerSettings, Warm, is_stopped
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import Message, anonymous_file

FOR_THE_WORLD = frozenset({"start", "build", "begin", "load", "train", "evaluate", "save"})
"""Commands for every rank; all others go to the leader alone."""

FOR_THE_OTHERS = {"save": "save_part"}
"""The other ranks' form of a command."""

NOT_IN_RANKS = frozenset({"join", "train_together", "measure", "leave"})
"""Commands of packs, which are the opposite: several trials on one device."""

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
    def of(cls, host: str) -> Meeting:
        """host: of the leader, for ranks on other machines; empty if all are here."""
        if not host:
            return cls(anonymous_file(0), {})
        door = listen(host)
        port = door.getsockname()[1]
        return cls(door.detach(), {"host": host, "port": port, "interface": interface_of(host)})


class TrainerGroup(TrainerProcess):
    """One trial, one process on each of its devices, with the interface of `TrainerProcess` except packs.

    It is itself the connection to the leader, rank 0. Only the leader hears where to stop, and only its metrics, logged
    numbers and generators count. The leader saves; the others save only their parts of sharded tensors. So a group's
    facts, checkpoints and progress are like those of one process, and a saved state resumes on any number of ranks, 1
    included.

    A call raises the error of the rank whose user code failed, as from one process (`exception`, `out_of_memory`,
    `device`). It raises `rank` if a process died, was stopped, or lost another one, which is an accident and charged to
    no trial. It raises `hang`, with all stacks, if all run and nothing was heard. After any error the group must be
    closed. Killing one process ends all.

    members: the other ranks, in order.
    """

    members: tuple[TrainerProcess, ...] = ()
    _late = _patience = LATE_SECONDS  # how long a rank waits for another one: in any call, and now
    _running_at = 0.0  # when all of them ran, as far as was seen
    _answers: Mapping[int, tuple[Message, list[int]]] = {}  # of the other ranks, to the command under way

    @classmethod
    def start(
        cls,
        warm: Warm,
        settings: TrainerSettings = CPU_SETTINGS,
        *,
        deadline: Deadline | None = None,
        rank: Mapping[str, Any] | None = None,
        ranks: int = 1,
        late_seconds: float = LATE_SECONDS,
        far: Sequence[RemoteRank] = (),
        host: str = "",
    ) -> TrainerGroup:
        """Fresh processes with their devices started, which have found each other. Raises as `TrainerProcess.start`.

        settings: of each rank.
        ranks: how many, a power of two.
        late_seconds: how long a rank waits for another in any call.
        far: all ranks but the leader, if they are on other machines.
        host: where those reach this machine.
        """
        group, meeting = cls(*warm.fork()), Meeting.of(host)
        group._late = group._patience = late_seconds
        try:
            for _ in range(ranks - 1 - len(far)):
                group.members = (*group.members, TrainerProcess(*warm.fork()))
            group.members = (*group.members, *far)
            for number, each in enumerate(group._all):
                place = {"rank": number, "world": ranks, "seconds": late_seconds, **meeting.place}
                if isinstance(each, RemoteRank):
                    each._send("start", ranks=place)
                else:
                    how = settings.to_json(number)
                    TrainerConnection._send(each, "start", each._stacks, meeting.fd, ranks=place, **how)
            group.info, _ = group._answer(group._number, "start", deadline or Deadline(60.0))
        except BaseException:
            group.kill()
            group.close()
            raise
        finally:
            os.close(meeting.fd)
        return group

    @property
    def _all(self) -> Sequence[TrainerProcess]:
        return (self, *self.members)

    def log(self, path: Path, rows: Path | None = None, **lane: int) -> None:
        """As for one process; the output of rank 1 goes to `N.r1.log` beside `N.log`. Raises OSError."""
        for rank, member in enumerate(self.members, 1):
            member.log(path.with_suffix(f".r{rank}{path.suffix}"))
        super().log(path, rows, **lane)

    def save(self, *, deadline: Deadline, look: bool = False, **lane: int) -> State:
        """As for one process, with the other ranks' parts of sharded tensors."""
        state = super().save(deadline=deadline, look=look, **lane)
        answers = [(each, *self._answers[rank]) for rank, each in enumerate(self.members, 1)]
        state.parts = tuple(each._state_in(answer, fds) for each, answer, fds in answers if fds)
        return state

    def resident_bytes(self) -> int:
        """Of the largest process."""
        return max(TrainerProcess.resident_bytes(each) for each in self._all if each.pid)

    def kill(self) -> None:
        """End all processes now. Safe from any thread, and in a signal handler."""
        self._is_killed = True
        for each in self._all:
            each._lifeline.finish()
        super().kill()
        for member in self.members:
            member.kill()

    def close(self, patience: float = 5.0) -> None:
        """Let the processes end by themselves, kill them after `patience` seconds, and free their resources here."""
        if self._stacks < 0:
            return
        for member in self.members:
            with contextlib.suppress(TrainerFailed, TrainerKilled):
                member._send("exit")
        super().close(patience)
        for member in self.members:
            member.close(0.0)

    # ------------------------------------------------------------------------------------------------ talking

    def _send(self, do: str, *fds: int, **fields: Any) -> int:
        if do in NOT_IN_RANKS:
            raise RuntimeError(f"several ranks have one model: there is no {do} for them")
        if do in FOR_THE_WORLD:
            if do != "train":
                self._give_up_after(self._late)
            for rank, member in enumerate(self.members, 1):
                own = {"closed": member._given_back()} if do == "save" else {}
                with self._telling(rank):
                    member._send(FOR_THE_OTHERS.get(do, do), *fds, **fields | own)
        with self._telling(0):
            return super()._send(do, *fds, **fields)

    def _answer(
        self, number: int, do: str, deadline: Deadline, look: Callable[[], None] = lambda: None
    ) -> tuple[Message, list[int]]:
        waiting = dict(enumerate(self.members, 1)) if do in FOR_THE_WORLD else {}
        self._answers, self._running_at = {}, time.monotonic()

        def look_at_all() -> None:
            self._hear_members(waiting)
            self._refuse_stopped(do)
            if do == "train":
                self._give_up_after(deadline.seconds + LATE_SECONDS)
            look()

        with self._telling(0):
            answer, fds = super()._answer(number, do, deadline, look_at_all)
        try:
            self._await_members(waiting, do, deadline)
        except BaseException:
            for fd in [*fds, *(each for _, more in self._answers.values() for each in more)]:
                os.close(fd)
            raise
        return answer, fds

    def _give_up_after(self, seconds: float) -> None:
        """Set how long each rank waits for another: longer than the slot does, which can report all stacks."""
        if seconds != self._patience:
            self._patience = seconds
            for rank, each in enumerate(self._all):
                with self._telling(rank):
                    each._tell("patience", seconds=seconds)

    def _await_members(self, waiting: dict[int, TrainerProcess], do: str, deadline: Deadline) -> None:
        """Wait for the other ranks' answers after the leader's."""
        begun_at = time.monotonic()
        while True:
            self._hear_members(waiting)
            if not waiting:
                return
            if (seconds := time.monotonic() - begun_at) > deadline.seconds:
                raise self._hung(do, seconds)
            next(iter(waiting.values()))._poll.poll(1000 * POLL_SECONDS)

    def _refuse_stopped(self, do: str) -> None:
        """Raises `TrainerFailed` if a rank has been stopped by a signal for too long."""
        now = time.monotonic()
        if not any(is_stopped(each.pid) for each in self._all):
            self._running_at = now
        elif now - self._running_at > STOPPED_SECONDS:
            raise self._hung(do, now - self._running_at)

    def _hear_members(self, waiting: dict[int, TrainerProcess]) -> None:
        """Collect answers; members that have answered leave `waiting`."""
        for rank, member in list(waiting.items()):
            with self._telling(rank):
                while (heard := member._hear(member._number)) is not None:
                    if "done" in heard[0]:
                        del waiting[rank]
                        self._answers = {**self._answers, rank: heard}
                        break

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
            for other, each in enumerate(self._all):
                if other not in failures and (failure := _failure(each)) is not None:
                    failures[other] = failure
                    if failure.kind != "rank":
                        rank, failed = other, failure
            if len(failures) == len(self._all):
                break
            time.sleep(POLL_SECONDS)
        if self._is_killed and failed.kind in ("crash", "rank"):
            return TrainerKilled("the trainer's processes were ended on purpose")
        kind = "rank" if failed.kind == "crash" else failed.kind
        text = f"In rank {rank} of {len(self._all)}:\n{failed.error}"
        step, may_divide = failed.step or self.step, failed.may_divide
        return _Verdict(kind, text, step, failed.signature, may_divide=may_divide)

    def _hung(self, do: str, seconds: float) -> TrainerFailed:
        """Kill all ranks, with their stacks in the error. A rank that was stopped by a signal is an accident."""
        stopped = [rank for rank, each in enumerate(self._all) if is_stopped(each.pid)]
        where = [f"Rank {rank}. {each._where()}" for rank, each in enumerate(self._all) if rank not in stopped]
        self.kill()
        text = f"nothing was heard from the ranks for {seconds:.1f} s (last command: {do}), so they were ended"
        if stopped:
            text = f"rank {stopped[0]} was stopped by a signal: {text}"
        return _Verdict("rank" if stopped else "hang", "".join(where) + text, self.step)


class _Verdict(TrainerFailed):
    """The group's failure, decided after hearing all ranks."""


def _failure(process: TrainerProcess) -> TrainerFailed | None:
    """A process's failure, if one has been heard."""
    try:
        while TrainerConnection._hear(process, process._number) is not None:
            pass
    except TrainerFailed as failed:
        return failed
    except TrainerKilled:
        return None
    return None
