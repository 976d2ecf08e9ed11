"""The input files that a chain is trained with. A change is a recorded fact, and so is a file that cannot be read.

Users choose the paths, so files are read by a process that is given a time limit: see `app.input_reader`.

Runs on: the thread that trains.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.inputs import is_unseen
from app.domain.terms import StudyId
from app.input_fingerprints import InputMissing, InputUnread
from app.input_reader import READY, InputReader, ReadRequest
from app.undeclared_inputs import has_changed, record_undeclared, version_of
from app.workers.slot.claim import Claim
from app.workers.slot.environment import Surveyor
from app.workers.slot.retry import Clock, Instant, monotonic
from app.workers.slot.slot_status import SlotStatus
from stagetree.source.undeclared_input import UndeclaredInput

logger = logging.getLogger(__name__)

Json = dict[str, Any]

MAX_TIME_SHARE = 0.02
"""A path is examined again after an interval that keeps the time for it within this share of a slot's time."""

SHOWN_SECONDS = 1.0
"""A slot that has read for longer shows which path it reads."""

PATTERN_FILES = 16
"""If a trainer's constructor wrote more files of one kind in a folder, it also wrote the others."""

MAX_NAMED_FILES = 3
"""If more files of one kind have changed, only the kind is named."""


@dataclass(frozen=True, slots=True)
class StudyFiles:
    """What a slot may read for studies. folders: that they may name."""

    reader: InputReader
    folders: Sequence[str]
    status: SlotStatus

    def read(self, requests: Sequence[ReadRequest], check_wanted: Callable[[], None]) -> list[Any]:
        """As `InputReader.read`. The slot's row shows the path meanwhile."""

        def on_wait(path: str, seconds: float) -> None:
            check_wanted()
            if path and seconds >= SHOWN_SECONDS:
                self.status.put("inputs", f"reads the input {path} for {seconds:.0f} s")

        try:
            return self.reader.read(requests, on_wait)
        finally:
            self.status.remove("inputs")


class _Unwanted(Exception):
    """The slot must do something else than wait for inputs."""


