"""What a sink is told, and what it must do."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from stagetree.errors import StagetreeError

Json = dict[str, Any]
Key = tuple[str | int, ...]
Mark = Any
"""What a sink wants to be reminded of when it goes on; JSON."""


class SinkError(StagetreeError):
    """A sink that cannot be had, or cannot go on; the sentence says why."""


@contextmanager
def errors_of(name: str, *kinds: type[Exception]) -> Iterator[None]:
    """Turn what a library raises when it is refused or away into a `SinkError`."""
    try:
        yield
    except kinds as error:
        raise SinkError(f"{name}: {error}") from error


@dataclass(frozen=True)
class Began:
    """A trial was asked for. `at` is when, in Unix seconds."""

    trial: int
    hp: Json
    at: float

    @property
    def key(self) -> Key:
        return ("began", self.trial)

    @property
    def values(self) -> dict[str, bool | float | str]:
        """The hyper-parameters as tables show them: a constant by its value, a sequence by its JSON."""
        return {name: _shown(value) for name, value in self.hp.items()}


@dataclass(frozen=True)
class Link:
    """A trial's steps up to `end` are those of trial `other`: what is not in the run of the one is in the other's."""

    trial: int
    other: int
    end: int
    at: float

    @property
    def key(self) -> Key:
        return ("link", self.trial, self.other, self.end)

    @property
    def sentence(self) -> str:
        """The link in words."""
        return f"Shares its steps up to {self.end} with trial {self.other}: what is not in this run is in that one."


@dataclass(frozen=True)
class Point:
    """Metrics after a step. A trial has one point at a step at most."""

    trial: int
    step: int
    metrics: Mapping[str, float | None]
    at: float

    @property
    def key(self) -> Key:
        return ("point", self.trial, self.step)

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that were finite numbers."""
        return {name: value for name, value in self.metrics.items() if value is not None}


@dataclass(frozen=True)
class Logged(Point):
    """What a trainer logged up to a step, between evaluations; told when the study is over."""

    @property
    def key(self) -> Key:
        return ("logged", self.trial, self.step)

    @property
    def numbers(self) -> dict[str, float]:
        """Under names that are not those of metrics."""
        return {f"train/{name}": value for name, value in self.metrics.items() if value is not None}


@dataclass(frozen=True)
class Ended:
    """The study is over, and this is how the trial stands."""

    trial: int
    state: str
    at: float

    @property
    def key(self) -> Key:
        return ("ended", self.trial, self.state)


Record = Began | Link | Point | Ended


class Sink(Protocol):
    """Writes records somewhere.

    A record that was written, and not yet noted as such when the process was killed, is given again: `resume` and
    `write` see to it that it is there once.
    """

    folder: Path
    """Where it is noted what was written."""

    def resume(self, study: str, marks: Mapping[int, Mark]) -> None:
        """Go on with the runs of a study; `marks` holds the last mark of each trial's run."""

    def write(self, record: Record) -> Mark:
        """Write a record, so that it outlives this process. Raises `SinkError`."""

    def close(self) -> None:
        """Nothing more is written."""


def _shown(value: Any) -> bool | float | str:
    if isinstance(value, dict) and value.get("family") == "constant":
        value = value["value"]
    return value if isinstance(value, bool | int | float | str) else json.dumps(value)
