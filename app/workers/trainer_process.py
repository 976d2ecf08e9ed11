"""A trainer in its own process: typed calls that end even if the trainer's code hangs or crashes.

Runs on: the thread that trains; `kill` on any.
"""

from __future__ import annotations

import os
from collections import deque
from pathlib import Path
from typing import Self

from app.workers.state import State
from app.workers.trainer_client import TrainerClient
from app.workers.trainer_connection import Deadline, TrainerConnection
from app.workers.trial_logs import open_to_append
from app.workers.warm import CPU_SETTINGS, TrainerSettings, Warm
from stagetree.runtime.commands import Evaluation, Json, Saved
from stagetree.runtime.wire import Wire
from stagetree.system.memory import resident_bytes


class TrainerProcess(TrainerConnection, TrainerClient):
    """One process, one trainer file, at most one model."""

    def __init__(self, connection: Wire, lifeline: Wire, pid: int) -> None:
        super().__init__(connection, lifeline, pid)
        self._closed = deque[tuple[int, bool]]()  # numbers of buffers, and if lent; from any thread

    @classmethod
    def start(
        cls,
        warm: Warm,
        settings: TrainerSettings = CPU_SETTINGS,
        *,
        deadline: Deadline | None = None,
        rank: Json | None = None,
    ) -> Self:
        """A fresh process with its device started. Raises `WarmFailed`, or `TrainerFailed` of kind `device` if it has
        none.

        rank: of a group on several machines, which the process has then joined: see
            `stagetree.trainer.ranks.group.Ranks.meet`.
        """
        process = cls(*warm.fork())
        try:
            process.ask("start", process.start_arguments(settings, 0, rank), deadline or Deadline(60.0))
        except BaseException:
            process.kill()
            process.close()
            raise
        return process

    def start_arguments(self, settings: TrainerSettings, number: int, rank: Json | None, *fds: int) -> Json:
        """The arguments of `Child.start`. number, rank, fds: of a rank, its number, place and meeting."""
        return {"fds": (self.stacks, *fds), "settings": settings.to_json(number), "ranks": rank}

    @property
    def leader(self) -> Self:
        return self

    def log(self, path: Path, rows: Path | None = None, lane: int | None = None) -> None:
        fds = list[int]()
        try:
            for each in (path, rows):
                if each is not None:
                    fds.append(open_to_append(each))
        except OSError:
            for fd in fds:
                os.close(fd)
            raise
        self.tell_before_next("log", {"fds": fds} if lane is None else {"fds": fds, "lane": lane})

    def evaluate(self, *, deadline: Deadline, watch: bool = False, look: bool | None = None) -> Evaluation:
        """One wake of the slot for both."""
        if look is not None:
            self.send("evaluate", {"watch": watch}, "save", {"closed": self.take_closed(), "look": look})
            evaluated: Evaluation = self.await_reply("evaluate", deadline)
            return evaluated
        return super().evaluate(deadline=deadline, watch=watch)

    def save(self, *, deadline: Deadline, look: bool = False, lane: int | None = None) -> State:
        closed = [] if self.is_sent("save") else self.take_closed()
        state = self.own_state(self.call(deadline).save(closed=closed, look=look, lane=lane))
        state.looked = look
        return state

    def take_closed(self) -> list[tuple[int, bool]]:
        """The buffers of states that were closed since the last save."""
        return [self._closed.popleft() for _ in range(len(self._closed))]

    def own_state(self, saved: Saved) -> State:
        """A state in a buffer of this process, which is given back when the state is closed."""
        assert saved.fd is not None
        return State(saved.fd, saved.size, lambda is_lent: self._closed.append((saved.buffer, is_lent)))

    def resident_bytes(self) -> int:
        return resident_bytes(self.pid)
