"""A framework's loop in turn with `run`, and settings that a study decides instead of the framework.

The framework calls back before each of its steps, where `run.steps()` provides the next one. A loaded state is applied
right away. To train on from it, the framework's loop is left and restarted with the framework's own resume, which finds
the position in the data.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NoReturn

from stagetree.functions import Run
from stagetree.trainer import generators

Hp = dict[str, Any]
Apply = Callable[[Hp], None]


class _LoopLeft(Exception):
    """Leaves the framework's loop, which is then restarted at another step or ends."""


class FrameworkLoop(ABC):
    """A framework's loop in turn with `run`; `train` returns at the end of a run by hand."""

    name = ""

    def __init__(self, run: Run, apply: Apply | None = None) -> None:
        self._run, self._apply = run, apply
        self._steps: Iterator[tuple[int, Hp]] = iter(())
        self._loaded: Any = None
        self._next: tuple[tuple[int, Hp], generators.GeneratorStates] | None = None
        self._is_over = False

    def train(self) -> None:
        """Raises the script's errors, and RuntimeError if the framework ends its loop itself."""
        self._run.state(save=self._save, load=self._load, evaluate=self.evaluate)
        self._steps = self._run.steps()
        while not self._is_over:
            with TemporaryDirectory(prefix="stagetree-") as folder:
                try:
                    self.fit(Path(folder), self._loaded)
                except _LoopLeft:
                    continue
            why = "a callback stops it, or its own number of steps. How long a trial trains is for the study to say"
            raise RuntimeError(f"the loop of {self.name} has ended by itself: {why}")

    def begin_step(self) -> None:
        """To be called by the framework before each step."""
        if self._next is not None:  # the loop was restarted for this step
            (_, hp), mark = self._next
            self._next = self._loaded = None
            generators.restore(mark, self._run.device)
        else:
            hp = self._wait()
        if self._apply is not None:
            self._apply(hp)
        self.apply(hp)

    def _wait(self) -> Hp:
        """The values of the next step to take here."""
        try:
            step, hp = next(self._steps)
        except StopIteration:
            self._is_over = True
            raise _LoopLeft from None
        if self._loaded is not None:
            self._next = (step, hp), generators.state(self._run.device)
            raise _LoopLeft
        return hp

    def _save(self) -> Any:
        return self.save() if self._loaded is None else self._loaded

    def _load(self, state: Any) -> None:
        self._loaded = copy.deepcopy(state)  # the same state may be loaded again
        self.load(self._loaded)

    @abstractmethod
    def fit(self, folder: Path, state: Any) -> None:
        """Run the framework's loop from a state, or from the beginning; `folder` exists while it runs."""

    @abstractmethod
    def apply(self, hp: Hp) -> None:
        """Apply the values of a step. Raises ValueError for an unknown name."""

    @abstractmethod
    def save(self) -> Any:
        """The state between two steps."""

    @abstractmethod
    def load(self, state: Any) -> None:
        """Apply a state for evaluating and saving it."""

    @abstractmethod
    def evaluate(self) -> dict[str, float]:
        """The metrics; must not change the state."""


class RateGroups:
    """Sets hyper-parameters in an optimizer's parameter groups, each of which keeps its own multiple.

    own: the values that the user created it with, by name. Raises ValueError for a name that no group has.
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
        """Set a value from now on."""
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
    """Raises ValueError for a script's own schedule when the study has no `lr`. instead: what to do."""
    raise ValueError(f"a schedule of the script's own ({own}) cannot be shared: {instead}")


def refuse_name(name: str, has: str) -> NoReturn:
    """Raises ValueError for a hyper-parameter that no optimizer has, unless `apply` takes it."""
    raise ValueError(f"hyper-parameter {name}: {has}; `apply` is for others")


def group_names(hp: Hp) -> Hp:
    """The values by their names in parameter groups."""
    return {"lr" if name == "learning_rate" else name: value for name, value in hp.items()}
