"""The questions of the runtime to a trainer that is a script, beside those to every trainer.

It asks by these classes and not by names: a class trainer's own `running` or `variables` are its user's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stagetree.trainer.divided_tensors import in_brackets


class Script(ABC):
    """A trainer that is a script, in this process or in several of its own."""

    @abstractmethod
    def unread(self) -> list[str]:
        """The hyper-parameters that the script has read in no step so far."""

    def read_elsewhere(self) -> list[str]:
        """The files that processes of the script's own have read, as of `reads_of`."""
        return []


class OpenScript(Script):
    """A script that is run in this process, so that its variables can be looked at."""

    @abstractmethod
    def variables(self) -> dict[str, Any]:
        """The globals of the script, and the variables of its functions that are being run."""

    @abstractmethod
    def streamed(self) -> list[Any]:
        """The data of the script's streams, whose places are in the state: they go there when they are read next."""

    @abstractmethod
    def running(self) -> dict[str, dict[str, Any]]:
        """The variables of each function of the script that is being run, such as `main`, by the function's name."""


def place_text(trainer: object, place: Sequence[Any]) -> str:
    """Where something is in what the user's own code gives: `save()["best"]` of a script.

    place: the keys and indices that lead to it from the whole state.
    """
    inside = list(place[1:] if place[:1] == ("trainer",) else place)
    if not isinstance(trainer, Script):
        return in_brackets("state_dict()", inside)
    is_streamed = isinstance(trainer, OpenScript) and bool(trainer.streamed())
    for _ in range(1 + is_streamed):  # what stands around that in the state of a script
        inside = inside[1:] if inside[:1] == ["state"] else inside
    return in_brackets("save()", inside)
