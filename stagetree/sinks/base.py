"""The interface of sinks, and the records that they receive."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from stagetree.errors import StagetreeError

Json = dict[str, Any]
Key = tuple[str | int, ...]
Run = int | str
"""The name of a run within its study: the trial's number or, if it is trained alone, `0-alone`."""
Mark = Any
"""JSON that a sink gets back when it resumes."""


class SinkError(StagetreeError):
    """A sink that cannot be opened or written. The message says why."""


@contextmanager
def errors_of(name: str, *kinds: type[Exception]) -> Iterator[None]:
    """Convert the exceptions of a library to `SinkError`."""
    try:
        yield
    except kinds as error:
        raise SinkError(f"{name}: {error}") from error


def run_of(trial: int, is_alone: bool) -> Run:
    """The name of a trial's run. When a study restarts without sharing, new trials have the old numbers."""
    return f"{trial}-alone" if is_alone else trial


def title_of(record: RunRecord) -> str:
    """The readable name of a trial's run."""
    return f"trial {record.trial} (alone)" if record.is_alone else f"trial {record.trial}"


@dataclass(frozen=True)
class RunRecord:
    """A record about one run."""

    trial: int
    """The trial's number."""
    at: float = field(kw_only=True)
    """Unix seconds."""
    is_alone: bool = field(default=False, kw_only=True)
    """As in `run_of`."""

    @property
    def run(self) -> Run:
        return run_of(self.trial, self.is_alone)


@dataclass(frozen=True)
class Began(RunRecord):
    """A trial was requested with these hyper-parameters, as JSON of sequences."""

    hp: Json

    @property
    def key(self) -> Key:
        return ("began", self.run)

    @property
    def values(self) -> dict[str, bool | float | str]:
        """The hyper-parameters as in tables: a constant by its value, a sequence by its fields, `lr.init`."""
        return dict(pair for name, value in self.hp.items() for pair in _flat(name, value))


@dataclass(frozen=True)
class Link(RunRecord):
    """A trial shares its steps up to `end` with trial `other`. They were trained once and are in both runs."""

    other: int
    end: int

    @property
    def key(self) -> Key:
        return ("link", self.run, self.other, self.end)

    @property
    def sentence(self) -> str:
        return (
            f"Shares its steps up to {self.end} with trial {self.other}: they were trained once, and are in both runs."
        )

    @property
    def is_parent(self) -> bool:
        """Whether the other trial came first, so that this one is its branch."""
        return self.other < self.trial


@dataclass(frozen=True)
class Point(RunRecord):
    """Metrics after a step; for a trial with repeats, the means. A trial has at most one point per step."""

    step: int
    metrics: Mapping[str, float | None]
    shared_with: int | None = field(default=None, kw_only=True)
    """The trial in whose run the measurement was first written, if it is another."""
    deviations: Mapping[str, float] = field(default_factory=dict, kw_only=True)
    """For a trial with repeats, the sample standard deviations of the metrics."""

    @property
    def key(self) -> Key:
        return ("point", self.run, self.step)

    @property
    def numbers(self) -> dict[str, float]:
        """The finite metrics, and their deviations as `NAME/std`."""
        stds = {f"{name}/std": value for name, value in self.deviations.items()}
        return {name: value for name, value in self.metrics.items() if value is not None} | stds


@dataclass(frozen=True)
class Logged(Point):
    """Values that a trainer logged up to a step, between evaluations. Written when the study is over."""

    @property
    def key(self) -> Key:
        return ("logged", self.run, self.step)

    @property
    def numbers(self) -> dict[str, float]:
        """The values by name, with the prefix "train/", so that no name is a metric's."""
        return {f"train/{name}": value for name, value in self.metrics.items() if value is not None}


@dataclass(frozen=True)
class Struck(RunRecord):
    """The run is void. `reason` says what differed when the trainer's states were compared."""

    reason: str

    @property
    def key(self) -> Key:
        return ("struck", self.run)

    @property
    def sentence(self) -> str:
        return f"Struck: the trainer is not exact. What counts is in the runs named (alone). {self.reason}"


@dataclass(frozen=True)
class Ended(RunRecord):
    """The study is over. `state` and `value` are the trial's; `exactness` is its mark, if any."""

    state: str
    exactness: str = ""
    value: float | None = None

    @property
    def key(self) -> Key:
        more = (self.exactness, "" if self.value is None else repr(self.value))
        return ("ended", self.run, self.state, *filter(None, more))


Record = Began | Link | Point | Struck | Ended


@dataclass(frozen=True)
class Artifact(RunRecord):
    """Files for the run of a study's best trial. They exist in `folder` only during the write.

    kind: `weights`, as `stagetree weights` writes them, or `report`, as `stagetree report --public` does. at: the
    study's end.
    """

    kind: str
    folder: Path

    @property
    def key(self) -> Key:
        """A reopened study has another end, and maybe another best trial."""
        return ("artifact", self.run, self.kind, repr(self.at))


@runtime_checkable
class TakesArtifacts(Protocol):
    """A sink that accepts files."""

    artifacts: Sequence[str]
    """The requested kinds."""

    def write_artifact(self, artifact: Artifact) -> Mark:
        """Write the files, replacing earlier ones of the same names. Raises `SinkError`."""


class Sink(Protocol):
    """Writes records to a target.

    A record that was written but not yet noted when the process was killed is sent again. `resume` and `write` must
    ensure that it appears once.
    """

    folder: Path
    """The folder with the sink's progress."""

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Resume the runs of a study; `marks` holds the last mark of each run."""

    def write(self, record: Record) -> Mark:
        """Write a record durably. Raises `SinkError`."""

    def close(self) -> None:
        """Release resources after the last record."""


def _flat(name: str, value: Any) -> Iterator[tuple[str, bool | float | str]]:
    if isinstance(value, dict) and value.get("family") == "constant":
        yield from _flat(name, value["value"])
    elif isinstance(value, dict):
        for field_name, inner in value.items():
            yield from _flat(f"{name}.{field_name}", inner)
    else:
        yield name, value if isinstance(value, bool | int | float | str) else json.dumps(value)