class InputWatch:
    """Examines a chain's inputs when it begins and after each stage. clock: monotonic.

    check_wanted, in all methods: called several times a second while files are read; raises to end that.
    """

    def __init__(self, files: StudyFiles, surveyor: Surveyor | None = None, clock: Clock = monotonic) -> None:
        self._files, self._surveyor, self._clock = files, surveyor, clock
        self._cache: dict[str, tuple[Instant, str]] = {}  # by record: valid until, and the finding
        self._writers: dict[
            tuple[str, str], tuple[str, bool]
        ] = {}  # by plan and path: the chain, and whether in training
        self._built = Counter[tuple[str, str, str]]()  # by plan, folder and ending: the files that were written before

    def close(self) -> None:
        self._files.reader.close()

    def prepare(self) -> None:
        """Start the process that will read files, so that it is there once a model is built."""
        self._files.reader.prepare()

    def look(
        self, claim: Claim, work: ChainAssignment, index: int, check_wanted: Callable[[], None]
    ) -> tuple[list[e.Event], list[str]]:
        """The facts to record, and why stages may have other inputs than their study: words after "3 stages".

        index: of the stage that begins; later stages use the first one's result.
        """
        if index > 0:
            return [], []
        if work.describe and self._surveyor is not None:
            self._surveyor.survey(claim, work.trainer)
        return self._first_sight(work, check_wanted), self._changes(work, check_wanted)

    def look_at_end(
        self, claim: Claim, work: ChainAssignment, uses: Mapping[str, Any], is_unwanted: Callable[[], bool]
    ) -> list[str]:
        """The same after a stage, whose results must be recorded in any case.

        uses: the files that it opened, as of `TrainerHost.uses`. is_unwanted: whether to stop reading.
        """

        def check_wanted() -> None:
            if is_unwanted():
                raise _Unwanted

        try:
            changes = self._changes(work, check_wanted)
        except _Unwanted:
            changes = ["had unchecked inputs: the slot had to stop before it had read them"]
        return [*changes, *(text for text in self._judge(claim, work, uses) if not _names_one_of(text, changes))]

    def record_undeclared(self, paths: Sequence[str], check_wanted: Callable[[], None]) -> list[Json]:
        """Records of undeclared inputs that a trainer was seen to use. What cannot be read is left out."""
        files = [path for path in paths if UndeclaredInput(path).is_file]
        records = record_undeclared(path for path in paths if not UndeclaredInput(path).is_file)
        for found in self._files.read([ReadRequest.record_undeclared(files)] if files else [], check_wanted):
            if isinstance(found, InputMissing):
                logger.warning("%d files that a trainer reads are not compared later: %s", len(files), found)
            else:
                records = sorted([*records, *found], key=lambda record: paths.index(record["path"]))
        return records

    def _first_sight(self, work: ChainAssignment, check_wanted: Callable[[], None]) -> list[e.Event]:
        """The records of inputs that no slot has seen yet, if there is anything new to say of them."""
        declared = [each for each in work.inputs if "found" not in each and "written" not in each]
        unread = {each["path"]: self._cached(each["path"]) for each in declared if is_unseen(each)}
        due = [path for path, problem in unread.items() if problem is None]
        begun_at, seen = self._read([ReadRequest.look(path, self._files.folders) for path in due], check_wanted)
        records = {path: {"path": path, "unread": problem} for path, problem in unread.items()}
        records |= {path: _record(path, found) for path, found in zip(due, seen, strict=True)}
        for path in due:
            if problem := records[path].get("unread"):
                self._keep(path, problem, begun_at)
        now = [records.get(each["path"], dict(each)) for each in declared]
        return [] if now == declared else [e.InputsSeen(study=StudyId(work.study), inputs=now)]

    def _changes(self, work: ChainAssignment, check_wanted: Callable[[], None]) -> list[str]:
        seen = [each for each in work.inputs if "written" not in each and not is_unseen(each)]
        due = [each for each in seen if self._cached(repr(each)) is None]
        files = [each for each in due if UndeclaredInput(each["path"]).is_file]
        begun_at, answers = self._read([_request(each, self._files.folders) for each in files], check_wanted)
        left = iter(answers)
        for record in due:
            is_changed = next(left) if UndeclaredInput(record["path"]).is_file else _look_here(record)
            self._keep(repr(record), _finding(record, is_changed), begun_at)
        return list(filter(None, (self._cache[repr(each)][1] for each in seen)))

    def _read(self, requests: Sequence[ReadRequest], check_wanted: Callable[[], None]) -> tuple[Instant, list[Any]]:
        """When reading began, and the answers. The start of the process is no part of the time that a look takes."""
        if requests:
            self._files.read([READY], check_wanted)
        return self._clock(), self._files.read(requests, check_wanted)

    def _cached(self, key: str) -> str | None:
        """A finding that is still valid."""
        until, finding = self._cache.get(key, (None, ""))
        return None if until is None or self._clock() >= until else finding

    def _keep(self, key: str, finding: str, begun_at: Instant) -> None:
        ended = self._clock()
        self._cache[key] = Instant(ended + (ended - begun_at) / MAX_TIME_SHARE), finding

    def _judge(self, claim: Claim, work: ChainAssignment, uses: Mapping[str, Any]) -> list[str]:
        """Why files that a stage opened may make its result differ from training alone."""
        plan, found = work.plan, list[tuple[str, str]]()
        checked = {each["path"]: each["written"] for each in work.inputs if "written" in each}
        for name, changed_at, is_changed in uses.get("read", ()):
            writer, is_trained = self._writers.get((plan, name), ("", checked.get(name, False)))
            if writer != claim.chain and (words := self._reason(work, name, is_trained, changed_at, is_changed)):
                found.append((name, words))
        self.note_writes(work, uses, claim.chain)
        kinds = Counter((_kind(plan, name), words) for name, words in found)
        many = {(name, words) for name, words in found if kinds[_kind(plan, name), words] > MAX_NAMED_FILES}
        read = ((_pattern(_kind(plan, each[0])) if each in many else each[0], each[1]) for each in found)
        return [f"read {name}, {words}" for name, words in dict.fromkeys(read)]

    def note_writes(self, work: ChainAssignment, uses: Mapping[str, Any], chain: str = "") -> None:
        """Note the files written by a chain, or by an earlier training in the same process."""
        for name, is_trained in uses.get("written", ()):
            self._writers[work.plan, name] = chain, is_trained
            self._built[_kind(work.plan, name)] += not is_trained

    def _reason(self, work: ChainAssignment, name: str, is_trained: bool, changed_at: float, is_changed: bool) -> str:
        if is_trained:
            return "which another trial of this study wrote"
        if is_changed:
            return "which was changed while it was used"
        if changed_at <= work.submitted_at or self._is_built(work, name):
            return ""
        return "which was changed after the study was submitted"

    def _is_built(self, work: ChainAssignment, name: str) -> bool:
        """Whether the trainer wrote the file before its first step, as when it downloads a data set."""
        checked = {each["path"] for each in work.inputs if "written" in each}
        kind = _kind(work.plan, name)
        is_checked = not checked.isdisjoint((name, _pattern(kind)))
        return is_checked or (work.plan, name) in self._writers or self._built[kind] > PATTERN_FILES


