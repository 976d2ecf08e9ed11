"""Folds the log event by event, and compares each recorded decision with the one that is derived again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import takewhile

from app.domain import events as e
from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.evolve import evolve, struck_studies
from app.domain.search_plan import SearchPlan, Study
from app.domain.terms import StudyId, canonical_json
from app.search.replay.consistency import broken_log, check
from app.search.replay.report import Json, Replay, lines
from app.search.samplers import Proposal
from app.search.tuners.base import Context, End, NewTrial
from app.search.tuners.base import context_of as context_at
from app.search.tuners.driver import TunerDriver

NOT_DERIVED = ("by", "sample", "asked", "price", "alpha")
"""Fields of a trial's reason that are not the tuner's: who requested it, and how its configuration was chosen."""


def is_decision(event: e.Event, study: StudyId) -> bool:
    if isinstance(event, e.StudyCompleted):
        return event.study == study
    if isinstance(event, e.TrialAdded):
        return event.study == study and event.reason.get("by") == "tuner"
    if isinstance(event, e.TrialExtended):
        return event.study == study and event.reason.get("by") != "user"
    return isinstance(event, e.TrialStopped | e.TrialPrioritized) and event.study == study


def recorded_decision(event: e.Event, with_hp: bool) -> Json:
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
            return _priority_decision(event)
        case e.StudyCompleted() if event.reason:
            return {"kind": "complete", "reason": dict(event.reason)}
    return {"kind": "complete"}


def _priority_decision(made: e.TrialPrioritized | Prioritize) -> Json:
    return {"kind": "prioritize", "trial": made.trial, "priority": made.priority, "reason": dict(made.reason)}


def context_of(plan: SearchPlan, study: Study, event: e.Event) -> Context:
    """What the tuner saw beside the history when it made the decision."""
    if isinstance(event, e.StudyCompleted):
        return context_at(plan, study, event.at, 1)
    return replace(Context.from_reason(getattr(event, "reason", {})), spent=context_at(plan, study, 0.0, 1).spent)


def describe_decision(decision: Json | None) -> str:
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
        case {"reason": {"by": by}}:
            return f"the end of the study by its {by}"
    return "the end of the study"


class Judge:
    """Derives the decisions of a study's tuner. Raises what tuners and study files raise."""

    def __init__(self, spec: Json) -> None:
        self._driver = TunerDriver(spec)

    def decision(self, study: Study, context: Context) -> Json | None:
        """The next decision; None if there is none."""
        self._driver.observe(study, context)
        action = self._driver.next_action()
        match action:
            case NewTrial() | Start():
                drawn = Proposal(action.hp) if isinstance(action, Start) else self._driver.foreseen() or Proposal({})
                why = {name: value for name, value in drawn.reason.items() if name not in NOT_DERIVED}
                own = action.recorded_reason if isinstance(action, Start) else action.reason
                start = {"kind": "start", "steps": action.steps, "reason": {**own, **why}}
                return {**start, "hp": drawn.hp} if drawn.hp else start
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
                return _priority_decision(action)
            case End():
                return {"kind": "complete", "reason": dict(action.reason)}
        return {"kind": "complete"} if study.active == 0 else None


Numbered = tuple[int, e.Event]


def replay(
    log: Iterable[Numbered], study: StudyId, *, at: int | None = None, struck: frozenset[StudyId] | None = None
) -> Replay:
    """Replay one study of a plan's log, up to event number `at`. Other studies of the plan are folded, not judged.

    struck: the struck studies, whose decisions are not derived. If it is not given, the whole log is read first to find
    them.
    """
    replayed = Replay(study)
    judge: Judge | None = None
    events: Iterator[Numbered] = takewhile(lambda numbered: at is None or numbered[0] <= at, log)
    if struck is None:
        held = list(events)
        struck, events = struck_studies(event for _, event in held), iter(held)
    replayed.plan.struck = struck
    for number, event in events:
        try:
            judge = _follow(replayed, judge, number, event)
        except Exception as error:  # an edited file can hold anything
            replayed.difference = replayed.difference or broken_log(number, event, error)
            break
    return replayed


def _follow(replayed: Replay, judge: Judge | None, number: int, event: e.Event) -> Judge | None:
    """Compare one event with the tuner's decision, and fold it; returns the judge from there on."""
    study = replayed.study
    if judge is not None and is_decision(event, study):
        _compare(replayed, judge, number, event)
    check(replayed.plan, event)
    before = len(replayed.plan.studies[study].history) if study in replayed.plan.studies else 0
    evolve(replayed.plan, event)
    replayed.events += 1
    if study in replayed.plan.studies:
        replayed.history += lines(replayed, number, event, replayed.plan.studies[study], before)
    if isinstance(event, e.StudySubmitted | e.StudyReopened) and event.study == study:
        return Judge(event.spec)
    if isinstance(event, e.StudyIsolated) and event.study == study:  # its tuner begins anew
        return Judge(replayed.plan.studies[study].spec.json)
    return judge


def _compare(replayed: Replay, judge: Judge, number: int, event: e.Event) -> None:
    """Derive the decision that was recorded as event `number`."""
    study = replayed.plan.studies[replayed.study]
    replayed.decisions += 1
    if replayed.difference is not None:
        return
    derived = judge.decision(study, context_of(replayed.plan, study, event))
    recorded = recorded_decision(event, with_hp=derived is not None and "hp" in derived)
    if canonical_json(recorded) != canonical_json(derived):
        ours, theirs = describe_decision(recorded), describe_decision(derived)
        problem = f"event {number} was recorded as {ours}, and the tuner's decision is {theirs}"
        replayed.difference = {"event": number, "problem": problem, "recorded": recorded, "derived": derived}
