"""The processes of a script that a launcher has started, seen from the trainer's process of the slot.

The ranks (`stagetree.runtime.ranked`) and their group are the script's own. Each hears its next command over a socket
of its own: so all take the same steps, load, save and evaluate. Steps are granted many at once: see `grant`.
"""

from __future__ import annotations

import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, NoReturn

from stagetree.runtime import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.grant import Grant
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer.program import LAST_WORDS, ProgramFailed, end_with_us, folder_for_programs

RANK = "stagetree.runtime.ranked"
"""The module that each of them runs."""

SOCKET = "STAGETREE_RANKS"
"""Where the ranks find the trainer's process: a process with it in the environment is a rank."""

LOOK_SECONDS = 0.05
"""How often it is looked whether the launcher has ended, and whether more steps are wanted."""

GRANT_SECONDS = 1.0
"""So many steps are granted at once as fit in it: what they have logged is fetched once a second."""

MOST_STEPS = 2048
"""Of a grant: each brings a line of values."""

GROWTH = 8
"""A grant has at most so many times the steps of the last one: the first step is often the slowest."""

VERDICT_SECONDS = 3.0
"""When one of them has failed, the others may take so long to say why they did: one of them was the first."""

END_SECONDS = 5.0
"""A launcher may take so long to end after its ranks."""


