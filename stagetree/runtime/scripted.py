"""The questions of the runtime to a trainer that is a script, beside those to every trainer.

It asks by these classes and not by names: a class trainer's own `running` or `variables` are its user's.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any


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
