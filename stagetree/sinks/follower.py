"""Send a study's events to sinks, each from its last position.

A ledger file notes every written record on a line, so a killed process resumes where it was.
"""

from __future__ import annotations

import fcntl
import json
import warnings
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import IO, Any, Protocol, runtime_checkable

from stagetree.errors import NotFound
from stagetree.sinks.base import (
    Artifact,
    Ended,
    Json,
    Key,
    Logged,
    Mark,
    Record,
    Run,
    Sink,
    SinkError,
    TakesArtifacts,
    errors_of,
)
from stagetree.sinks.runs import Runs, StageRun, Stages, TakesStages

_BEYOND = 2**62
"""The position of records that follow from all events."""


def ledger_path(folder: Path, study: str) -> Path:
    """The ledger of a study in a sink's folder."""
    return folder / f"{study}.positions.jsonl"


def end_time(path: Path) -> float | None:
    """When the study in this ledger was over, if its end is the last entry; otherwise None."""
    if not path.is_file():
        return None
    whole, _, _ = path.read_bytes().rpartition(b"\n")
    position, key, at = json.loads(whole.splitlines()[-1]) if whole else (0, None, None)
    return at if position == _BEYOND and key is None else None


class Keyed(Protocol):
    """A record that is written once."""

    @property
    def key(self) -> Key: ...