class RankProcesses:
    """The processes of a script, seen from the trainer's. world: how many they are."""

    def __init__(self, words: Sequence[str], job: Mapping[str, Any]) -> None:
        """Start them, and wait until each is in its loop. Raises `TrainerFailed`, `ProgramFailed`, OSError."""
        self._name, self._wires, self._log, self._most = " ".join(words[:-2]), list[Wire](), (0, 0), 1
        self._launcher: subprocess.Popen[bytes] | None = None
        folder = folder_for_programs()
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as listener:
                listener.bind(str(folder / "ranks"))
                listener.listen()
                self._stderr = (folder / "stderr").open("wb+")
                self._launcher = self._started(words, folder / "ranks")
                self._wires = self._gathered(listener)
            self.world = len(self._wires)
            self._grant, memory = Grant.of(self.world)
            try:
                self.ask("begin", [memory] * self.world, **job)
            finally:
                os.close(memory)
        except BaseException:
            self.end()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def ask(self, do: str, files: Sequence[int] = (), **fields: Any) -> list[Message]:
        """The answers of all, in the order of the ranks. files: one for each of them. Raises `TrainerFailed`."""
        return self._asked(do, files, fields)[0]

    def train(self, changes: Iterator[Mapping[str, Any]], goes_on: Callable[[int], bool]) -> int:
        """As `LaunchedTrainer.train_on`: how many steps they took. Raises `TrainerFailed`, with that number."""
        coming, begun_at = list(islice(changes, self._most)), time.monotonic()
        self._grant.give(len(coming))

        def look() -> None:
            if not goes_on(self._grant.taken()) or time.monotonic() - begun_at > GRANT_SECONDS:
                self._grant.cut()

        first, *_ = self._asked("train", (), {"changes": coming}, look)[0]
        taken: int = first["taken"]
        fit = GRANT_SECONDS * max(1, taken) / (time.monotonic() - begun_at)
        self._most = max(1, min(MOST_STEPS, GROWTH * len(coming), int(fit)))
        return taken

    def states(self) -> list[Any]:
        """That of each, in memory that it has filled."""
        _, passed = self._asked("save", (), {})
        try:
            return [state_format.read(fd) for fd in passed]
        finally:
            for fd in passed:
                os.close(fd)

    def end(self) -> None:
        """Nothing more is wanted of them."""
        for wire in self._wires:
            wire.close()
        self._wires = []
        if self._launcher is not None:
            try:
                self._launcher.wait(END_SECONDS)
            except subprocess.TimeoutExpired:
                self._launcher.kill()
                self._launcher.wait()
            self._launcher = None
            self._stderr.close()

    # ------------------------------------------------------------------------------------------------ how they begin

    def _started(self, words: Sequence[str], path: Path) -> subprocess.Popen[bytes]:
        environment = {
            **os.environ,
            SOCKET: str(path),
            "PYTHONSAFEPATH": "1",
        }  # their folder hides no module of stagetree
        environment["PATH"] = os.pathsep.join([os.path.dirname(sys.executable), os.environ.get("PATH", os.defpath)])
        os.write(1, f"--- {shlex.join(words)}\n".encode())
        try:
            return subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stderr=self._stderr, env=environment, preexec_fn=end_with_us
            )
        except OSError as error:
            raise ProgramFailed(f"launch: {words[0]} cannot be started: {error.strerror}") from None

    def _gathered(self, listener: socket.socket) -> list[Wire]:
        """The connections to all of them, by rank."""
        wires, world = dict[int, Wire](), 1
        listener.settimeout(LOOK_SECONDS)
        while len(wires) < world:
            try:
                wire = Wire(listener.accept()[0])
            except TimeoutError:
                if self._has_ended():
                    raise ProgramFailed(f"{self._name} ended before its ranks began{self._last_words()}") from None
                continue
            if (hello := wire.receive(END_SECONDS)) is not None:
                wires[hello[0]["rank"]], world = wire, hello[0]["world"]
        return [wires[rank] for rank in range(world)]

    # ------------------------------------------------------------------------------------------------ their answers

    def _asked(
        self, do: str, files: Sequence[int], fields: Mapping[str, Any], look: Callable[[], None] = lambda: None
    ) -> tuple[list[Message], list[int]]:
        """The answers of all, and the files that came with them. look: called while some have not answered."""
        if not self._wires:
            raise ProgramFailed(f"{self._name} has ended")
        log = self._new_log()
        for rank, wire in enumerate(self._wires):
            try:
                if log:
                    wire.send({"do": "log"}, *log)
                wire.send({"do": do, **fields}, *files[rank : rank + 1])
            except ConnectionError:
                self._refuse(rank, None)
        return self._answers(look)

    def _answers(self, look: Callable[[], None]) -> tuple[list[Message], list[int]]:
        answers, passed = dict[int, Message](), dict[int, int]()
        poll, ranks = select.poll(), {wire.fileno(): rank for rank, wire in enumerate(self._wires)}
        for fd in ranks:
            poll.register(fd, select.POLLIN)
        while len(answers) < self.world:
            for fd, _ in poll.poll(1000 * LOOK_SECONDS):
                rank = ranks[fd]
                answer, files = self._heard(rank)
                if answer is None or "failed" in answer:
                    self._refuse(rank, answer)
                answers[rank], passed[rank] = answer, files[0] if files else -1
                poll.unregister(fd)
            if len(answers) < self.world:
                look()
        ordered = range(self.world)
        return [answers[rank] for rank in ordered], [passed[rank] for rank in ordered if passed[rank] >= 0]

    def _heard(self, rank: int, seconds: float | None = None) -> tuple[Message | None, list[int]]:
        """Its answer; None if the process is gone, or says nothing."""
        try:
            return self._wires[rank].receive(seconds) or (None, [])
        except EOFError:
            return None, []

    def _refuse(self, rank: int, error: Message | None) -> NoReturn:
        """End all, and raise the failure that the others follow from: one that is no loss of another rank."""
        ends = time.monotonic() + VERDICT_SECONDS
        for other in range(self.world):
            if error is not None and error["failed"] != "rank":
                break
            if other != rank and (heard := self._heard(other, max(0.0, ends - time.monotonic()))[0]) is not None:
                rank, error = (other, heard) if "failed" in heard else (rank, error)
        error = error or {"failed": "rank", "error": f"its process is gone{self._last_words()}", "signature": "rank"}
        place, signature = f"In rank {rank} of {self.world}", error["signature"]
        if self._launcher is not None:
            self._launcher.kill()  # and with it the ranks that wait for this one
        self.end()
        raise TrainerFailed(error["failed"], f"{place}:\n{error['error']}", error.get("taken", 0), signature)

    def _new_log(self) -> tuple[int, ...]:
        """Where this process prints now, if that has changed: into the log of another trial."""
        before, now = self._log, os.fstat(1)
        self._log = (now.st_dev, now.st_ino)
        return () if self._log == before else (1, 2)

    def _has_ended(self) -> bool:
        return self._launcher is not None and self._launcher.poll() is not None

    def _last_words(self) -> str:
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - LAST_WORDS))
        words = self._stderr.read().decode(errors="replace").strip()
        return f"; its last words:\n{words}" if words else ""
