"""The log, event by event: folded, checked, and its decisions compared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import takewhile

from app.domain import events as e
from app.domain.evolve import evolve, strikes
from app.domain.ids import StudyId, canonical_json
from app.scheduling.replay.consistency import broken, check
from app.scheduling.replay.decisions import Judge, as_recorded, context_of, is_decision, named
from app.scheduling.replay.history import lines
from app.scheduling.replay.report import Replay

Numbered = tuple[int, e.Event]


def replay(
    log: Iterable[Numbered], study: StudyId, *, at: int | None = None, struck: frozenset[StudyId] | None = None
) -> Replay:
    """Replay one study of a plan's log, up to event number `at`. Other studies on the plan are folded, not judged.

    struck: the studies that were struck, of which there is nothing to derive; where that is not said, the log is held
    as a whole, to know it beforehand.
    """
    found = Replay(study)
    judge: Judge | None = None
    events: Iterator[Numbered] = takewhile(lambda numbered: at is None or numbered[0] <= at, log)
    if struck is None:
        held = list(events)
        struck, events = strikes(event for _, event in held), iter(held)
    found.plan.struck = struck
    for number, event in events:
        try:
            judge = _follow(found, judge, number, event)
        except Exception as error:  # whatever is in a file that somebody edited: it is only read
            found.difference = found.difference or broken(number, event, error)
            break
    return found


def _follow(found: Replay, judge: Judge | None, number: int, event: e.Event) -> Judge | None:
    """Take in one event, once it was compared with what the tuner says; the judge from there on."""
    study = found.study
    if judge is not None and is_decision(event, study):
        _compare(found, judge, number, event)
    check(found.plan, event)
    known = len(found.plan.studies[study].history) if study in found.plan.studies else 0
    evolve(found.plan, event)
    found.events += 1
    if study in found.plan.studies:
        found.history += lines(found, number, event, found.plan.studies[study], known)
    if isinstance(event, e.StudySubmitted | e.StudyReopened) and event.study == study:
        return Judge(event.spec)
    if isinstance(event, e.StudyIsolated) and event.study == study:  # its tuner begins anew
        return Judge(found.plan.studies[study].spec)
    return judge


def _compare(found: Replay, judge: Judge, number: int, event: e.Event) -> None:
    """Derive the decision that was recorded as event `number`."""
    study = found.plan.studies[found.study]
    found.decisions += 1
    if found.difference is not None:
        return
    derived = judge.decision(study, context_of(study, event))
    recorded = as_recorded(event, with_hp=derived is not None and "hp" in derived)
    if canonical_json(recorded) != canonical_json(derived):
        problem = f"event {number} was recorded as {named(recorded)}, and the tuner's decision is {named(derived)}"
        found.difference = {"event": number, "problem": problem, "recorded": recorded, "derived": derived}
