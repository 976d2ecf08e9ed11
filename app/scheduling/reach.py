"""Which steps of one node are to be reached, what from, and how urgent that is to whom."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
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
    """Where the state of a node is kept, or will be when the stages under way are over, and what those will pass."""

    def __init__(self, node: Node, progress: Progresses) -> None:
        self._node, self._progress = node, progress
        self._states = sorted({*node.checkpoints, *node.coming(progress)})
        self._ends = sorted(end for _, end in node.running.values())

    def covers(self, step: int) -> bool:
        """As `Node.covers`."""
        number = bisect_left(self._ends, step)
        return number < len(self._ends) and self._node.covers(step, self._progress)

    def latest(self, step: int) -> int:
        """As `stage_tree.latest`, or the beginning of the node."""
        number = bisect_right(self._states, step)
        return self._states[number - 1] if number else self._node.start
