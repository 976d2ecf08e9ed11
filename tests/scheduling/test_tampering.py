"""A log that was cut, moved or edited at any place: replay reports the inconsistency in a sentence.

A name, a time or a cost may have any other plausible value: nothing is derived from it. Everything else is detected.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.domain import commands as c
from app.domain import events as e
from app.domain.terms import StudyId
from app.search.replay import Replay, replay
from app.simulation.simulator import Simulator
from tests.plans import max_examples
from tests.tuners.worlds import SHARING, STUDY, faults, simulator, spec, stragglers

ASHA = {"kind": "asha", "num_trials": 9, "min_steps": 1, "max_steps": 9, "reduction_factor": 3}
STOPPING = {**ASHA, "type": "stopping"}
OTHER = StudyId("other")

DERIVED = {
    "TrialAdded": ("study", "trial", "hp", "steps", "reason"),
    "TrialExtended": ("study", "trial", "steps", "reason"),
    "TrialStopped": ("study", "trial", "reason"),
    "StudyCompleted": ("study",),
    "ChainAssigned": ("chain",),
    "StageCompleted": ("chain", "index"),
    "StageFailed": ("chain", "index"),
    "ChainEnded": ("chain",),
    "Evaluated": ("node",),
}
"""The fields of which any change is detected, where the event is about the study or all its trials."""

NEEDED = ("PlanOpened", "StudySubmitted", "TrialAdded", "TrialExtended", "TrialStopped", "ChainAssigned", "Evaluated")
"""The events whose absence is detected, before any other events."""


@cache
def world(number: int) -> Simulator:
    """A finished study in which much went wrong; in every second one, another study trains on the same plan."""
    found = simulator(
        spec([ASHA, STOPPING][number // 2 % 2], space=SHARING),
        slots=3,
        seconds=stragglers(number),
        faults=faults(number, fail=0.05, lose=0.1),
        keep_every=2,
    )
    if number % 2:
        found.advance()
        found.submit(OTHER, spec({"kind": "external"}, space=None).to_json())
        found.give(c.AddTrial(study=OTHER, hp={"lr": 0.1}, steps=5))
        found.give(c.PauseStudy(study=OTHER))
        found.advance()
        found.give(c.ResumeStudy(study=OTHER))
        found.run()
        found.give(c.CancelStudy(study=OTHER, at=found.now))
    found.run()
    return found


def read(log: Sequence[e.Event]) -> Replay:
    """What replay says: never a traceback, and at most one sentence of one line."""
    found = replay(list(enumerate(log, 1)), STUDY)
    json.dumps(found.to_json())
    if found.difference is not None:
        assert found.difference["problem"].strip() and "\n" not in found.difference["problem"]
    return found


def others(value: Any) -> list[Any]:
    """What might stand there instead."""
    found = ["unknown", None, {}, [], (), -1, 10**6, 1.5, float("nan"), True, 10**400]
    if isinstance(value, int | float):
        found += [value + 1, value - 1]
    if isinstance(value, dict) and value:
        name = next(iter(value))
        found += [{key: held for key, held in value.items() if key != name}, value | {name: None}, value | {name: "x"}]
    if isinstance(value, tuple) and value:
        found += [value[1:], value + value[:1]]
        found += [
            (replace(value[0], **{each.name: other}), *value[1:]) for each in fields(value[0]) for other in found[:8]
        ]
    return [other for other in found if repr(other) != repr(value)]


@pytest.mark.slow
@max_examples(100)
@given(number=st.integers(0, 7), data=st.data())
def test_any_changed_field_is_detected(number: int, data: st.DataObject) -> None:
    log = [*world(number).events]
    place = data.draw(st.integers(0, len(log) - 1))
    event, name = log[place], data.draw(st.sampled_from(fields(log[place]))).name
    before = getattr(event, name)
    other = data.draw(st.sampled_from(others(before)))
    log[place] = replace(event, **{name: other})
    found = read(log)
    if (is_ours(event, number) and name in DERIVED.get(type(event).__name__, ())) or not might_be(before, other):
        assert found.difference is not None


def is_ours(event: e.Event, number: int) -> bool:
    """Whether the event is about the study that is replayed, for all that the event itself says."""
    return getattr(event, "study", STUDY if number % 2 == 0 else None) == STUDY


def might_be(before: Any, other: Any) -> bool:
    """Whether both are of the same kind; what may be absent may be anything that is."""
    if isinstance(before, int | float) and not isinstance(before, bool):
        return isinstance(other, int | float) and not isinstance(other, bool)
    return before is None or other is None or isinstance(other, type(before)) or isinstance(before, type(other))


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_any_missing_event_is_detected(number: int) -> None:
    log = world(number).events
    for place, event in enumerate(log):
        found = read(log[:place] + log[place + 1 :])
        if is_ours(event, number) and type(event).__name__ in NEEDED:
            assert found.difference is not None, event


@pytest.mark.slow
@pytest.mark.parametrize("number", range(4))
def test_wherever_it_is_cut(number: int) -> None:
    """Without its beginning it is no whole log; without its end it is the log of that time."""
    log = world(number).events
    for place in range(1, len(log)):
        assert read(log[:place]).difference is None
        assert read(log[place:]).difference is not None


@max_examples(30)
@given(number=st.integers(0, 7), data=st.data())
def test_any_repeated_or_moved_event_is_detected(number: int, data: st.DataObject) -> None:
    log = [*world(number).events]
    one, other = data.draw(st.integers(0, len(log) - 1)), data.draw(st.integers(0, len(log) - 1))
    read([*log[:one], log[other], *log[one:]])
    log.insert(other, log.pop(one))
    read(log)
