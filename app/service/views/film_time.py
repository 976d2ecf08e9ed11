"""The time line of a film: the frame of each moment of a study, and the captions."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from app.domain.search_plan import Study
from app.service.plan_history import DecisionMade
from stagetree.text import decision_text, duration, rank_text

FRAMES, SECONDS = 120, 10


class Clock:
    """Time without the gaps in which no slot trained, and its frames."""

    def __init__(self, spans: Iterable[tuple[float, float]]) -> None:
        self._pieces: list[tuple[float, float, float]] = []  # begin, end, and begin on the axis without gaps
        for begin, end in sorted(spans):
            if self._pieces and begin <= self._pieces[-1][1]:
                first, last, at = self._pieces[-1]
                self._pieces[-1] = (first, max(last, end), at)
            else:
                self._pieces.append((begin, end, self._length))

    @property
    def _length(self) -> float:
        return self._pieces[-1][2] + self._pieces[-1][1] - self._pieces[-1][0] if self._pieces else 0.0

    def elapsed(self, at: float) -> float:
        """The seconds since the beginning, without gaps."""
        index = bisect_right(self._pieces, at, key=lambda piece: piece[0]) - 1
        if index < 0:
            return 0.0
        begin, end, shown = self._pieces[index]
        return shown + min(at, end) - begin

    def share(self, at: float) -> float:
        """The share of the time without gaps that has passed, from 0 to 1."""
        return self.elapsed(at) / self._length if self._length else 0.0

    def frame(self, at: float) -> int:
        """The first frame that shows this time."""
        return min(FRAMES, max(1, math.ceil(self.share(at) * FRAMES)))


def captions(
    decisions: Sequence[DecisionMade], times: Sequence[float], clock: Clock, study: Study
) -> Iterator[tuple[int, str]]:
    """The decisions of each frame, with the time since the submission."""
    by_frame: dict[int, list[DecisionMade]] = defaultdict(list)
    for each in decisions:
        if each.trial is not None:
            by_frame[clock.frame(times[each.version - 1])].append(each)
    for frame, made in sorted(by_frame.items()):
        if frame < FRAMES:
            yield frame, f"{duration(times[made[-1].version - 1] - study.submitted_at)}  {_caption_text(made)}"


DID = {
    "start": ("starts", "start"),
    "promote": ("continues", "continue"),
    "stop": ("is stopped", "are stopped"),
    "cancel": ("is cancelled", "are cancelled"),
    "retry": ("is tried again", "are tried again"),
}


def _caption_text(decisions: Sequence[DecisionMade]) -> str:
    first = decisions[0]
    if len(decisions) == 1 and first.kind in ("promote", "stop") and first.trial is not None:
        ranked = rank_text(first.reason)
        return decision_text(first.kind, first.trial, first.steps or 0) + (f": {ranked}" if ranked else "")
    counts = Counter(each.kind for each in decisions)
    parts = [
        f"{number:,} {'trial' if number == 1 else 'trials'} {DID[kind][number > 1]}" for kind, number in counts.items()
    ]
    return ", ".join(parts)