class Ledger:
    """The written records, and the position up to which all events are written.

    A line that was cut off by a kill is ignored. Only one process may open it. Raises `SinkError`.
    """

    def __init__(self, path: Path) -> None:
        self.position = 0
        self.keys: set[Key] = set()
        self.marks: dict[Run, Mark] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file: IO[bytes] = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise SinkError(f"{path.parent}: another process writes there what this study measures") from None
        self._read()

    def _read(self) -> None:
        self._file.seek(0)
        whole = 0
        for line in self._file:
            if not line.endswith(b"\n"):
                break
            whole += len(line)
            self._take(*json.loads(line))
        self._file.truncate(whole)

    def _take(self, position: int, key: list[str | int] | None, mark: Mark) -> None:
        if key is not None:
            self.keys.add(tuple(key))
            self.marks[key[1]] = mark
        elif position != _BEYOND:
            self.position = position

    def note(self, position: int, record: Keyed, mark: Mark) -> None:
        """Note a record of the event at this position."""
        self._add(position, list(record.key), mark)

    def note_at_end(self, record: Keyed, mark: Mark) -> None:
        """Note a record that follows from all events."""
        self._add(_BEYOND, list(record.key), mark)

    def note_position(self, position: int) -> None:
        """Note that all events up to this position are written."""
        self._add(position, None, None)

    def note_end(self, at: float) -> None:
        """Note that everything is written for a study that was over at this time."""
        self._add(_BEYOND, None, at)

    def _add(self, position: int, key: list[str | int] | None, mark: Mark) -> None:
        self._take(position, key, mark)
        self._file.write(json.dumps([position, key, mark]).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        self._file.close()


class StudySource(Protocol):
    """The source of studies and events: a client or a store."""

    def follow(self, study: str, after: int = 0) -> Iterable[Any]: ...

    def trial(self, study: str, number: int) -> Any: ...

    def logged(self, study: str, number: int) -> Iterable[Any]: ...

    def study(self, study: str, *, trials: bool = True) -> Any: ...

    def checkpoint(self, study: str, to: Path) -> Any: ...

    def report(self, study: str, *, public: bool = False) -> str: ...


@runtime_checkable
class Onlooker(Protocol):
    """A sink that polls a study itself until it is over."""

    folder: Path

    def watch(self, source: StudySource, study: str) -> None:
        """Raises `SinkError` and the source's errors; the next call resumes."""


def follow(
    source: StudySource, study: str, sinks: Sequence[Sink | Onlooker], say: Callable[[str], None] = warnings.warn
) -> None:
    """Write the events of a study to sinks until it is over.

    say: receives a message if a sink requested something that is not available. Raises `SinkError` and the source's
    errors; the next call resumes.
    """
    if len(sinks) == 1 and isinstance(sinks[0], Onlooker):
        sinks[0].watch(source, study)
        return
    followers = list[Follower]()
    try:
        for sink in sinks:
            if isinstance(sink, Onlooker):
                raise SinkError("a webhook looks at a study in its own time: follow it in a call of its own")
            followers.append(Follower(source, study, sink, say))
        for event in source.follow(study):
            for follower in followers:
                follower.take(document_of(event))
        answer = document_of(source.study(study))
        for follower in followers:
            follower.end(answer)
    finally:
        for follower in followers:
            follower.close()


class Follower:
    """Writes a study's events to one sink, from the first event on, without repetitions.

    Events before the sink's position are read again, because later records depend on them. They are few and small.
    """

    def __init__(self, source: StudySource, study: str, sink: Sink, say: Callable[[str], None]) -> None:
        self._source, self._study, self._sink, self._say = source, study, sink, say
        with errors_of(str(sink.folder), OSError):
            self._ledger = Ledger(ledger_path(sink.folder, study))
        self._runs = Runs(study, self._ledger.keys)
        self._stages = Stages(self._runs.first_passing)
        self._version, self._with_gaps = 1, False
        try:
            sink.resume(study, self._ledger.marks)
        except BaseException:
            self._ledger.close()
            raise

    def take(self, event: Json) -> None:
        """Write the records that follow from an event."""
        position, records = event["position"], self._runs.take(event)
        self._with_gaps |= event["version"] > self._version + 1
        self._version = event["version"]
        self._write(position, records)
        self._write(position, self._stages.take(event, is_alone=self._runs.is_alone))
        if position > self._ledger.position:
            if self._with_gaps and event["type"] in ("TrialAdded", "TrialExtended"):
                self._write(position, self._shared_measurements(event))
            self._ledger.note_position(position)

    def _shared_measurements(self, event: Json) -> list[Record]:
        """Measurements on a trial's path that other studies made: their events are not in this study."""
        number, records = event["data"]["trial"], list[Record]()
        document = self._trial(number)
        path = document.get("path")
        for point in document["curve"]:
            nodes = self._runs.nodes_at(number, point["step"])
            if path is None or any(node in path for node in nodes):  # it may be struck, and its number another's
                records += self._runs.add_mean(number, point["step"], point["metrics"], event["at"])
        return records

    def _trial(self, number: int) -> Json:
        """The present state of a trial. A discarded trial, whose number is not reused yet, has no curve."""
        try:
            return document_of(self._source.trial(self._study, number))
        except NotFound:
            return {"curve": []}

    def end(self, study: Json) -> None:
        """Write the final state of each trial, and logged values, which no longer change."""
        at = study["finished_at"] or 0.0
        for trial in study["trials"]:
            self._write(None, self._logged_records(trial["trial"], at))
        if isinstance(self._sink, TakesArtifacts) and self._sink.artifacts:
            self._write_artifacts(self._sink, study.get("best"), at)
        self._write(None, [self._end_record(trial, at) for trial in study["trials"]])
        self._ledger.note_end(at)

    def _end_record(self, trial: Json, at: float) -> Ended:
        exactness, value = trial.get("exactness", ""), trial.get("value")
        return Ended(trial["trial"], trial["state"], exactness, value, at=at, is_alone=self._runs.is_alone)

    def _logged_records(self, number: int, at: float) -> Iterable[Record]:
        """All values logged along a trial's path."""
        for point in map(document_of, self._source.logged(self._study, number)):
            if self._runs.passes(number, point["node"], point["step"]):
                yield Logged(number, point["step"], point["metrics"], at=at, is_alone=self._runs.is_alone)

    def _write_artifacts(self, sink: TakesArtifacts, best: Json | None, at: float) -> None:
        """Write files to the run of the best trial. A deleted checkpoint is reported, not retried."""
        if best is None:
            self._say(f"{self._study} has no best trial, whose run would get its {' and '.join(sink.artifacts)}")
            return
        with TemporaryDirectory(prefix="stagetree-") as folder:
            for kind in sink.artifacts:
                artifact = Artifact(best["trial"], kind, Path(folder, kind), at=at, is_alone=self._runs.is_alone)
                if artifact.key in self._ledger.keys:
                    continue
                try:
                    artifact.folder.mkdir()
                    if artifact.kind == "weights":
                        self._source.checkpoint(self._study, artifact.folder)
                    else:
                        text = self._source.report(self._study, public=True)  # the tracker may be public
                        Path(artifact.folder, f"{self._study}.html").write_text(text, encoding="utf-8")
                except NotFound as error:
                    self._say(f"the run of trial {artifact.trial} of {self._study} gets no {kind}: {error}")
                else:
                    self._ledger.note_at_end(artifact, sink.write_artifact(artifact))

    def _write(self, position: int | None, records: Iterable[Record | StageRun]) -> None:
        """Write the missing records of the event at a position, or of the end of the study."""
        for record in records:
            if record.key in self._ledger.keys:
                continue
            if isinstance(record, StageRun):
                if not isinstance(self._sink, TakesStages):
                    continue
                mark = self._sink.write_stage(record)
            else:
                mark = self._sink.write(record)
            if position is None:
                self._ledger.note_at_end(record, mark)
            else:
                self._ledger.note(position, record, mark)

    def close(self) -> None:
        self._sink.close()
        self._ledger.close()


def document_of(answer: Any) -> Json:
    """An answer of a client or a store, as JSON."""
    document: Json = answer.to_json() if hasattr(answer, "to_json") else answer
    return document