def _names_one_of(text: str, others: Iterable[str]) -> bool:
    """Whether the file that a text names is also named by another text."""
    return any(text.partition(", which")[0] == other.partition(", which")[0] for other in others)


def written_records(written: Iterable[tuple[str, bool]]) -> list[Json]:
    """Records of the files that a trainer wrote while it was checked; one record for many of a kind."""
    records = {name: {"path": name, "written": is_trained} for name, is_trained in written}
    kinds = Counter(_kind("", name) for name in records)
    patterns = {name: _pattern(kind) for name in records if kinds[kind := _kind("", name)] > PATTERN_FILES}
    one = {pattern: {"path": pattern, "written": False} for pattern in patterns.values()}
    return [*one.values(), *(each for name, each in records.items() if name not in patterns)]


def _pattern(kind: tuple[str, str, str]) -> str:
    return f"{kind[1]}/*{kind[2]}"


def _kind(plan: str, name: str) -> tuple[str, str, str]:
    return plan, os.path.dirname(name), os.path.splitext(name)[1]


def _record(path: str, seen: Json | InputMissing) -> Json:
    match seen:
        case InputUnread():
            return {"path": path, "unread": str(seen)}
        case InputMissing():
            return {"path": path, "missing": True}
    return seen


def _request(record: Mapping[str, Any], folders: Sequence[str]) -> ReadRequest:
    """Whether an input has changed. The operator chose which undeclared inputs a trainer reads: they are not fenced."""
    if "found" in record:
        return ReadRequest.undeclared_changed(record)
    if "stamp" not in record:
        return ReadRequest.stamp(record["path"], folders)
    return ReadRequest.content_changed(record, folders)


def _look_here(record: Mapping[str, Any]) -> bool | InputMissing:
    """Whether an environment variable or a package has changed."""
    try:
        return has_changed(record)
    except InputMissing as problem:
        return problem


def _finding(record: Mapping[str, Any], is_changed: object) -> str:
    """Words after "3 stages". is_changed: the answer to `_request`."""
    match is_changed:
        case InputUnread():
            return f"had an unchecked input: {is_changed}"
        case InputMissing() if "missing" in record or "found" in record:  # it may be on another machine
            return ""
        case InputMissing():
            return f"were trained where an input is missing: {is_changed}"
    if "missing" in record:
        return f"read {record['path']}, which was not there when it was looked at first"
    return _change_text(record) if is_changed else ""


def _change_text(record: Mapping[str, Any]) -> str:
    unnamed = UndeclaredInput(record["path"])
    if unnamed.is_package:
        here = f"{unnamed.name} {version_of(unnamed.name)}"
        return f"used {here}, where this trainer was first seen to use {record['stamp']}"
    since = "this trainer was first seen to read it" if "found" in record else "the study was submitted"
    return f"read {unnamed.path}, which had changed since {since}"
