"""Cooldowns and merges at rungs: trials on whose results other trials, their trunks, are ranked.

A cooldown is a short branch with a falling learning rate. Up to a step it has the sequences of its trunk; then its
learning rate falls. A merge is the mean of the last states of its trunk, for which nothing is trained. The trunk
resumes from its own state, before either. Plan, scheduler and log treat both like any trial. Only the reason of their
start marks them, and `RungValues` uses that to translate the history for tuners, samplers and rankings.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.domain.search_plan import COOLDOWN_OF, MERGE_OF, TrialEvent
from app.domain.terms import TrialEventKind
from stagetree.sequences import SequenceError, Wsd, first_parts, parse

Json = dict[str, Any]

RUNG_AT = "at"
"""Key in the reason of a cooldown's or a merge's start: the step of its trunk's rung."""


def cooldown_hp(
    hp: Mapping[str, Any], at: int, steps: int, *, falling: Iterable[str], shape: str, final: float
) -> Json:
    """The hyper-parameters of a cooldown: a trial's for `at` steps, then `steps` steps in which `falling` fall.

    Each falls to `final` like the decay of `wsd`, from the value that the trial would have next. A value below `final`
    is held. Raises `SequenceError` if `falling` is empty or a value is not a number at step `at`.
    """
    cooling = {name: parse(value).to_json() for name, value in hp.items()}
    names = list(falling)
    if not names:
        raise SequenceError("", f"must have what falls in a cooldown in every configuration, got {', '.join(hp)}")
    for name in names:
        value = parse(hp[name]).at(at)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise SequenceError(name, f"must be a number at step {at}, where its cooldown begins, got {value!r}")
        tail = Wsd(value, 0, 0, steps, min(final, value), shape).to_json()
        cooling[name] = {"family": "piecewise", "parts": [*first_parts(cooling[name], at), {"sequence": tail}]}
    return cooling


def trunk_of(reason: Mapping[str, Any]) -> int | None:
    """By the reason of its start, the trial whose value at a rung a cooldown or a merge measures; None for others."""
    trunk: int | None = reason.get(COOLDOWN_OF, reason.get(MERGE_OF))
    return trunk


class RungValues:
    """A fold over a study's history that turns the result of a cooldown or merge into that of its trunk at the rung.

    Without a `rung_value`, the history is unchanged.
    """

    def __init__(self, tuner: Mapping[str, Any]) -> None:
        self._has_any = tuner.get("rung_value") is not None
        self._trunks = set[int]()
        self._rungs = dict[int, tuple[int, int, int]]()  # by cooldown or merge: its trunk, the rung, its own last step

    def read(self, event: TrialEvent) -> TrialEvent | None:
        """The event for the tuner; None if it concerns only the inside of a cooldown or merge.

        If one fails, its trunk fails. If a user cancels it, its trunk leaves the ranking.
        """
        if not self._has_any:
            return event
        if event.kind == TrialEventKind.START:
            return self._begin(event)
        if event.trial in self._rungs:
            return self._trunk_event(event, *self._rungs[event.trial])
        if event.kind == TrialEventKind.RESULT and event.trial in self._trunks:
            return None
        if event.kind in (TrialEventKind.FAIL, TrialEventKind.STOP, TrialEventKind.CANCEL):
            self._trunks.discard(event.trial)
        return event

    def _begin(self, event: TrialEvent) -> TrialEvent | None:
        if (trunk := trunk_of(event.reason)) is not None:
            self._rungs[event.trial] = trunk, event.reason[RUNG_AT], event.steps
            return None
        if event.reason.get("by") != "user":
            self._trunks.add(event.trial)
        return event

    def _trunk_event(self, event: TrialEvent, trunk: int, at: int, end: int) -> TrialEvent | None:
        is_result = event.kind == TrialEventKind.RESULT and event.steps == end
        is_over = event.kind in (TrialEventKind.FAIL, TrialEventKind.CANCEL)
        if trunk not in self._trunks or not (is_result or is_over):
            return None
        if is_over:
            self._trunks.discard(trunk)
        return replace(event, trial=trunk, steps=at)
