"""Trainers whose model is in another process: a program that may be further, or processes that take many steps."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from stagetree.trainer.base import Trainer


class TrainsAhead(Trainer):
    """A trainer whose model is elsewhere, in a program of its own, and may be further than the runner is.

    `train` returns once the step that comes next is done, however far the model is.
    """

    @abstractmethod
    def expect(self, stop: int, evaluate: frozenset[int], at: Callable[[int], Mapping[str, Any]]) -> None:
        """Hear of what comes, so that it can be done in one go.

        Args:
            stop: the step up to which it is trained before a state is asked for.
            evaluate: the steps up to there after which it is evaluated.
            at: all values in force at a step.
        """

    @abstractmethod
    def settle(self) -> tuple[int, Mapping[int, Mapping[str, float]]]:
        """Be at one step, at once: the training ends before the step that was expected.

        Returns:
            That step, which is the runner's or a later one, and the metrics of the steps between them at which it was
            to be evaluated.
        """


class TrainsAtOnce(Trainer):
    """A trainer whose model is in processes of its own: to tell them of each step would cost more than many a step."""

    @property
    @abstractmethod
    def steps(self) -> int:
        """How many it was trained for, also where the last one failed."""

    @abstractmethod
    def train_on(self, changes: Iterator[Mapping[str, Any]], goes_on: Callable[[int], bool]) -> None:
        """Take as many of the coming steps as fit in about a second, one at least.

        Args:
            changes: of each that may come, the values that are new at it.
            goes_on: asked several times a second, with how many steps are done: whether more are wanted. If
                not, it ends with the step under way.
        """
