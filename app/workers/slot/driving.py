"""A stage of a chain as a conversation: it says until which step it would train, and is told which was reached."""

from __future__ import annotations

from collections.abc import Callable, Generator

Stage = Generator[int, int, bool]
"""Returns whether the stage was completed; if not, its chain is over."""


def answered(stage: Stage, train: Callable[[], int]) -> int:
    """Do what a stage wants; what it wants next. What goes wrong is the stage's to deal with.

    Raises StopIteration when it is over.
    """
    try:
        reached = train()
    except Exception as error:
        return stage.throw(error)
    return stage.send(reached)
