"""The input files that a chain is trained with. A change is a recorded fact.

Runs on: the thread that trains.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from app.domain import events as e
from app.domain.chain_assignment import ChainAssignment
from app.domain.inputs import is_unseen
from app.domain.terms import StudyId
from app.input_fingerprints import InputMissing, content_changed, look
from app.undeclared_inputs import has_changed, version_of
from app.workers.slot.claim import Claim
from app.workers.slot.environment import Surveyor
from app.workers.slot.retry import Clock, Instant, monotonic
from stagetree.source.undeclared_input import UndeclaredInput

logger = logging.getLogger(__name__)

Json = dict[str, Any]

MAX_TIME_SHARE = 0.02
"""A path is examined again after an interval that keeps the time for it within this share of a slot's time."""

PATTERN_FILES = 16
"""If a trainer's constructor wrote more files of one kind in a folder, it also wrote the others."""

MAX_NAMED_FILES = 3
"""If more files of one kind have changed, only the kind is named."""


class InputWatch:
    """Examines a chain's inputs when it begins and after each stage. clock: monotonic."""

    def __init__(self, surveyor: Surveyor | None = None, clock: Clock = monotonic) -> None:
        self._surveyor, self._clock = surveyor, clock
        self._cache: dict[str, tuple[Instant, str]] = {}  # by record: valid until, and the finding
        self._writers: dict[
            tuple[str, str], tuple[str, bool]
        ] = {}  # by plan and path: the chain, and whether in training
        self._built = Counter[tuple[str, str, str]]()  # by plan, folder and ending: the files that were written before

    def look(self, claim: Claim, work: ChainAssignment, index: int) -> tuple[list[e.Event], list[str]]:
        """The facts to record, and why stages may have other inputs than their study: words after "3 stages".

        index: of the stage that begins; later stages use the first one's result.
        """
        if index > 0:
            return [], []
        if work.describe and self._surveyor is not None:
            self._surveyor.survey(claim, work.trainer)
        if not is_unseen(_inputs(work)):
            return [], self._changes(work)
        return [e.InputsSeen(study=StudyId(work.study), inputs=[_look_at(each["path"]) for each in _inputs(work)])], []

    def look_at_end(self, claim: Claim, work: ChainAssignment, uses: Mapping[str, Any]) -> list[str]:
        """The same after a stage. uses: the files that it opened, as of `TrainerHost.uses`."""
        changes = self._changes(work)
        return [*changes, *(text for text in self._judge(claim, work, uses) if not _names_one_of(text, changes))]

    def _changes(self, work: ChainAssignment) -> list[str]:
        return [] if is_unseen(_inputs(work)) else list(filter(None, map(self._change, _inputs(work))))

    def _change(self, record: Mapping[str, Any]) -> str:
        key, now = repr(record), self._clock()
        until, change = self._cache.get(key, (None, ""))
        if until is None or now >= until:
            change = _change(record)
            ended = self._clock()
            self._cache[key] = Instant(ended + (ended - now) / MAX_TIME_SHARE), change
        return change

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


def _inputs(work: ChainAssignment) -> list[Mapping[str, Any]]:
    return [each for each in work.inputs if "written" not in each]


def _pattern(kind: tuple[str, str, str]) -> str:
    return f"{kind[1]}/*{kind[2]}"


def _kind(plan: str, name: str) -> tuple[str, str, str]:
    return plan, os.path.dirname(name), os.path.splitext(name)[1]


def _look_at(path: str) -> Json:
    try:
        return look(path)
    except InputMissing:
        return {"path": path, "missing": True}


def _change(record: Mapping[str, Any]) -> str:
    try:
        if "stamp" not in record:
            look(record["path"], is_hashed=False)  # it was missing, or was never seen
            return f"read {record['path']}, which was not there when it was looked at first"
        is_found = "found" in record
        is_other = has_changed(record) if is_found else content_changed(record)
        return _change_text(record) if is_other else ""
    except InputMissing as problem:
        if "missing" in record or "found" in record:  # on another machine a trainer may read another path
            return ""
        return f"were trained where an input is missing: {problem}"


def _change_text(record: Mapping[str, Any]) -> str:
    unnamed = UndeclaredInput(record["path"])
    if unnamed.is_package:
        here = f"{unnamed.name} {version_of(unnamed.name)}"
        return f"used {here}, where this trainer was first seen to use {record['stamp']}"
    since = "this trainer was first seen to read it" if "found" in record else "the study was submitted"
    return f"read {unnamed.path}, which had changed since {since}"
