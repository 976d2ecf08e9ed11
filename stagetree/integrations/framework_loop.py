"""A framework's loop in turn with `run`, and what a study decides instead of the framework.

The framework calls back before each of its steps, where `run.steps()` is asked for the next one. A state is put in
place as soon as it is loaded. To train on from there, the framework's loop is left, and begun anew with its own way of
resuming, which finds the place in the data.
"""

from __future__ import annotations

import copy
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from stagetree.functions import Run
from stagetree.trainer import generators

Hp = dict[str, Any]
Apply = Callable[[Hp], None]


class _Left(Exception):
    """The framework's loop is left: nothing went wrong. It goes on at another step, or is over."""


class FrameworkLoop(ABC):
    """The loop of a framework in turn with `run`; `train` returns at the end of a run by hand."""

    name = ""

    def __init__(self, run: Run, apply: Apply | None = None) -> None:
        self._run, self._apply = run, apply
        self._steps: Iterator[tuple[int, Hp]] = iter(())
        self._loaded: Any = None
        self._next: tuple[tuple[int, Hp], generators.Mark] | None = None
        self._is_over = False

    def train(self) -> None:
        """Errors of the script come through. Raises RuntimeError where the framework ends its loop by itself."""
        self._run.state(save=self._save, load=self._load, evaluate=self.evaluate)
        self._steps = self._run.steps()
        while not self._is_over:
            with in_a_folder() as folder:
                try:
                    self.fit(folder, self._loaded)
                except _Left:
                    continue
            why = "a callback stops it, or its own number of steps. How long a trial trains is for the study to say"
            raise RuntimeError(f"the loop of {self.name} has ended by itself: {why}")

    def begin_step(self) -> None:
        """To be called before each step, by the framework."""
        if self._next is not None:  # the loop was begun anew for this step
            (_, hp), mark = self._next
            self._next = self._loaded = None
            generators.go_back(mark, self._run.device)
        else:
            hp = self._wait()
        if self._apply is not None:
            self._apply(hp)
        self.apply(hp)

    def _wait(self) -> Hp:
        """The values of the next step that is wanted here."""
        try:
            step, hp = next(self._steps)
        except StopIteration:
            self._is_over = True
            raise _Left from None
        if self._loaded is not None:
            self._next = (step, hp), generators.mark(self._run.device)
            raise _Left
        return hp

    def _save(self) -> Any:
        return self.save() if self._loaded is None else self._loaded

    def _load(self, state: Any) -> None:
        self._loaded = copy.deepcopy(state)  # the same may be loaded again
        self.load(self._loaded)

    @abstractmethod
    def fit(self, folder: Path, state: Any) -> None:
        """Run the framework's loop from a state, or from its beginning; `folder` is there as long as it runs."""

    @abstractmethod
    def apply(self, hp: Hp) -> None:
        """Bring the values of a step into force. Raises ValueError for one that it has no place for."""

    @abstractmethod
    def save(self) -> Any:
        """The state between two steps."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Put a state in place, where it is measured and saved."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """The metrics; without a trace."""


@contextmanager
def in_a_folder() -> Iterator[Path]:
    """A new one, which is gone after the block."""
    with tempfile.TemporaryDirectory(prefix="stagetree-") as folder:
        yield Path(folder)


class RateGroups:
    """Puts the values of hyper-parameters into an optimizer's parameter groups, each of which keeps its own multiple.

    own: the values that its user has made it with, by name. Raises ValueError for a name that no group has.
    """

    def __init__(self, optimizer: Any, own: Mapping[str, float]) -> None:
        groups = optimizer.param_groups
        self.names = sorted({name for group in groups for name in group} - {"params", "initial_lr"})
        initial = [{**group, "lr": group.get("initial_lr", group["lr"])} for group in groups]
        self._multiples = {
            name: [float(group[name]) / value for group in initial]
            for name, value in own.items()
            if name in self.names and value
        }
        self._own = own

    def set(self, optimizer: Any, name: str, value: Any) -> None:
        """From here on, it is in force."""
        if name in self._own and name not in self._multiples:
            raise ValueError(
                f"hyper-parameter {name}: it is 0 where the script says so, and which groups keep 0 is not known"
            )
        multiples = self._multiples.get(name)
        for number, group in enumerate(optimizer.param_groups):
            if name in group:
                group[name] = value if multiples is None else value * multiples[number]


# ------------------------------------------------------------------------------------------ what a study decides


def refuse_stopping(callbacks: Iterable[Any], name: str) -> None:
    """Raises ValueError for a callback of that class."""
    if any(type(each).__name__ == name for each in callbacks):
        raise ValueError(f"{name}: when a trial stops is for the study's tuner to say")


def refuse_schedule(own: str, instead: str) -> NoReturn:
    """Raises ValueError for a schedule that the script owns, where the study has no `lr`. instead: the right way."""
    raise ValueError(f"a schedule of the script's own ({own}) cannot be shared: {instead}")


def refuse_name(name: str, has: str) -> NoReturn:
    """Raises ValueError for a hyper-parameter that no optimizer has, where `apply` does not take it."""
    raise ValueError(f"hyper-parameter {name}: {has}; `apply` is for others")


def named(hp: Hp) -> Hp:
    """The values by the names of parameter groups."""
    return {"lr" if name == "learning_rate" else name: value for name, value in hp.items()}
