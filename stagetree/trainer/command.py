"""Trainers that are programs: any command that resumes from a checkpoint and trains up to a step.

    class GPT(CommandTrainer):
        name = "gpt"
        command = "python train.py --from {from} --to {to} ... --width {width}"
        defaults = {"width": 64}

One process trains one stage. It reads the hyper-parameters' values from a table, so that schedules are computed in one
place only, and reports its progress by appending lines to a file.
"""

from __future__ import annotations

import pickle
import shlex
import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from stagetree.sequences import did_you_mean, is_same_value
from stagetree.trainer.base import TrainsAhead
from stagetree.trainer.program import Program, ProgramOrder, Values, folder_for_programs, placeholders

METADATA = ".metadata"
"""The file of a `torch.distributed.checkpoint` folder with the places of its tensors."""


class CommandTrainer(TrainsAhead):
    """A trainer whose work is done by a program, started once a stage.

    The program trains from step START, at which the checkpoint `{from}` was made, up to step STOP, and writes its
    checkpoint to `{to}`: a file or a folder. At step 0, `{from}` is empty. `{schedule}` is a file with a line for each
    step from START on: `{"step": 12, "lr": 0.01}`. The program appends lines to `{metrics}`, each when that many steps
    are done: `{"step": 13}`, with `"log": {...}` to log values, and with `"metrics": {...}` after each of the steps in
    `{evaluate}`, such as `20,40`. If START is STOP it only evaluates. The last line is for the step of the checkpoint.

    SIGTERM means: stop after the current step, write the checkpoint, and exit with 0. If a program dies instead, its
    steps are trained again. An exit code other than 0 fails the trial, with the last lines of stderr.

    The program must depend only on these arguments and its own files: then trials that share a stage end with the same
    bits as trials that were trained alone.
    """

    command: ClassVar[str]
    """The template: words as in a shell, without a shell. `{name}` is one of `trainer_args` or of the names above.
    Files of the trainer's folder named in it belong to the trainer's version, with the modules that they import."""

    defaults: ClassVar[Mapping[str, Any]] = {}
    """The defaults of `trainer_args`."""

    checkpoint: ClassVar[str] = "checkpoint"
    """The name of the file or folder that the program writes, since some libraries depend on its ending."""

    sources: ClassVar[Mapping[Path, bytes]] = {}
    """The files of the trainer's version with their contents; set when the trainer is loaded."""

    folder: ClassVar[Path] = Path()
    """The working directory of the program: the folder of the trainer's file."""

    caches = ("_programs",)

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        words, args = _words(type(self), trainer_args), {**self.defaults, **trainer_args}
        self._programs = _Programs(type(self), words, {**args, "seed": seed, "device": device})

    def setup(self, hp: dict[str, Any]) -> None:
        self._programs.hp = {**self._programs.hp, **hp}

    def expect(self, stop: int, evaluate: frozenset[int], at: Callable[[int], Values]) -> None:
        self._programs.expect(stop, evaluate, at)

    def train(self) -> None:
        self._programs.train()
        self._log_all()

    def settle(self) -> tuple[int, Mapping[int, Mapping[str, float]]]:
        passed = self._programs.settle()
        self._log_all()
        return self._programs.step, passed

    def evaluate(self) -> dict[str, float]:
        return self._programs.evaluate()

    def state_dict(self) -> dict[str, Any]:
        base = self._programs.reach()
        return {"step": self._programs.step, "checkpoint": None if base is None else _read(base)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._programs.load(state["step"], state["checkpoint"])

    def close(self) -> None:
        self._programs.close()

    def _log_all(self) -> None:
        for name, value in self._programs.take_logged():
            self.log(name, value)


class _Programs:
    """The programs that a trainer starts, one after the other, and the checkpoints between them.

    step: the runner's. hp: the values in force at it.
    """

    def __init__(self, kind: type[CommandTrainer], words: Sequence[str], args: Values) -> None:
        self._kind, self._words, self._args = kind, words, args
        self.step, self.hp = 0, dict[str, Any]()
        self._expected: tuple[int, frozenset[int], Callable[[int], Values]] = (0, frozenset(), lambda step: {})
        self._program: Program | None = None
        self._base: tuple[int, Path | None] = (0, None)  # the newest checkpoint and its step
        self._trained: list[Values] = []  # the values of the steps since then
        self._measured: dict[int, dict[str, float]] = {}
        self._number = 0
        self._folder = folder_for_programs()

    def expect(self, stop: int, evaluate: frozenset[int], at: Callable[[int], Values]) -> None:
        """As `CommandTrainer.expect`. A program that would go too far is stopped, and another one started."""
        self._expected = (stop, evaluate, at)
        program = self._program
        if program is not None and self.step < stop < program.order.stop and program.stop() is None:
            self._end()

    def train(self) -> None:
        """Train one step."""
        program = self._program
        if program is None or not program.order.trains(self.step, self.hp):
            self.reach()
            program = self._start(*self._coming())
        program.wait_for(self.step + 1)
        self.step += 1
        self._trained.append(self.hp)

    def take_logged(self) -> list[tuple[str, Any]]:
        """The values logged up to the runner's step, each once."""
        return [] if self._program is None else list(self._program.take_logged(self.step))

    def evaluate(self) -> dict[str, float]:
        """The metrics after the runner's step."""
        program = self._program
        if program is not None and self.step in program.order.evaluate:
            return program.metrics(self.step)
        if self.step not in self._measured:
            self.reach()
            program = self._start([], frozenset({self.step}))
            self._measured = {self.step: program.metrics(self.step)}
            program.finish()
            self._end()
        return self._measured[self.step]

    def settle(self) -> dict[int, dict[str, float]]:
        """Stop a running program and advance to the step that it reached. Returns the metrics of the steps in between.

        If it saved no state, the runner's step stays.
        """
        program, before = self._program, self.step
        if program is None or program.order.stop <= before:
            return {}
        if (reached := program.stop()) is None:
            self._end()
            return {}
        passed = {step: program.metrics(step) for step in program.order.evaluate if before < step < reached}
        self._trained += program.order.values[before - program.order.start :]
        self.step = reached
        return passed

    def reach(self) -> Path | None:
        """The checkpoint at the runner's step; None at the beginning. Steps whose state is lost are trained again."""
        program = self._program
        if program is not None and program.order.stop == self.step:
            program.finish()
            self._adopt(program)
        self._end()
        if self._base[0] != self.step:
            again = self._start(self._trained, frozenset())
            again.finish()
            self._adopt(again)
        return self._base[1]

    def load(self, step: int, checkpoint: Mapping[str, Any] | None) -> None:
        """Continue from a saved checkpoint."""
        self._end()
        path = None
        if checkpoint is not None:
            path = self._new_folder() / self._kind.checkpoint
            _write(path, checkpoint)
        self._become(step, path)
        self.step, self._measured = step, {}

    def close(self) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _coming(self) -> tuple[list[Values], frozenset[int]]:
        """The values of the steps to train in one go, and the steps to evaluate."""
        stop, evaluate, at = self._expected
        if self.step >= stop or not is_same_value(at(self.step), self.hp):
            return [self.hp], frozenset()
        return [at(step) for step in range(self.step, stop)], frozenset(each for each in evaluate if each > self.step)

    def _start(self, values: Sequence[Values], evaluate: frozenset[int]) -> Program:
        for path, content in self._kind.sources.items():
            if not path.is_file() or path.read_bytes() != content:
                raise RuntimeError(f"{path} has changed since this version of the trainer was loaded")
        (start, base), folder = self._base, self._new_folder()
        order = ProgramOrder(start, values, evaluate, folder / self._kind.checkpoint)
        told = {"from": base or "", "to": order.checkpoint, "start": start, "stop": order.stop, **order.files}
        told["evaluate"] = ",".join(map(str, sorted(evaluate)))
        words = [word.format_map({**self._args, **told}) for word in self._words]
        self._program = Program(words, order, self._kind.folder)
        return self._program

    def _adopt(self, program: Program) -> None:
        """Continue from the checkpoint of a program that has ended."""
        self._measured = {step: metrics for step, metrics in program.measured.items() if step == program.step}
        self._end()
        self._become(program.step, program.order.checkpoint)

    def _become(self, step: int, path: Path | None) -> None:
        self._base, self._trained = (step, path), []
        for folder in self._folder.iterdir():
            if path is None or folder != path.parent:
                shutil.rmtree(folder, ignore_errors=True)

    def _end(self) -> None:
        """Kill the running program, if there is one."""
        if self._program is not None:
            self._program.kill()
            self._program = None

    def _new_folder(self) -> Path:
        self._number += 1
        folder = self._folder / str(self._number)
        folder.mkdir()
        return folder


# ------------------------------------------------------------------------------------------ templates and checkpoints


def _words(kind: type[CommandTrainer], args: Mapping[str, Any]) -> list[str]:
    """The template's words. Raises ValueError for unknown or missing arguments."""
    takes = placeholders(kind.command)
    for name in args:
        if name not in takes:
            names = ", ".join(takes) or "none"
            raise ValueError(f"trainer_args.{name}: the command takes {names}{did_you_mean(name, takes)}")
    if missing := [name for name in takes if name not in {**kind.defaults, **args}]:
        raise ValueError(f"trainer_args.{missing[0]} is missing: the command of {kind.name} needs it")
    return shlex.split(kind.command)


def _read(path: Path) -> dict[str, Any]:
    """A checkpoint as part of a state: its bytes by relative path."""
    if path.is_file():
        return {"is_folder": False, "files": {path.name: _bytes(path)}}
    files = sorted(each for each in path.rglob("*") if each.is_file())
    return {"is_folder": True, "files": {each.relative_to(path).as_posix(): _bytes(each) for each in files}}


def _bytes(path: Path) -> np.ndarray[Any, Any]:
    if not path.stat().st_size:
        return np.zeros(0, np.uint8)
    if path.name == METADATA and (content := _timeless(path)):
        return np.frombuffer(content, np.uint8)
    return np.asarray(np.memmap(path, np.uint8, "r"))  # mapped, since it may be larger than memory


def _timeless(path: Path) -> bytes:
    """The metadata of a `torch.distributed.checkpoint` without its folder and the id of the save.

    Empty for another file of that name. Unpickling adds no risk: the program that wrote it has just run here.
    """
    try:
        metadata = pickle.loads(path.read_bytes())
        metadata.storage_meta = None
        return pickle.dumps(metadata)
    except (pickle.UnpicklingError, AttributeError, EOFError, ImportError, ValueError):
        return b""


def _write(path: Path, checkpoint: Mapping[str, Any]) -> None:
    """Write the checkpoint of a state to disk."""
    for name, content in checkpoint["files"].items():
        file = path / name if checkpoint["is_folder"] else path
        if not file.resolve().is_relative_to(path.resolve()):
            raise ValueError(f"{name} is no path inside a checkpoint")
        file.parent.mkdir(parents=True, exist_ok=True)
        np.asarray(content).tofile(file)
