"""Scripts that own their loop in several processes, which `torchrun`, `accelerate launch` or their like starts.

    run = stagetree.attach("gpt", launch="torchrun --nproc-per-node 2", ...)

The ranks (`stagetree.runtime.ranked`) and their group are the script's own. Each hears its next command from the
trainer's process of the slot, over a socket of its own: so all take the same steps, load, save and evaluate.
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
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, NoReturn

import torch

from stagetree.runtime import inexact, state_format
from stagetree.runtime.failures import TrainerFailed
from stagetree.runtime.wire import Message, Wire
from stagetree.trainer import Trainer
from stagetree.trainer.base import MetricSums
from stagetree.trainer.program import LAST_WORDS, ProgramFailed, end_with_us, folder_for_programs

RANK = "stagetree.runtime.ranked"
"""The module that each of them runs."""

SOCKET = "STAGETREE_RANKS"
"""Where the ranks find the trainer's process: a process with it in the environment is a rank."""

LOOK_SECONDS = 0.2
"""How often it is looked whether the launcher has ended."""

VERDICT_SECONDS = 3.0
"""When one of them has failed, the others may take so long to say why they did: one of them was the first."""

END_SECONDS = 5.0
"""A launcher may take so long to end after its ranks."""


class LaunchedTrainer(Trainer):
    """Trains by the processes of a script. The state is that of all ranks: what equals the first one's is kept once."""

    file: ClassVar[Path]
    """The script."""

    version: ClassVar[str]
    """Of the script: each rank must have read the same."""

    launch: ClassVar[str]
    """How they are started; names in braces stand for `trainer_args`, and `{devices}` for the number of slots."""

    defaults: ClassVar[Mapping[str, Any]]
    """The literal arguments of `attach`."""

    caches = ("_ranks", "_new")

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        self._step, self._new = 0, dict[str, Any]()
        job: dict[str, Any] = {"file": str(self.file), "name": self.name, "version": self.version}
        job |= {"seed": seed, "device": device, "args": trainer_args, "determinism": _determinism()}
        self._leads = self.ranks.rank == 0  # of a gang, the leader starts them, on the devices of all
        if self._leads:
            self._ranks = _Ranks(self._words(), {**job, "threads": torch.get_num_threads()})
            vars(self)["_logged"] = _Logged(self._ranks)

    def _words(self) -> list[str]:
        """Raises ValueError for a name that is not among the arguments, and for a study with shards."""
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

    def train(self) -> None:
        if self._leads:
            self._ranks.ask("step", values=self._new)
        self._step, self._new = self._step + 1, {}

    def evaluate(self) -> dict[str, float]:
        if not self._leads:
            return {}
        first, *_ = self._ranks.ask("evaluate")
        inexact.note(first["not_exact"])
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

    def close(self) -> None:
        if self._leads:
            self._ranks.end()


class _Logged(MetricSums):
    """What the first rank has logged: it is fetched when somebody wants to know."""

    def __init__(self, ranks: _Ranks) -> None:
        super().__init__()
        self._ranks = ranks

    def means(self) -> dict[str, float | None]:
        first, *_ = self._ranks.ask("logged")
        return dict(first["logged"])

    def clear(self) -> None:
        """The first rank does it itself, whenever it loads or evaluates."""


class _Ranks:
    """The processes of a script, seen from the trainer's. world: how many they are."""

    def __init__(self, words: Sequence[str], job: Mapping[str, Any]) -> None:
        """Start them, and wait until each is in its loop. Raises `TrainerFailed`, `ProgramFailed`, OSError."""
        self._name, self._wires, self._log = " ".join(words[:-2]), list[Wire](), (0, 0)
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
            self.ask("begin", **job)
        except BaseException:
            self.end()
            raise
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def ask(self, do: str, files: Sequence[int] = (), **fields: Any) -> list[Message]:
        """The answers of all, in the order of the ranks. files: one for each of them. Raises `TrainerFailed`."""
        return self._asked(do, files, fields)[0]

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

    def _asked(self, do: str, files: Sequence[int], fields: Mapping[str, Any]) -> tuple[list[Message], list[int]]:
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
        return self._answers()

    def _answers(self) -> tuple[list[Message], list[int]]:
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
        raise TrainerFailed(error["failed"], f"{place}:\n{error['error']}", signature=signature)

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


def _determinism() -> str:
    """As this process has it: see `stagetree.runtime.machine.set_determinism`."""
    if not torch.are_deterministic_algorithms_enabled():
        return "off"
    return "warn" if torch.is_deterministic_algorithms_warn_only_enabled() else "strict"
