"""Where the children of a node begin: which of them each study wants most."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from app.domain.ids import NodeId, StudyId
from app.scheduling.ranking import Ranking, Urgency
from app.scheduling.reach import Urgencies


class Branch:
    """The children of a node that begin at the same step, each with its demand there."""

    def __init__(self) -> None:
        self._by_study: dict[StudyId, Ranking[NodeId]] = {}
        self._studies_of: dict[NodeId, frozenset[StudyId]] = {}

    def put(self, child: NodeId, demand: Mapping[StudyId, Urgency]) -> bool:
        """A child has this demand now; whether any study's most urgent one has changed."""
        changed = False
        for study in self._studies_of.pop(child, frozenset()) | demand.keys():
            ranking = self._by_study.setdefault(study, Ranking())
            before = ranking.top()
            ranking.put(child, demand.get(study))
            changed |= ranking.top() != before
            if not ranking:
                del self._by_study[study]
        if demand:
            self._studies_of[child] = frozenset(demand)
        return changed

    def top(self, study: StudyId) -> tuple[Urgency, NodeId] | None:
        """The most urgent child of a study."""
        return self._by_study[study].top() if study in self._by_study else None

    def tops(self) -> Urgencies:
        """How urgent the most urgent child of each study is."""
        return {study: top[0] for study, ranking in self._by_study.items() if (top := ranking.top())}

    def children(self, study: StudyId | None = None) -> Iterator[NodeId]:
        """The children that a study wants, or that any does."""
        return iter(self._studies_of if study is None else self._by_study.get(study, ()))

    def __bool__(self) -> bool:
        return bool(self._studies_of)
