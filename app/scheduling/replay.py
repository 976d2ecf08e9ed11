"""Replay: fold a log again, derive every decision of a study's tuner again, and compare it with the recorded one.

The proof that promotions follow from results and from nothing else: the same events give the same decisions in any
process, at any time (ASHA paper, §5.4). So do configurations that depend on no result: grids and draws. What a sampler
that learns has proposed was recorded, and is taken as it is; so is what users asked for.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from app.domain import events as e
from app.domain import results
from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.evolve import evolve, strikes
from app.domain.ids import NodeId, StudyId, canonical_json
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.standing import Rung, standing
from app.domain.states import TrialEventKind
from app.scheduling.tuners import sampler_of
from app.scheduling.tuners.base import Context, NewTrial
from app.scheduling.tuners.driver import TunerDriver
from app.scheduling.tuners.samplers.base import NonAdaptive, Sampler
from stagetree.spec import StudySpec

Numbered = tuple[int, e.Event]
Decision = e.TrialAdded | e.TrialExtended | e.TrialStopped | e.TrialPrioritized
Json = dict[str, Any]

RUNG = ("rung", "bracket")
NOT_DERIVED = ("by", "sample", "asked")
"""What the reason of a trial holds beside the tuner's: who wanted it, and how its configuration came about."""


@dataclass
class Replay:
    """What replaying a study found.

    events: how many events were folded; log: those events. history: every result and decision, in the order of the log.
    difference: the first event that does not follow from those before it, with a sentence that says why; None if there
    is none. Where a log cannot be followed any further, it ends there.
    """

    study: StudyId
    plan: SearchPlan = field(default_factory=SearchPlan)
    events: int = 0
    decisions: int = 0
    history: list[Json] = field(default_factory=list)
    difference: Json | None = None
    log: list[e.Event] = field(default_factory=list)
    standing: dict[int, Json] = field(default_factory=dict)  # rung and bracket of each trial

    @property
    def identical(self) -> bool:
        return self.difference is None

    def to_json(self) -> Json:
        """What `stagetree replay -o json` prints."""
        found: Json = {"study": self.study, "identical": self.identical, "events": self.events}
        if self.difference is not None:
            found["difference"] = self.difference
        is_whole = self.difference is None or "type" not in self.difference["recorded"]
        standing = self._standing() if is_whole and self.study in self.plan.studies else {}
        return {**found, "decisions": self.decisions, **standing, "history": self.history}

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


class _Judge:
    """Says what the study's tuner would have decided. Raises what tuners and study files raise."""

    def __init__(self, spec: Json) -> None:
        parsed = StudySpec.from_dict(dict(spec))
        sampler = sampler_of(parsed)
        self._driver = TunerDriver(spec)
        self._sampler: Sampler | None = sampler if isinstance(sampler, NonAdaptive) else None

    def decision(self, study: Study, context: Context) -> Json | None:
        """What comes next; None where nothing does."""
        self._driver.observe(study, context)
        action = self._driver.expected()
        match action:
            case NewTrial() | Start():
                hp = action.hp if isinstance(action, Start) else self._drawn(study)
                start = {"kind": "start", "steps": action.steps, "reason": dict(action.reason)}
                return start if hp is None else {**start, "hp": hp}
            case Extend():
                return {
                    "kind": "promote",
                    "trial": action.trial,
                    "steps": action.steps,
                    "reason": dict(action.reason),
                }
            case Stop():
                return {"kind": "stop", "trial": action.trial, "reason": dict(action.reason)}
            case Prioritize():
                return _prioritized(action)
        return {"kind": "complete"} if study.active == 0 else None

    def _drawn(self, study: Study) -> Json | None:
        """The next configuration; None where it depends on results."""
        number = sum(trial.reason.get("by") == "tuner" for trial in study.trials)
        proposal = self._sampler.propose(number) if self._sampler else None
        return None if proposal is None else proposal.hp


def replay(log: Iterable[Numbered], study: StudyId, *, at: int | None = None) -> Replay:
    """Replay one study of a plan's log, up to event number `at`. Other studies on the plan are folded, not judged.

    Of a study that was struck there is nothing to derive.
    """
    found = Replay(study)
    judge: _Judge | None = None
    events = [(number, event) for number, event in log if at is None or number <= at]
    found.plan.struck = strikes(event for _, event in events)
    for number, event in events:
        try:
            judge = _follow(found, judge, number, event)
        except Exception as error:  # whatever is in a file that somebody edited: it is only read
            found.difference = found.difference or _broken(number, event, error)
            break
    return found


def _follow(found: Replay, judge: _Judge | None, number: int, event: e.Event) -> _Judge | None:
    """Take in one event, once it was compared with what the tuner says; the judge from there on."""
    study = found.study
    if judge is not None and _is_decision(event, study):
        _compare(found, judge, number, event)
    _check(found.plan, event)
    known = len(found.plan.studies[study].history) if study in found.plan.studies else 0
    evolve(found.plan, event)
    found.events += 1
    found.log.append(event)
    if study in found.plan.studies:
        found.history += _lines(found, number, event, found.plan.studies[study], known)
    if isinstance(event, e.StudySubmitted | e.StudyReopened) and event.study == study:
        return _Judge(event.spec)
    return judge


