"""The records that a sink is given, and the interface of a sink."""

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
"""The name of a run within its study: the trial's number or, of a trial that is trained alone, `0-alone`."""
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


def run_of(trial: int, is_alone: bool) -> Run:
    """The name of a trial's run. A study whose trials are struck begins anew with other trials of the same numbers."""
    return f"{trial}-alone" if is_alone else trial


def title_of(record: RunRecord) -> str:
    """The name of a trial's run for people."""
    return f"trial {record.trial} (alone)" if record.is_alone else f"trial {record.trial}"


@dataclass(frozen=True)
class RunRecord:
    """A record about one run. trial: its number. at: Unix seconds. is_alone: as in `run_of`."""

    trial: int
    at: float = field(kw_only=True)
    is_alone: bool = field(default=False, kw_only=True)

    @property
    def run(self) -> Run:
        return run_of(self.trial, self.is_alone)


@dataclass(frozen=True)
class Began(RunRecord):
    """A trial was asked for, with these hyper-parameters: the JSON of its sequences."""

    hp: Json

    @property
    def key(self) -> Key:
        return ("began", self.run)

    @property
    def values(self) -> dict[str, bool | float | str]:
        """The hyper-parameters as tables show them: a constant by its value, a sequence by its fields, `lr.init`."""
        return dict(pair for name, value in self.hp.items() for pair in _flat(name, value))


@dataclass(frozen=True)
class Link(RunRecord):
    """A trial shares its steps up to `end` with trial `other`: they were trained once, and are in both runs."""

    other: int
    end: int

    @property
    def key(self) -> Key:
        return ("link", self.run, self.other, self.end)

    @property
    def sentence(self) -> str:
        """The link in words."""
        return (
            f"Shares its steps up to {self.end} with trial {self.other}: they were trained once, and are in both runs."
        )

    @property
    def is_parent(self) -> bool:
        """Whether the trial is a branch of the other, and not the other way round: who came first is the parent."""
        return self.other < self.trial


@dataclass(frozen=True)
class Point(RunRecord):
    """Metrics after a step; of a trial with repeats, the means. A trial has one point at a step at most.

    shared_with: the trial in whose run it was written first, where that is another: it was measured once. deviations:
    of a trial with repeats, the standard deviations of its metrics, as of a sample.
    """

    step: int
    metrics: Mapping[str, float | None]
    shared_with: int | None = field(default=None, kw_only=True)
    deviations: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    @property
    def key(self) -> Key:
        return ("point", self.run, self.step)

    @property
    def numbers(self) -> dict[str, float]:
        """The metrics that were finite numbers, and their deviations as `NAME/std`."""
        stds = {f"{name}/std": value for name, value in self.deviations.items()}
        return {name: value for name, value in self.metrics.items() if value is not None} | stds


@dataclass(frozen=True)
class Logged(Point):
    """What a trainer logged up to a step, between evaluations; told when the study is over."""

    @property
    def key(self) -> Key:
        return ("logged", self.run, self.step)

    @property
    def numbers(self) -> dict[str, float]:
        """Under other names than metrics have."""
        return {f"train/{name}": value for name, value in self.metrics.items() if value is not None}


@dataclass(frozen=True)
class Struck(RunRecord):
    """The run is void: `reason` says what differed when the trainer's states were compared."""

    reason: str

    @property
    def key(self) -> Key:
        return ("struck", self.run)

    @property
    def sentence(self) -> str:
        """That the run is void, in words."""
        return f"Struck: the trainer is not exact. What counts is in the runs named (alone). {self.reason}"


@dataclass(frozen=True)
class Ended(RunRecord):
    """The study is over. state, value: the trial's. exactness: its mark, if it has one."""

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
    """Files for the run of a study's best trial, in `folder`, for as long as they are written. at: the study's end.

    kind: `weights`, as `stagetree weights` writes them, or `report`, as `stagetree report --public` does.
    """

    kind: str
    folder: Path

    @property
    def key(self) -> Key:
        """A study that goes on has another end, and maybe another best trial."""
        return ("artifact", self.run, self.kind, repr(self.at))


@runtime_checkable
class TakesArtifacts(Protocol):
    """A sink that has a place for files."""

    artifacts: Sequence[str]
    """The kinds that it was asked for."""

    def write_artifact(self, artifact: Artifact) -> Mark:
        """Write the files; what was written before under the same names is replaced. Raises `SinkError`."""


class Sink(Protocol):
    """Writes records somewhere.

    A record that was written, and not yet noted as such when the process was killed, is given again: `resume` and
    `write` see to it that it is there once.
    """

    folder: Path
    """Where it is noted what was written."""

    def resume(self, study: str, marks: Mapping[Run, Mark]) -> None:
        """Go on with the runs of a study; `marks` holds the last mark of each run."""

    def write(self, record: Record) -> Mark:
        """Write a record, so that it outlives this process. Raises `SinkError`."""

    def close(self) -> None:
        """Nothing more is written."""


def _flat(name: str, value: Any) -> Iterator[tuple[str, bool | float | str]]:
    if isinstance(value, dict) and value.get("family") == "constant":
        yield from _flat(name, value["value"])
    elif isinstance(value, dict):
        for field_name, inner in value.items():
            yield from _flat(f"{name}.{field_name}", inner)
    else:
        yield name, value if isinstance(value, bool | int | float | str) else json.dumps(value)
