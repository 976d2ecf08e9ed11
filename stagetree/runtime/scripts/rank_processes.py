"""The processes of a launched script, controlled from the slot's trainer process.

The ranks (`stagetree.runtime.script_rank`) and their process group are the script's own. Each gets commands over a
socket of its own, so that all take the same steps, load, save and evaluate. Steps are granted many at once: see
`step_grant`.
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

from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.scripts.step_grant import Grant
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer.program import LAST_WORDS, ProgramFailed, end_with_us, folder_for_programs

RANK = "stagetree.runtime.script_rank"
"""The module that each rank runs."""

SOCKET = "STAGETREE_RANKS"
"""The variable with the socket of the trainer's process; a process that has it is a rank."""

LOOK_SECONDS = 0.05
"""How often to check whether the launcher has ended, and whether more steps are wanted."""

GRANT_SECONDS = 1.0
"""The duration of a grant: logged values are fetched once in it."""

MOST_STEPS = 2048
"""The most steps in a grant: each sends its values."""

GROWTH = 8
"""A grant has at most this many times the steps of the last one, since the first step is often the slowest."""

VERDICT_SECONDS = 3.0
"""After a failure, how long to wait for the errors of the other ranks: one of them may be the cause."""

END_SECONDS = 5.0
"""How long a launcher may take to exit after its ranks."""


class RankProcesses:
    """The processes of a script. world: their number."""

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
                self._launcher = self._start(words, folder / "ranks")
                self._wires = self._accept_ranks(listener)
            self.world = len(self._wires)
            self._grant, memory = Grant.create(self.world)
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
        """The answers of all ranks, in order. files: one for each rank. Raises `TrainerFailed`."""
        return self._request(do, files, fields)[0]

    def train(self, changes: Iterator[Mapping[str, Any]], is_wanted: Callable[[int], bool]) -> int:
        """Take steps as in `LaunchedTrainer.train_on`; returns their number. Raises `TrainerFailed`, with that
        number."""
        coming, begun_at = list(islice(changes, self._most)), time.monotonic()
        self._grant.give(len(coming))

        def look() -> None:
            if not is_wanted(self._grant.finished_steps()) or time.monotonic() - begun_at > GRANT_SECONDS:
                self._grant.cut_short()

        first, *_ = self._request("train", (), {"changes": coming}, look)[0]
        taken: int = first["taken"]
        fit = GRANT_SECONDS * max(1, taken) / (time.monotonic() - begun_at)
        self._most = max(1, min(MOST_STEPS, GROWTH * len(coming), int(fit)))
        return taken

    def states(self) -> list[Any]:
        """The state of each rank."""
        _, passed = self._request("save", (), {})
        try:
            return [state_format.read(fd) for fd in passed]
        finally:
            for fd in passed:
                os.close(fd)

    def end(self) -> None:
        """Let the processes exit."""
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

    # ------------------------------------------------------------------------------------------------ starting

    def _start(self, words: Sequence[str], path: Path) -> subprocess.Popen[bytes]:
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

    def _accept_ranks(self, listener: socket.socket) -> list[Wire]:
        """Accept the connections of all ranks, in order."""
        wires, world = dict[int, Wire](), 1
        listener.settimeout(LOOK_SECONDS)
        while len(wires) < world:
            try:
                wire = Wire(listener.accept()[0])
            except TimeoutError:
                if self._launcher is not None and self._launcher.poll() is not None:
                    raise ProgramFailed(f"{self._name} ended before its ranks began{self._last_words()}") from None
                continue
            if (hello := wire.receive(END_SECONDS)) is not None:
                wires[hello[0]["rank"]], world = wire, hello[0]["world"]
        return [wires[rank] for rank in range(world)]

    # ------------------------------------------------------------------------------------------------ answers

    def _request(
        self, do: str, files: Sequence[int], fields: Mapping[str, Any], look: Callable[[], None] = lambda: None
    ) -> tuple[list[Message], list[int]]:
        """The answers of all ranks, and the files that came with them. look: called while answers are missing."""
        if not self._wires:
            raise ProgramFailed(f"{self._name} has ended")
        # The output descriptors go along if they have changed since the last command: another trial has another log.
        before, now = self._log, os.fstat(1)
        self._log = (now.st_dev, now.st_ino)
        log = () if self._log == before else (1, 2)
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
                answer, files = self._receive(rank)
                if answer is None or "failed" in answer:
                    self._refuse(rank, answer)
                answers[rank], passed[rank] = answer, files[0] if files else -1
                poll.unregister(fd)
            if len(answers) < self.world:
                look()
        ordered = range(self.world)
        return [answers[rank] for rank in ordered], [passed[rank] for rank in ordered if passed[rank] >= 0]

    def _receive(self, rank: int, seconds: float | None = None) -> tuple[Message | None, list[int]]:
        """A rank's answer; None if the process is gone, or does not answer in time."""
        try:
            return self._wires[rank].receive(seconds) or (None, [])
        except EOFError:
            return None, []

    def _refuse(self, rank: int, error: Message | None) -> NoReturn:
        """End all processes, and raise the original failure: preferably one that is not the loss of another rank."""
        ends = time.monotonic() + VERDICT_SECONDS
        for other in range(self.world):
            if error is not None and error["failed"] != "rank":
                break
            if other != rank and (heard := self._receive(other, max(0.0, ends - time.monotonic()))[0]) is not None:
                rank, error = (other, heard) if "failed" in heard else (rank, error)
        error = error or {"failed": "rank", "error": f"its process is gone{self._last_words()}", "signature": "rank"}
        place, signature = f"In rank {rank} of {self.world}", error["signature"]
        if self._launcher is not None:
            self._launcher.kill()  # the ranks die with it, even while they wait for this one
        self.end()
        raise TrainerFailed(error["failed"], f"{place}:\n{error['error']}", error.get("taken", 0), signature)

    def _last_words(self) -> str:
        self._stderr.seek(max(0, self._stderr.seek(0, os.SEEK_END) - LAST_WORDS))
        words = self._stderr.read().decode(errors="replace").strip()
        return f"; its last words:\n{words}" if words else ""
