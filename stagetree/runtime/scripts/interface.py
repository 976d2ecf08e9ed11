"""What the runtime asks trainers that are scripts, besides the methods of all trainers.

It checks for these classes rather than method names: a class trainer's own `running` or `variables` are its user's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from stagetree.trainer.divided_tensors import indexed_path


class Script(ABC):
    """A trainer that is a script, in this process or launched as several."""

    @abstractmethod
    def unread(self) -> list[str]:
        """The hyper-parameters that the script has not read yet."""

    def files_read_by_ranks(self) -> list[str]:
        """The files that the script's own processes have read, as in `reads_of`."""
        return []


class OpenScript(Script):
    """A script that runs in this process, so that its variables can be read."""

    @abstractmethod
    def variables(self) -> dict[str, Any]:
        """The script's globals, and the variables of its running functions."""

    @abstractmethod
    def streamed(self) -> list[Any]:
        """The data of the script's streams. Their positions are in the state, and are restored on the next read."""

    @abstractmethod
    def running(self) -> dict[str, dict[str, Any]]:
        """The variables of each running function of the script, such as `main`, by the function's name."""


def place_text(trainer: object, place: Sequence[Any]) -> str:
    """The place of a value in the user's own terms: `save()["best"]` of a script.

    place: the keys and indices that lead to it in the whole state.
    """
    inside = list(place[1:] if place[:1] == ("trainer",) else place)
    if not isinstance(trainer, Script):
        return indexed_path("state_dict()", inside)
    is_streamed = isinstance(trainer, OpenScript) and bool(trainer.streamed())
    for _ in range(1 + is_streamed):  # skip the levels that wrap a script's own state
        inside = inside[1:] if inside[:1] == ["state"] else inside
    return indexed_path("save()", inside)
