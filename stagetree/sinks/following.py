"""Following a study's events for sinks, from wherever each of them was."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from stagetree.errors import NotFound
from stagetree.sinks.base import Ended, Json, Logged, Record, Sink, errors_of
from stagetree.sinks.ledger import Ledger, path_in
from stagetree.sinks.runs import Runs


class StudySource(Protocol):
    """What tells of studies: a client, or a store."""

    def follow(self, study: str, after: int = 0) -> Iterable[Any]: ...

    def trial(self, study: str, number: int) -> Any: ...

    def logged(self, study: str, number: int) -> Iterable[Any]: ...

    def study(self, study: str) -> Any: ...


def follow(source: StudySource, study: str, sinks: Sequence[Sink]) -> None:
    """Write what happens in a study to sinks, until it is over.

    Raises `SinkError`, and what the source raises; the next call goes on from there.
    """
    followers = list[Follower]()
    try:
        followers += (Follower(source, study, sink) for sink in sinks)
        for event in source.follow(study):
            for follower in followers:
                follower.take(_document(event))
        answer = _document(source.study(study))
        for follower in followers:
            follower.end(answer)
    finally:
        for follower in followers:
            follower.close()


class Follower:
    """One sink: it is given each event, from the first on, and writes what it has not written.

    The events up to the position where it was are read again, since what comes later builds on them. They are few and
    small.
    """

    def __init__(self, source: StudySource, study: str, sink: Sink) -> None:
        self._source, self._study, self._sink = source, study, sink
        with errors_of(str(sink.folder), OSError):
            self._ledger = Ledger(path_in(sink.folder, study))
        self._runs = Runs(study, self._ledger.keys)
        self._version, self._with_gaps = 1, False
        try:
            sink.resume(study, self._ledger.marks)
        except BaseException:
            self._ledger.close()
            raise

    def take(self, event: Json) -> None:
        """Write what follows from an event."""
        position, records = event["position"], self._runs.take(event)
        self._with_gaps |= event["version"] > self._version + 1
        self._version = event["version"]
        self._write(position, records)
        if position > self._ledger.position:
            if self._with_gaps and event["type"] in ("TrialAdded", "TrialExtended"):
                self._write(position, self._measured_by_others(event))
            self._ledger.passed(position)

    def _measured_by_others(self, event: Json) -> list[Record]:
        """What other studies on the plan had measured on a trial's path: their events are not this study's."""
        number, records = event["data"]["trial"], list[Record]()
        found = self._trial(number)
        path = found.get("path")
        for point in found["curve"]:
            node = self._runs.node_at(number, point["step"])
            if node is not None and (path is None or node in path):  # it may be struck, and its number another's
                records += self._runs.measured(node, point["step"], point["metrics"], event["at"])
        return records

    def _trial(self, number: int) -> Json:
        """How a trial stands now; without a curve where it was struck, and none bears its number yet."""
        try:
            return _document(self._source.trial(self._study, number))
        except NotFound:
            return {"curve": []}

    def end(self, study: Json) -> None:
        """The study is over: what was logged between evaluations changes no more. Say how each trial stands."""
        at = study["finished_at"] or 0.0
        for trial in study["trials"]:
            self._write(None, self._logged(trial["trial"], at))
        self._write(None, [self._ended(trial, at) for trial in study["trials"]])
        self._ledger.completed(at)

    def _ended(self, trial: Json, at: float) -> Ended:
        return Ended(trial["trial"], trial["state"], trial.get("exactness", ""), at=at, is_alone=self._runs.is_alone)

    def _logged(self, number: int, at: float) -> Iterable[Record]:
        """What a trial is the first to have passed."""
        for point in map(_document, self._source.logged(self._study, number)):
            if self._runs.is_first(number, point["node"], point["step"]):
                yield Logged(number, point["step"], point["metrics"], at=at, is_alone=self._runs.is_alone)

    def _write(self, position: int | None, records: Iterable[Record]) -> None:
        """Write what is not written yet of the event at a position, or of the end of the study."""
        for record in records:
            if record.key in self._ledger.keys:
                continue
            mark = self._sink.write(record)
            if position is None:
                self._ledger.wrote_at_end(record, mark)
            else:
                self._ledger.wrote(position, record, mark)

    def close(self) -> None:
        """Nothing more comes."""
        self._sink.close()
        self._ledger.close()


def _document(answer: Any) -> Json:
    """An answer as JSON, whether it is one of a client or of a store."""
    document: Json = answer.to_json() if hasattr(answer, "to_json") else answer
    return document
