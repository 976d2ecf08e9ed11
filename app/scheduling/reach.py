"""Which steps of one node are to be reached, what from, and how urgent that is to whom."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from app.domain.ids import StudyId
from app.domain.search_plan import Node, Progresses
from app.scheduling.ranking import Urgency

Urgencies = dict[StudyId, Urgency]
"""How urgent something is to each study that wants it."""


@dataclass(frozen=True, slots=True)
class Need:
    """Reach `step`, resuming at `cut`; `urgencies` are those of what is to be done from there on, this included."""

    step: int
    cut: int
    urgencies: Urgencies


def raise_to(urgencies: Urgencies, others: Urgencies) -> None:
    """Each study's urgency becomes the higher of the two."""
    for study, urgency in others.items():
        urgencies[study] = max(urgencies.get(study, urgency), urgency)


class Reach:
    """Where the state of a node is kept, or will be when the stages under way are over, and what those will pass.

    Made once, it is asked about every step that somebody wants: in a node with thousands of them, and as many stages
    under way, none of the answers looks at all stages.
    """

    def __init__(self, node: Node, progress: Progresses, in_flight: Iterable[int] = ()) -> None:
        self._start = node.start
        self._states = sorted({*node.resumable, *node.coming(progress), *in_flight})
        self._certain, ahead = set[int](), list[tuple[int, int]]()
        for (chain, _), (start, end) in node.running.items():
            known = progress.get(chain)
            self._certain.add(end)
            if known is not None:
                self._certain.update(step for step in known.saving if start < step < end)
            ahead.append((start if known is None else max(start, known.step), end))
        self._ahead = _joined(ahead)

    def covers(self, step: int) -> bool:
        """As `Node.covers`."""
        if step in self._certain:
            return True
        number = bisect_left(self._ahead, (step,)) - 1
        return number >= 0 and step < self._ahead[number][1]

    def latest(self, step: int) -> int:
        """As `stage_tree.latest`, or the beginning of the node."""
        number = bisect_right(self._states, step)
        return self._states[number - 1] if number else self._start


def _joined(spans: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same steps strictly between the two ends of a span, by spans that do not overlap, in order."""
    joined: list[tuple[int, int]] = []
    for begin, end in sorted(spans):
        if joined and begin < joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((begin, end))
    return joined
