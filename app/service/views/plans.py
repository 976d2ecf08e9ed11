"""The views of a search plan: its nodes, its outstanding stages, and its events.

A study's events are the events of its plan's stream, since its submission, about the study, its nodes, or the chains
that train them. Positions count from the submission, which is 1. Events of other studies leave gaps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from math import isfinite

from app.domain import events as e
from app.domain import search_plan
from app.domain import stage_tree as tree
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import StudyId
from app.events import DatabaseUnavailable, Plans, Records, StoredEvent, StudyRecord
from app.events.codec import encode
from app.service.plan_history import PlanHistories
from app.service.views.trial_order import form_text, json_safe
from stagetree.models.service import Event
from stagetree.models.trials import Node, Place, Plan, Point, Running, Stage, StageTree, Waiting


def point(step: int, metrics: Mapping[str, float | None]) -> Point:
    """The metrics after a step; None replaces NaN and infinity."""
    finite = {name: value if value is not None and isfinite(value) else None for name, value in metrics.items()}
    return Point(step=step, metrics=json_safe(finite))


def plan(plan: SearchPlan, stream: str) -> Plan:
    """The whole search plan, with all studies on it."""
    opened = plan.opened
    assert opened is not None
    return Plan(
        plan=stream,
        trainer=opened.trainer,
        trainer_version=opened.trainer_version,
        trainer_args=opened.trainer_args,
        seed=opened.seed,
        parallel=opened.parallel,
        studies=[study.id for study in plan.studies.values() if not study.deleted],
        nodes=[_node(plan, node) for node in plan.nodes.values()],
    )


def _node(plan: SearchPlan, node: search_plan.Node) -> Node:
    waiting = ((step, key) for step in sorted(node.waiting) for key in sorted(node.waiting[step]))
    return Node(
        id=node.id,
        parent=node.parent,
        start=node.start,
        forms={name: form_text(form) for name, form in sorted(node.segment.forms.items())},
        studies=[each.id for each in plan.studies.values() if node.id in each.max_step_by_node and not each.deleted],
        checkpoints=sorted(node.checkpoints),
        metrics=[point(step, node.metrics[step]) for step in sorted(node.metrics)],
        waiting=[Waiting(step=step, study=study, trial=number) for step, (study, number) in waiting],
        running=[
            Running(chain=chain, start=start, end=end) for (chain, _), (start, end) in sorted(node.running.items())
        ],
    )


def stage_tree(plan: SearchPlan, study: Study) -> StageTree:
    """The outstanding stages that the study needs, parents first."""
    stages = tree.build_stage_tree(plan)
    serving = _serving(plan, study, stages)
    shown = [stage for stage in stages if (stage.node, stage.end) in serving]
    return StageTree(stages=[_stage(stage) for stage in shown], critical_path_steps=tree.critical_path_steps(shown))


def _serving(plan: SearchPlan, study: Study, stages: Sequence[tree.TreeStage]) -> set[tree.Place]:
    """The ends of the stages that lead to a step that a trial of the study waits for."""
    ending = {(stage.node, stage.end): stage for stage in stages}
    places: set[tree.Place] = set()
    for name in study.max_step_by_node:
        for step, keys in plan.nodes[name].waiting.items():
            place: tree.Place | None = (name, step) if any(key[0] == study.id for key in keys) else None
            while place in ending and place not in places:
                places.add(place)
                place = ending[place].parent
    return places


def _stage(stage: tree.TreeStage) -> Stage:
    parent = None if stage.parent is None else Place(node=stage.parent[0], step=stage.parent[1])
    return Stage(node=stage.node, start=stage.start, end=stage.end, parent=parent, ready=stage.ready)


# -------------------------------------------------------------------------------------------------------------- events


def event(recorded: StoredEvent, before: int) -> Event:
    """An event with its positions in the plan and in the study, which was submitted after version `before`."""
    name, _, data = encode(recorded.event)
    position, version = recorded.version - before, recorded.version
    return Event(
        position=position, version=version, type=name, data=json_safe(data), at=recorded.at, by=recorded.by or ""
    )


DELETED = "deleted"
"""The final state in the stream of a deleted study."""

Trained = Sequence[tuple[str, str]]
"""(charged study, node) for each stage of a chain."""


class Feed:
    """Reads a study's events from its plan's stream, after position `after`.

    version: the last version read. head: the stream's version at the beginning. before: the version before the study's
    first position. is_over: the study is final, and all events were returned.
    """

    def __init__(
        self, records: Records, plans: Plans, plan_histories: PlanHistories, row: StudyRecord, after: int
    ) -> None:
        self._records, self._plans, self._histories, self._losses = records, plans, plan_histories, plans.losses
        self.stream, self.study = row.stream, StudyId(row.id)
        with plans.holding(row.stream) as plan:
            self.before = plan.studies[self.study].submitted_version - 1
            self.head = plan.version
            self.version = min(self.before + after, self.head)
        self.is_over, self.state = False, ""
        self._chains: dict[str, Trained] = {}
        self.is_final = False

    def copy_at_head(self) -> Feed:
        """A copy that returns only events after this feed's head."""
        other = copy(self)
        other.version, other._chains = self.head, {}
        return other

    def read(self, limit: int) -> list[StoredEvent]:
        """Look at the next `limit` events of the stream. Raises `DatabaseUnavailable`, also once the log has lost
        events.
        """
        batch = self._records.log.read(self.stream, after=self.version, limit=limit)
        if not batch:
            self._plans.check_log()
        if self._plans.losses != self._losses:
            raise DatabaseUnavailable("The log has lost events since this feed began.")
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
        if isinstance(event, e.ExactnessTested):  # about the trainer, so about all studies of the plan
            return True
        if (node := getattr(event, "node", None)) is not None:
            return node in study.max_step_by_node
        if (chain := getattr(event, "chain", None)) is not None:
            return any(charged == study.id or node in study.max_step_by_node for charged, node in self._chains[chain])
        is_of_plan = isinstance(event, e.PackingProfiled | e.PackingChosen | e.RanksProfiled | e.EnvironmentSeen)
        return is_of_plan or bool(getattr(event, "study", None) == study.id)

    def _follow_chain(self, event: e.Event) -> None:
        """Remember the stages of each chain: from its assignment or, for earlier ones, its row or the history."""
        if isinstance(event, e.ChainAssigned):
            self._chains[event.chain] = [(stage.study, stage.node) for stage in event.stages]
        elif (chain := getattr(event, "chain", None)) is not None and chain not in self._chains:
            with self._records.read() as rows:
                row = rows.chains.get(chain)
            if row is None:  # rows of ended chains are deleted after some days
                with self._histories.holding(self.stream, self.version) as plan_history:
                    self._chains[chain] = [(stage.study, stage.node) for stage in plan_history.stages(chain)]
            else:
                self._chains[chain] = [(stage.study, stage.node) for stage in row.stages]
