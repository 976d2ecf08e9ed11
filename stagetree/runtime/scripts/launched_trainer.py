"""A script that owns its loop and is launched as several processes, by `torchrun`, `accelerate launch` and the like.

    run = stagetree.attach("gpt", launch="torchrun --nproc-per-node 2", ...)

The ranks (`stagetree.runtime.script_rank`) and their process group are the script's own. Each gets commands over a
socket of its own, so that all take the same steps, load, save and evaluate. Steps are granted many at once: see
`step_grant`.
"""

from __future__ import annotations

import math
import os
import select
import shlex
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain, islice
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from stagetree.runtime import inexact_reasons
from stagetree.runtime.checkpoints import state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.scripts.interface import Script
from stagetree.runtime.scripts.step_grant import Grant
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer import Trainer
from stagetree.trainer.base import MetricSums
from stagetree.trainer.program import LAST_WORDS, ProgramFailed, end_with_us, folder_for_programs


class LaunchedTrainer(Trainer, Script):
    """Trains by a script's processes. The state has all ranks' parts; one that equals the first's is stored once."""

    file: ClassVar[Path]
    """The script."""

    version: ClassVar[str]
    """The script's version; each rank must have read the same."""

    launch: ClassVar[str]
    """The launch command. Names in braces stand for `trainer_args`, and `{devices}` for the number of slots."""

    defaults: ClassVar[Mapping[str, Any]]
    """The literal arguments of `attach`."""

    caches = ("_ranks", "_new")

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        self._step, self._new = 0, dict[str, Any]()
        job: dict[str, Any] = {"file": str(self.file), "name": self.name, "version": self.version}
        job |= {"seed": seed, "device": device, "args": trainer_args, "determinism": _determinism()}
        self._leads = self.ranks.rank == 0  # the leader of a gang starts them, on the devices of all slots
        if self._leads:
            self._ranks = RankProcesses(self._words(), {**job, "threads": torch.get_num_threads()})
            vars(self)["_logged"] = _Logged(self._ranks)

    def _words(self) -> list[str]:
        """The command. Raises ValueError for a name that is no argument, and for a study with shards."""
        if self.ranks.shards:
            raise ValueError("a script's processes sum in an order of their own: `parallel: ddp` instead of `shards`")
        if self.device != "cpu" and torch.cuda.device_count() < self.ranks.world:
            raise ValueError(f"a script needs {self.ranks.world} devices of one machine, which all of its workers see")
        names = {**self.defaults, **self.trainer_args, "devices": self.ranks.world}
        try:
            words = [word.format_map(names) for word in shlex.split(self.launch)]
        except KeyError as error:
            raise ValueError(f"launch: {self.launch!r} names {error}, which is no literal argument of attach") from None
        return [*words, "-m", RANK]

    def setup(self, hp: dict[str, Any]) -> None:
        self._new |= hp

    @property
    def steps(self) -> int:
        """The number of steps trained, also after a failed one."""
        return self._step

    def train_on(self, changes: Iterator[Mapping[str, Any]], is_wanted: Callable[[int], bool]) -> None:
        """Take as many of the coming steps as fit into about a second.

        changes: the values that are new at each coming step. is_wanted: called several times a second with the number
        of finished steps; returns whether to continue. If not, the step under way is the last.
        """
        self._step += self.ranks.agree(self._take(changes, is_wanted))

    def train(self) -> None:
        self._step += self._take(iter([{}]), lambda steps: True)

    def _take(self, changes: Iterator[Mapping[str, Any]], is_wanted: Callable[[int], bool]) -> int:
        """The number of steps that the script took; the leader of a gang decides."""
        self._new |= next(changes)
        try:
            taken = self._ranks.train(chain([self._new], changes), is_wanted) if self._leads else 1
        except TrainerFailed as failed:
            self._step += failed.step
            raise
        self._new = {} if taken else self._new
        return taken

    def evaluate(self) -> dict[str, float]:
        if not self._leads:
            return {}
        first, *_ = self._ranks.ask("evaluate")
        inexact_reasons.note(first["not_exact"])
        return {name: math.nan if value is None else value for name, value in first["metrics"].items()}

    def state_dict(self) -> dict[str, Any]:
        if not self._leads:
            return {}
        first, *others = self._ranks.states()
        return {"step": self._step, "first": first, "others": [state_format.less(each, first) for each in others]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if not self._leads:
            return
        first, others = state["first"], state["others"]
        if len(others) + 1 != self._ranks.world:
            raise ValueError(f"the state is of {len(others) + 1} ranks, and {self.launch!r} has {self._ranks.world}")
        images = [state_format.write(each)[0] for each in (first, *(state_format.more(each, first) for each in others))]
        try:
            self._ranks.ask("load", images, values=self._new)
        finally:
            for image in images:
                os.close(image)
        self._step, self._new = state["step"], {}

    def unread(self) -> list[str]:
        """The hyper-parameters that none of the processes has read."""
        answers = self._ranks.ask("unread") if self._leads else [{"unread": []}]
        return sorted(set.intersection(*(set(each["unread"]) for each in answers)))

    def files_read_by_ranks(self) -> list[str]:
        answers = self._ranks.ask("files") if self._leads else []
        return list(dict.fromkeys(name for each in answers for name in each["files"]))

    def close(self) -> None:
        if self._leads:
            self._ranks.end()


class _Logged(MetricSums):
    """What the first rank has logged, fetched on demand."""

    def __init__(self, ranks: RankProcesses) -> None:
        super().__init__()
        self._ranks = ranks

    def means(self) -> dict[str, float | None]:
        first, *_ = self._ranks.ask("logged")
        return dict(first["logged"])

    def clear(self) -> None:
        """Nothing to do: the first rank clears its log when it loads or evaluates."""


def _determinism() -> str:
    """The mode that this process has set: see `stagetree.runtime.machine.set_determinism`."""
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"


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
        environment = {**os.environ, SOCKET: str(path), "PYTHONSAFEPATH": "1"}  # no folder hides stagetree's modules
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
