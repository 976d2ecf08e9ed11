"""A tuner at work on its study: it reads the history as far as it goes, and its wishes become commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from app.domain.commands import Extend, Start, Stop, Wish
from app.domain.search_plan import Entry, Study
from app.scheduling.tuners.base import Fresh, Next, Tuner
from app.scheduling.tuners.sources import Source
from stagetree.spec import StudySpec

BATCH = 1000
"""How many wishes of an eager tuner are granted in one transaction."""


class Mind:
    """Tuner and source of one study. What it has read is a cache of the history and can be read again at any time.

    `source`: where configurations come from, if not from where the study file says.
    """

    def __init__(self, spec: Mapping[str, Any], source: Source | None = None) -> None:
        from app.scheduling.tuners import source_of, tuner_of

        self._made_of = (spec, source)
        self._spec = StudySpec.from_dict(dict(spec))
        self._source: Source | None = source or source_of(self._spec)
        self._tuner: Tuner = tuner_of(self._spec)
        if self._source is not None and (size := self._source.size()) is not None:
            self._tuner.limit(size)
        self._read = self._proposed = 0
        self._granted: deque[Entry] = deque()

    @property
    def spec(self) -> Mapping[str, Any]:
        """The study file it was made for."""
        return self._made_of[0]

    @property
    def tuner(self) -> Tuner:
        return self._tuner

    def wishes(self, study: Study, room: int) -> tuple[Wish, ...]:
        """What the study wants next: one wish, if fewer than `room` of its trials are active; of an eager tuner, all.

        The wishes count as granted. If they were not, the next call notices and reads the history again.
        """
        self._catch_up(study)
        if not self._tuner.eager:
            return self._take(study, 1) if study.active < room else ()
        return self._take(study, BATCH)

    def is_done(self, study: Study) -> bool:
        """True when nothing is wanted, and nothing is under way that could change that."""
        self._catch_up(study)
        return study.active == 0 and not self._tuner.open_ended and self._concrete(self._tuner.next()) is None

    def expected(self, study: Study) -> Next | None:
        """What the tuner wants, from the history alone: for replay."""
        self._catch_up(study)
        return self._tuner.next()

    def _take(self, study: Study, most: int) -> tuple[Wish, ...]:
        """So many starts, or one wish of another kind: that may depend on a result which is there at once."""
        wishes: list[Wish] = []
        number = len(study.trials)
        while len(wishes) < most and (wish := self._concrete(self._tuner.next())) is not None:
            if wishes and not isinstance(wish, Start):
                break
            wishes.append(wish)
            self._grant(_entry(wish, number + len(wishes) - 1))
            if not isinstance(wish, Start):
                break
        return tuple(wishes)

    def _grant(self, entry: Entry) -> None:
        self._granted.append(entry)
        self._see(entry)

    def _see(self, entry: Entry) -> None:
        self._proposed += entry.kind == "start"
        self._tuner.see(entry)
        if self._source is not None:
            self._source.see(entry)

    def _concrete(self, wish: Next | None) -> Wish | None:
        """The wish with its configuration; None when the source has no more."""
        if not isinstance(wish, Fresh):
            return wish
        found = self._source.propose(self._proposed) if self._source else None
        return None if found is None else Start(hp=found.hp, steps=wish.steps, reason={**wish.reason, **found.reason})

    def _catch_up(self, study: Study) -> None:
        """Read what is new in the history; from the start, if what was taken for granted did not happen."""
        for entry in study.history[self._read :]:
            if self._granted and entry.kind in ("start", "promote", "stop"):
                if not (_is_ours(study, entry) and _same(entry, self._granted[0])):
                    return self._start_over(study)
                self._granted.popleft()
            elif _is_ours(study, entry):
                self._see(entry)
            self._read += 1
        return self._start_over(study) if self._granted else None

    def _start_over(self, study: Study) -> None:
        self.__init__(*self._made_of)  # type: ignore[misc]
        self._catch_up(study)


def _entry(wish: Wish, number: int) -> Entry:
    """The line of history that a granted wish will be, of trial `number` if it starts one."""
    match wish:
        case Start():
            return Entry("start", number, wish.steps, reason=wish.reason, hp=wish.hp)
        case Extend():
            return Entry("promote", wish.trial, wish.steps, reason=wish.reason)
        case Stop():
            return Entry("stop", wish.trial, 0, reason=wish.reason)


def _same(entry: Entry, granted: Entry) -> bool:
    return (entry.kind, entry.trial) == (granted.kind, granted.trial) and (
        entry.kind == "stop" or entry.steps == granted.steps
    )


def _is_ours(study: Study, entry: Entry) -> bool:
    """Whether the tuner is told: it knows only of trials that it asked for itself."""
    return study.trials[entry.trial].reason.get("by") == "tuner"