TYPES: dict[str, type] = {
    **dict.fromkeys(("study", "node", "chain", "slot", "key", "error"), str),
    **dict.fromkeys(("trial", "step", "steps", "index", "size"), int),
    **dict.fromkeys(("hp", "spec", "metrics", "trainer_args"), dict),
    "stages": tuple,
}
"""Of the fields of events, whatever the event."""


class _DoesNotFollow(Exception):
    """An event cannot come after those before it; the message says why."""


def _check(plan: SearchPlan, event: e.Event) -> None:
    """Where an event that is missing, was moved or changed would not be noticed by folding. Raises `_DoesNotFollow`."""
    for name, kind in TYPES.items():
        if not isinstance(value := getattr(event, name, kind()), kind):
            raise _DoesNotFollow(f"its {name} is {value!r}")
    match event:
        case e.PlanOpened() if plan.opened is not None:
            raise _DoesNotFollow("the plan was opened before")
        case e.StudySubmitted() if event.study in plan.studies:
            raise _DoesNotFollow(f"study {event.study} was submitted before")
        case e.TrialAdded() if event.trial != (due := len(plan.studies[event.study].trials)):
            raise _DoesNotFollow(f"it adds trial {event.trial} of study {event.study}, and trial {due} would be next")
        case e.TrialExtended() if event.steps <= (steps := plan.trial((event.study, event.trial)).steps):
            raise _DoesNotFollow(f"trial {event.trial} of study {event.study} was asked for {steps} steps before")
        case e.Evaluated() if not _are_metrics(event.metrics):
            raise _DoesNotFollow(f"its metrics are {event.metrics!r}")
        case e.StageCompleted() | e.StageFailed() if event.index != (at := plan.chains[event.chain].index):
            raise _DoesNotFollow(f"it is about stage {event.index} of chain {event.chain}, which is at stage {at}")


def _are_metrics(metrics: e.Metrics) -> bool:
    return all(isinstance(value, int | float | None) for value in metrics.values())


def _broken(number: int, event: e.Event, error: Exception) -> Json:
    match error:
        case _DoesNotFollow():
            why = str(error)
        case LookupError():
            why = f"it speaks of {error}, and nothing before it made that"
        case _:
            why = f"{type(error).__name__}: {error}"
    problem = f"the log cannot be followed past event {number}, a {type(event).__name__}: {why}"
    return {"event": number, "problem": problem, "recorded": {"type": type(event).__name__}, "derived": None}


def _is_decision(event: e.Event, study: StudyId) -> bool:
    if isinstance(event, e.StudyCompleted):
        return event.study == study
    if isinstance(event, e.TrialAdded):
        return event.study == study and event.reason.get("by") == "tuner"
    if isinstance(event, e.TrialExtended):
        return event.study == study and event.reason.get("by") != "user"
    return isinstance(event, e.TrialStopped | e.TrialPrioritized) and event.study == study


def _compare(found: Replay, judge: _Judge, number: int, event: e.Event) -> None:
    """Derive the decision that was recorded as event `number`."""
    study = found.plan.studies[found.study]
    found.decisions += 1
    if found.difference is not None:
        return
    derived = judge.decision(study, _context(study, event))
    recorded = _recorded(event, with_hp=derived is not None and "hp" in derived)
    if canonical_json(recorded) != canonical_json(derived):
        problem = f"event {number} was recorded as {_named(recorded)}, and the tuner's decision is {_named(derived)}"
        found.difference = {"event": number, "problem": problem, "recorded": recorded, "derived": derived}


def _recorded(event: e.Event, with_hp: bool) -> Json:
    match event:
        case e.TrialAdded():
            reason = {name: value for name, value in event.reason.items() if name not in NOT_DERIVED}
            start = {"kind": "start", "steps": event.steps, "reason": reason}
            return {**start, "hp": event.hp} if with_hp else start
        case e.TrialExtended():
            return {"kind": "promote", "trial": event.trial, "steps": event.steps, "reason": dict(event.reason)}
        case e.TrialStopped():
            return {"kind": "stop", "trial": event.trial, "reason": dict(event.reason)}
        case e.TrialPrioritized():
            return _prioritized(event)
    return {"kind": "complete"}


def _prioritized(what: e.TrialPrioritized | Prioritize) -> Json:
    return {"kind": "prioritize", "trial": what.trial, "priority": what.priority, "reason": dict(what.reason)}


def _context(study: Study, event: e.Event) -> Context:
    """What the tuner looked at beside the history when it decided so."""
    if isinstance(event, e.StudyCompleted):
        return Context(elapsed=event.at - study.submitted_at)
    return Context.recorded(getattr(event, "reason", {}))


def _named(decision: Json | None) -> str:
    """A decision in a few words."""
    match decision:
        case None:
            return "to wait"
        case {"kind": "start", "steps": steps}:
            return f"a new trial for {steps} steps" + (f" with {decision['hp']}" if "hp" in decision else "")
        case {"kind": "promote", "trial": trial, "steps": steps}:
            return f"the promotion of trial {trial} to {steps} steps"
        case {"kind": "stop", "trial": trial}:
            return f"the end of trial {trial}"
        case {"kind": "prioritize", "trial": trial, "priority": priority}:
            return f"priority {priority:g} for trial {trial}"
    return "the end of the study"


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
