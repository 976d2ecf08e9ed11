"""The events of one study: those of its plan's stream, from its submission on, that are about it, its nodes, or chains
that train them. Their positions are counted from the submission, which is 1; what is others' leaves gaps.
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy

from app.domain import events as e
from app.domain.search_plan import Study
from app.domain.terms import StudyId
from app.events import Plans, Records, StoredEvent, StudyRecord
from app.service.chronicle import Chronicles

DELETED = "deleted"
"""The state of a study that is not there any more, for those who follow it."""

Trained = Sequence[tuple[str, str]]
"""(study that is charged, node) for each stage of a chain."""


class Feed:
    """Reads a stream behind position `after` and gives what concerns the study.

    version: of the stream, as far as it was read. head: as far as there was something to read at the beginning.
    before: the version that the study's positions are counted from. is_over: the study is final, and all was given.
    """

    def __init__(self, records: Records, plans: Plans, chronicles: Chronicles, row: StudyRecord, after: int) -> None:
        self._records, self._plans, self._chronicles = records, plans, chronicles
        self.stream, self.study = row.stream, StudyId(row.id)
        with plans.holding(row.stream) as plan:
            self.before = plan.studies[self.study].submitted_version - 1
            self.head = plan.version
            self.version = min(self.before + after, self.head)
        self.is_over, self.state = False, ""
        self._chains: dict[str, Trained] = {}
        self.is_final = False

    def from_head(self) -> Feed:
        """Another one that gives only what was not there yet when this one was made."""
        other = copy(self)
        other.version, other._chains = self.head, {}
        return other

    def read(self, limit: int) -> list[StoredEvent]:
        """Look at the next `limit` events of the stream. Raises `DatabaseUnavailable`."""
        batch = self._records.log.read(self.stream, after=self.version, limit=limit)
        if batch or not self.state:
            for recorded in batch:
                self._follow_chain(recorded.event)
            batch = self._concerning(batch)
        else:
            self.is_over = self.is_final
        return batch

    def _concerning(self, batch: list[StoredEvent]) -> list[StoredEvent]:
        self.version = batch[-1].version if batch else self.version
        with self._plans.holding(self.stream) as plan:
            study = plan.studies[self.study]
            self.state, self.is_final = DELETED if study.deleted else study.state, study.is_final
            return [recorded for recorded in batch if self._concerns(recorded.event, study)]

    def _concerns(self, event: e.Event, study: Study) -> bool:
        if isinstance(event, e.ExactnessTested):  # it is about the trainer, and so about all studies of the plan
            return True
        if (node := getattr(event, "node", None)) is not None:
            return node in study.max_step_by_node
        if (chain := getattr(event, "chain", None)) is not None:
            return any(charged == study.id or node in study.max_step_by_node for charged, node in self._chains[chain])
        is_of_plan = isinstance(event, e.PackingProfiled | e.PackingChosen | e.RanksProfiled | e.EnvironmentSeen)
        return is_of_plan or bool(getattr(event, "study", None) == study.id)

    def _follow_chain(self, event: e.Event) -> None:
        """Know what each chain trains: from its assignment or, if that was before, from its row or the chronicle."""
        if isinstance(event, e.ChainAssigned):
            self._chains[event.chain] = [(stage.study, stage.node) for stage in event.stages]
        elif (chain := getattr(event, "chain", None)) is not None and chain not in self._chains:
            with self._records.read() as rows:
                row = rows.chains.get(chain)
            if row is None:  # rows of chains that are over go after some days
                with self._chronicles.holding(self.stream, self.version) as chronicle:
                    self._chains[chain] = [(stage.study, stage.node) for stage in chronicle.stages(chain)]
            else:
                self._chains[chain] = [(stage.study, stage.node) for stage in row.stages]
