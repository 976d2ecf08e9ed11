"""Replay: fold a log again, derive every decision of a study's tuner again, and compare it with the recorded one.

The proof that promotions follow from results and from nothing else: the same events give the same decisions in any
process, at any time (ASHA paper, §5.4). Configurations are not derived again: what was proposed was recorded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.domain import results
from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.evolve import evolve, strikes
from app.domain.ids import NodeId, StudyId
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.standing import Rung, standing
from app.domain.states import TrialEventKind
from app.scheduling.tuners.base import Context, NewTrial, Next
from app.scheduling.tuners.driver import TunerDriver

Numbered = tuple[int, e.Event]
Decision = e.TrialAdded | e.TrialExtended | e.TrialPrioritized | e.TrialStopped
Json = dict[str, Any]

RUNG = ("rung", "bracket")
NOT_DERIVED = ("by", "sample", "asked")
"""What the reason of a trial holds beside the tuner's: who wanted it, and how its configuration came about."""


@dataclass
class Replay:
    """What replaying a study found.

    events: how many events were folded. history: every result and decision, in the order of the log. difference: the
    first decision that was recorded and cannot be derived, None if there is none.
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
        """What `stagetree replay -o json` prints."""
        found: Json = {"study": self.study, "identical": self.identical, "events": self.events}
        if self.difference is not None:
            found["difference"] = self.difference
        return {**found, "decisions": self.decisions, **self._standing(), "history": self.history}

    def _standing(self) -> Json:
        """How the study stands at the last event replayed."""
        study = self.plan.studies[self.study]
        steps = {"requested": study.requested, "unique": study.unique, "executed": study.executed}
        plan = [self._node(name) for name in study.deepest]
        return {"state": study.state, "best": self._best(study), "steps": steps, "plan": plan, "rungs": self.rungs()}

    def _node(self, name: NodeId) -> Json:
        """A node that the study passes, and how far it was by then."""
        node = self.plan.nodes[name]
        asked = self.plan.studies[self.study].deepest[name]
        standing = {"checkpoints": sorted(node.checkpoints), "evaluated": sorted(node.metrics)}
        return {"node": name, "parent": node.parent, "start": node.start, "asked": asked, **standing}

    def _best(self, study: Study) -> Json | None:
        found = results.best(self.plan, study)
        return found and {"trial": found[0].number, "value": found[1].value, "steps": found[1].step}

    def rungs(self) -> list[Json]:
        """The rungs as they stand at the last event replayed: each with its results, best first."""
        study = self.plan.studies[self.study]
        ladder = [rung for rung in standing(study).ladder() if rung.values]
        return [_rung(rung, results.sign(study)) for rung in ladder]


def _rung(rung: Rung, sign: int) -> Json:
    """A rung with its results, best first."""
    trials = [
        {"trial": trial, "value": rung.values[trial], "steps": rung.steps, "promoted": trial in rung.promoted}
        for trial in rung.best_first(sign)
        if trial in rung.values
    ]
    return {"bracket": rung.bracket, "rung": rung.number, "trials": trials}


def replay(log: Iterable[Numbered], study: StudyId, *, at: int | None = None) -> Replay:
    """Replay one study of a plan's log, up to event number `at`. Other studies on the plan are folded, not judged.

    Of a study that was struck there is nothing to derive.
    """
    found = Replay(study)
    judge: TunerDriver | None = None
    events = [(number, event) for number, event in log if at is None or number <= at]
    found.plan.struck = strikes(event for _, event in events)
    for number, event in events:
        if judge is not None and _is_decision(event, study):
            _compare(found, judge, number, event)
        known = len(found.plan.studies[study].history) if study in found.plan.studies else 0
        evolve(found.plan, event)
        found.events += 1
        if isinstance(event, e.StudySubmitted | e.StudyReopened) and event.study == study:
            judge = None if study in found.plan.struck else TunerDriver(event.spec)
        if study in found.plan.studies:
            found.history += _lines(found, number, event, found.plan.studies[study], known)
    return found


def _is_decision(event: e.Event, study: StudyId) -> bool:
    if isinstance(event, e.StudyCompleted):
        return event.study == study
    if isinstance(event, e.TrialAdded):
        return event.study == study and event.reason.get("by") == "tuner"
    return isinstance(event, e.TrialExtended | e.TrialPrioritized | e.TrialStopped) and event.study == study


def _compare(found: Replay, judge: TunerDriver, number: int, event: e.Event) -> None:
    """Derive the decision that was recorded as event `number`."""
    study = found.plan.studies[found.study]
    found.decisions += 1
    if found.difference is not None:
        return
    recorded, derived = _recorded(event), _derived(judge, study, _context(study, event))
    if recorded != derived:
        found.difference = {"event": number, "recorded": recorded, "derived": derived}


def _recorded(event: e.Event) -> Json | None:
    match event:
        case e.TrialAdded():
            reason = {name: value for name, value in event.reason.items() if name not in NOT_DERIVED}
            return {"kind": "start", "steps": event.steps, "reason": reason}
        case e.TrialExtended():
            return {"kind": "promote", "trial": event.trial, "steps": event.steps, "reason": dict(event.reason)}
        case e.TrialPrioritized():
            return _priority(event)
        case e.TrialStopped():
            return {"kind": "stop", "trial": event.trial, "reason": dict(event.reason)}
    return {"kind": "complete"}


def _priority(of: e.TrialPrioritized | Prioritize) -> Json:
    return {"kind": "prioritize", "trial": of.trial, "priority": of.priority, "reason": dict(of.reason)}


def _context(study: Study, event: e.Event) -> Context:
    """What the tuner looked at beside the history when it decided so."""
    if isinstance(event, e.StudyCompleted):
        return Context(elapsed=event.at - study.submitted_at)
    return Context.recorded(getattr(event, "reason", {}))


def _derived(judge: TunerDriver, study: Study, context: Context) -> Json | None:
    judge.observe(study, context)
    action: Next | None = judge.expected()
    match action:
        case NewTrial() | Start():
            return {"kind": "start", "steps": action.steps, "reason": dict(action.reason)}
        case Extend():
            return {"kind": "promote", "trial": action.trial, "steps": action.steps, "reason": dict(action.reason)}
        case Prioritize():
            return _priority(action)
        case Stop():
            return {"kind": "stop", "trial": action.trial, "reason": dict(action.reason)}
    return {"kind": "complete"} if study.active == 0 else None


# ------------------------------------------------------------------------------------------------------------- history


def _lines(found: Replay, number: int, event: e.Event, study: Study, known: int) -> Iterator[Json]:
    """The lines of history that an event added."""
    for line in study.history[known:]:
        if line.kind in ("start", "promote"):
            found.standing[line.trial] = {name: line.reason[name] for name in RUNG if name in line.reason}
        yield _line(number, study, line, found.standing[line.trial])
    if isinstance(event, e.StudyCompleted | e.StudyFailed | e.StudyCancelled) and event.study == study.id:
        yield {"event": number, "kind": "complete", "state": study.state}


def _line(number: int, study: Study, event: TrialEvent, standing: Json) -> Json:
    line: Json = {"event": number, "kind": event.kind, "trial": event.trial, **standing, "steps": event.steps}
    if event.kind == TrialEventKind.RESULT:
        line |= {"value": event.metrics.get(study.spec["metric"]), "metrics": dict(event.metrics)}
    return {**line, "reason": dict(event.reason)}
