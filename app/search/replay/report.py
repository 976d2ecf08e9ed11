"""The result of a replay: the lines of the history, and the state of the study at its end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.domain import results
from app.domain.leaderboard import RungRanking, build_leaderboard
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.terms import NodeId, StudyId, TrialEventKind

Json = dict[str, Any]


@dataclass
class Replay:
    """The result of replaying a study.

    events: the number of folded events. history: every result and decision, in the order of the log. difference: the
    first event that does not follow from those before it, with a sentence that says why, or None. A log that cannot be
    followed any further ends there.
    """

    study: StudyId
    plan: SearchPlan = field(default_factory=SearchPlan)
    events: int = 0
    decisions: int = 0
    history: list[Json] = field(default_factory=list)
    difference: Json | None = None
    standing: dict[int, Json] = field(default_factory=dict)  # rung and bracket of each trial

    @property
    def identical(self) -> bool:
        return self.difference is None

    def to_json(self) -> Json:
        """The output of `stagetree replay -o json`."""
        fields: Json = {"study": self.study, "identical": self.identical, "events": self.events}
        if self.difference is not None:
            fields["difference"] = self.difference
        is_whole = self.difference is None or "type" not in self.difference["recorded"]
        standing = self._standing() if is_whole and self.study in self.plan.studies else {}
        return {**fields, "decisions": self.decisions, **standing, "history": self.history}

    def _standing(self) -> Json:
        """The state of the study at the last replayed event."""
        study = self.plan.studies[self.study]
        steps = {"requested": study.requested, "unique": study.unique, "executed": study.executed}
        plan = [self._node(name) for name in study.max_step_by_node]
        return {"state": study.state, "best": self._best(study), "steps": steps, "plan": plan, "rungs": self.rungs()}

    def _node(self, name: NodeId) -> Json:
        """A node of the study, and its progress at that point."""
        node = self.plan.nodes[name]
        last_step = self.plan.studies[self.study].max_step_by_node[name]
        standing = {"checkpoints": sorted(node.checkpoints), "evaluated": sorted(node.metrics)}
        return {"node": name, "parent": node.parent, "start": node.start, "asked": last_step, **standing}

    def _best(self, study: Study) -> Json | None:
        winner = results.best(self.plan, study)
        return winner and {"trial": winner[0].number, "value": winner[1].value, "steps": winner[1].step}

    def rungs(self) -> list[Json]:
        """The rungs at the last replayed event, each with its results, best first."""
        study = self.plan.studies[self.study]
        ladder = [rung for rung in build_leaderboard(study).ladder() if rung.values]
        return [_rung(rung, results.sign(study)) for rung in ladder]


def _rung(rung: RungRanking, sign: int) -> Json:
    trials = [
        {"trial": trial, "value": rung.values[trial], "steps": rung.steps, "promoted": trial in rung.promoted}
        for trial in rung.best_first(sign)
        if trial in rung.values
    ]
    return {"bracket": rung.bracket, "rung": rung.number, "trials": trials}


RUNG = ("rung", "bracket")


def lines(replayed: Replay, number: int, event: e.Event, study: Study, before: int) -> Iterator[Json]:
    """The lines of history that an event added."""
    for line in study.history[before:]:
        if line.kind in ("start", "promote"):
            replayed.standing[line.trial] = {name: line.reason[name] for name in RUNG if name in line.reason}
        yield _line(number, study, line, replayed.standing[line.trial])
    if isinstance(event, e.StudyCompleted | e.StudyFailed | e.StudyCancelled) and event.study == study.id:
        yield {"event": number, "kind": "complete", "state": study.state}


def _line(number: int, study: Study, event: TrialEvent, standing: Json) -> Json:
    line: Json = {"event": number, "kind": event.kind, "trial": event.trial, **standing, "steps": event.steps}
    if event.kind == TrialEventKind.RESULT:
        line |= {"value": event.metrics.get(study.spec.metric), "metrics": dict(event.metrics)}
    return {**line, "reason": dict(event.reason)}
