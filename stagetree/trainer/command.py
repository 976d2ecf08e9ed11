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

    caches = (
        *("_words", "_args", "_step", "_hp", "_expected", "_program", "_base", "_trained", "_measured"),
        *("_number", "_folder"),
    )

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        self._words = _words(type(self), trainer_args)
        self._args = {**self.defaults, **trainer_args, "seed": seed, "device": device}
        self._step, self._hp = 0, dict[str, Any]()  # the runner's, and the values in force at it
        self._expected: tuple[int, frozenset[int], Callable[[int], Values]] = (0, frozenset(), lambda step: {})
        self._program: Program | None = None
        self._base: tuple[int, Path | None] = (0, None)  # the newest checkpoint and its step
        self._trained: list[Values] = []  # the values of the steps since then
        self._measured: dict[int, dict[str, float]] = {}
        self._number = 0
        self._folder = folder_for_programs()

    def setup(self, hp: dict[str, Any]) -> None:
        self._hp = {**self._hp, **hp}

    def expect(self, stop: int, evaluate: frozenset[int], at: Callable[[int], Values]) -> None:
        """See `TrainsAhead.expect`. A program that would go too far is stopped, and another one started."""
        self._expected = (stop, evaluate, at)
        program = self._program
        if program is not None and self._step < stop < program.order.stop and program.stop() is None:
            self._end()

    def train(self) -> None:
        program = self._program
        if program is None or not program.order.trains(self._step, self._hp):
            self._reach()
            program = self._start(*self._coming())
        program.wait_for(self._step + 1)
        self._step += 1
        self._trained.append(self._hp)
        self._log_all()

    def evaluate(self) -> dict[str, float]:
        program = self._program
        if program is not None and self._step in program.order.evaluate:
            return program.metrics(self._step)
        if self._step not in self._measured:
            self._reach()
            program = self._start([], frozenset({self._step}))
            self._measured = {self._step: program.metrics(self._step)}
            program.finish()
            self._end()
        return self._measured[self._step]

    def settle(self) -> tuple[int, Mapping[int, Mapping[str, float]]]:
        """See `TrainsAhead.settle`. If the running program saved no state, the runner's step stays."""
        program, before, passed = self._program, self._step, dict[int, dict[str, float]]()
        if program is not None and program.order.stop > before:
            if (reached := program.stop()) is None:
                self._end()
            else:
                evaluated = [step for step in program.order.evaluate if before < step < reached]
                passed = {step: program.metrics(step) for step in evaluated}
                self._trained += program.order.values[before - program.order.start :]
                self._step = reached
        self._log_all()
        return self._step, passed

    def state_dict(self) -> dict[str, Any]:
        base = self._reach()
        return {"step": self._step, "checkpoint": None if base is None else _read(base)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._end()
        path = None
        if state["checkpoint"] is not None:
            path = self._new_folder() / self.checkpoint
            _write(path, state["checkpoint"])
        self._become(state["step"], path)
        self._step, self._measured = state["step"], {}

    def close(self) -> None:
        self._end()
        shutil.rmtree(self._folder, ignore_errors=True)

    def _log_all(self) -> None:
        """Log the values that the program has logged up to the runner's step, each once."""
        for name, value in list(self._program.take_logged(self._step)) if self._program else ():
            self.log(name, value)

    def _reach(self) -> Path | None:
        """The checkpoint at the runner's step; None at the beginning. Steps whose state is lost are trained again."""
        program = self._program
        if program is not None and program.order.stop == self._step:
            program.finish()
            self._adopt(program)
        self._end()
        if self._base[0] != self._step:
            again = self._start(self._trained, frozenset())
            again.finish()
            self._adopt(again)
        return self._base[1]

    def _coming(self) -> tuple[list[Values], frozenset[int]]:
        """The values of the steps to train in one go, and the steps to evaluate."""
        stop, evaluate, at = self._expected
        if self._step >= stop or not is_same_value(at(self._step), self._hp):
            return [self._hp], frozenset()
        return [at(step) for step in range(self._step, stop)], frozenset(each for each in evaluate if each > self._step)

    def _start(self, values: Sequence[Values], evaluate: frozenset[int]) -> Program:
        for path, content in self.sources.items():
            if not path.is_file() or path.read_bytes() != content:
                raise RuntimeError(f"{path} has changed since this version of the trainer was loaded")
        (start, base), folder = self._base, self._new_folder()
        order = ProgramOrder(start, values, evaluate, folder / self.checkpoint)
        told = {"from": base or "", "to": order.checkpoint, "start": start, "stop": order.stop, **order.files}
        told["evaluate"] = ",".join(map(str, sorted(evaluate)))
        words = [word.format_map({**self._args, **told}) for word in self._words]
        self._program = Program(words, order, self.folder)
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
