"""A script that owns its loop, as a trainer.

The script is run from its first line for each model, in a greenlet that alternates with the runner in the same thread.
Everything a step depends on is therefore where it is for other trainers, and a fork of the process continues the
script. A thread would be missing in the fork, and would have generators and a grad mode of its own.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn

from greenlet import GreenletExit, getcurrent, greenlet

from stagetree.functions import Run
from stagetree.runtime.scripts.interface import OpenScript
from stagetree.sequences import did_you_mean
from stagetree.source.importing import Imports
from stagetree.source.loops import set_in_each_step
from stagetree.trainer import Trainer
from stagetree.trainer.values import ReadValues

OWN_SCHEDULE = "a schedule of the script's own cannot be shared, nor is it as long as the trial"
RESULT_SCHEDULE = "its rates follow from results, so run.state must save and load its state_dict"
"""Warnings about a script's own learning-rate scheduler."""


class ScriptTrainer(Trainer, OpenScript):
    """Trains by a script that owns its loop; the script is run anew for each model."""

    file: ClassVar[Path]
    """The script."""

    code: ClassVar[bytes]
    """The script's source, the bytes that the trainer's version is computed from."""

    caches: ClassVar[tuple[str, ...]] = ("_script", "_read")

    def __init__(self, *, seed: int, device: str, **trainer_args: Any) -> None:
        super().__init__(seed=seed, device=device, **trainer_args)
        self._hp: dict[str, Any] = {}
        self._step, self._read = 0, set[str]()
        self._script = _Script(self)
        self._script.ask("begin")

    def setup(self, hp: dict[str, Any]) -> None:
        self._hp |= hp

    def train(self) -> None:
        self._script.ask("step", (self._step, ReadValues(self._hp, self._read)))
        self._step += 1

    def evaluate(self) -> dict[str, float]:
        measured: dict[str, float] = self._script.ask("evaluate")
        return measured

    def state_dict(self) -> dict[str, Any]:
        return {"step": self._step, "state": self._script.ask("save")}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._script.ask("load", state["state"])
        self._step = state["step"]

    def close(self) -> None:
        if not self._script.dead:
            self._script.throw(GreenletExit)

    def variables(self) -> dict[str, Any]:
        found = dict(self._script.globals)
        for variables in self.running().values():
            found |= variables
        return found

    def unread(self) -> list[str]:
        return sorted(self._hp.keys() - self._read)

    def streamed(self) -> list[Any]:
        return [] if self._script.own is None else self._script.own.streamed

    def running(self) -> dict[str, dict[str, Any]]:
        return self._script.running(str(self.file))


def script_trainer(name: str, imports: Imports) -> type[ScriptTrainer]:
    """The trainer class of a script in this process, by the name that it passes to `attach`."""
    members = {
        "__module__": __name__,
        "name": name,
        "file": imports.path,
        "code": imports.files[imports.path.relative_to(imports.base).as_posix()],
        "caches": tuple(set_in_each_step(imports.path, imports.files)),
    }
    return type("Script", (ScriptTrainer,), members)


class _Script(greenlet):
    """A running script, paused between calls."""

    def __init__(self, trainer: ScriptTrainer) -> None:
        super().__init__(self._main)
        self._trainer = trainer
        self._module = ModuleType("__main__")
        self.own: Run | None = None

    def ask(self, call: str, argument: Any = None) -> Any:
        """Have the script run until it answers. Raises its errors, and RuntimeError if it has ended."""
        if self.dead:
            self._refuse()
        self.parent = getcurrent()
        answer = self.switch((call, argument))
        if isinstance(answer, _Raised):
            raise answer.error
        if self.dead:
            self._refuse()
        return answer

    @property
    def globals(self) -> dict[str, Any]:
        """The script's globals as they are now."""
        return vars(self._module)

    def schedules(self) -> set[str]:
        """The class names of torch's schedulers among the script's globals."""
        kinds = (type(each) for each in vars(self._module).values())
        return {each.__name__ for each in kinds if any(base.__name__ == "LRScheduler" for base in each.__mro__)}

    def running(self, file: str) -> dict[str, dict[str, Any]]:
        """The variables of each function of a file that is running, by the function's name."""
        found, frame = dict[str, dict[str, Any]](), self.gr_frame
        while frame is not None:
            if frame.f_code.co_filename == file and frame.f_code.co_name != "<module>":
                found[frame.f_code.co_name] = dict(frame.f_locals)
                if isinstance(frame.f_locals, dict):
                    frame.f_locals.clear()  # before Python 3.13 a copy, which would keep old tensors alive
            frame = frame.f_back
        return found

    def attach_run(self, args: Mapping[str, Any], caches: tuple[str, ...]) -> Run:
        for name in self._trainer.trainer_args:
            if name not in args:
                names = ", ".join(args) or "none"
                raise ValueError(f"trainer_args.{name}: the script takes {names}{did_you_mean(name, args)}")
        kind = type(self._trainer)
        kind.caches = tuple({*kind.caches, *caches})
        self.own = _Attached(self._trainer, self, args)
        return self.own

    def _main(self, began: Any) -> None:
        kind = type(self._trainer)
        module = self._module
        module.__file__ = str(kind.file)
        sys.modules["__main__"], sys.argv = module, [str(kind.file)]
        try:
            exec(compile(kind.code, str(kind.file), "exec"), vars(module))
        except SystemExit as error:
            raise RuntimeError(f"{kind.file.name} called sys.exit({error.code!r})") from error

    def _refuse(self) -> NoReturn:
        name = self._trainer.file.name
        raise RuntimeError(f"{name} has ended: it must loop over run.steps() for as long as that gives steps")


class _Raised:
    """An error of one of the script's callbacks; its loop continues."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class _Attached(Run):
    """The run of a script that trains for a study."""

    def __init__(self, trainer: ScriptTrainer, script: _Script, args: Mapping[str, Any]) -> None:
        super().__init__({**args, **trainer.trainer_args}, trainer.seed, trainer.device)
        self._trainer, self._script = trainer, script

    def steps(self) -> Iterator[tuple[int, dict[str, Any]]]:
        self.check()
        for name in sorted(self._script.schedules()):
            print(f"--- {name}: {RESULT_SCHEDULE if name == 'ReduceLROnPlateau' else OWN_SCHEDULE}")
        answer: Any = None
        while True:
            assert self._script.parent is not None
            call, argument = self._script.parent.switch(answer)
            if call == "step":
                yield argument
                answer = None
            else:
                answer = self._answer(call, () if call != "load" else (argument,))

    def log(self, name: str, value: Any) -> None:
        self._trainer.log(name, value)

    def _answer(self, call: str, arguments: tuple[Any, ...]) -> Any:
        try:
            return self.calls[call](*arguments)
        except GreenletExit:
            raise
        except BaseException as error:
            return _Raised(error)
