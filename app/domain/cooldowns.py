"""Cooldowns at rungs: short ends of a trial on which it is ranked, while the trial itself goes on from before them.

A cooldown is a trial of its own: up to a step it has the sequences of the trial that it is branched off, its trunk, and
then a learning rate that falls. So nothing in the plan, the scheduler or the log knows of cooldowns: equal ones have
equal names, they are counted as they are trained, and their end states are kept as of any trial. The reason of a start
says that a trial is a cooldown, and by that `Cooldowns` reads the history as a tuner, a sampler and a ranking see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from app.domain.search_plan import COOLDOWN_OF, TrialEvent
from app.domain.terms import TrialEventKind
from stagetree.sequences import SequenceError, Wsd, first_parts, parse

Json = dict[str, Any]

AT = "at"
"""In the reason of a cooldown's start: the step after which it parts from its trunk."""


def cooldown_hp(
    hp: Mapping[str, Any], at: int, steps: int, *, falling: Iterable[str], shape: str, final: float
) -> Json:
    """The hyper-parameters of a cooldown: the first `at` steps of a trial's, then `steps` where some fall to `final`.

    Each falls from the value that the trial would have next, as the decay of `wsd` does; one that is lower than `final`
    stays as it is. Raises `SequenceError` where there are none, or one is no number there.
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


class Cooldowns:
    """A fold over a study's history, which reads each result of a cooldown as the one that its trunk has at the rung.

    Where a study has none, everything is read as it is written.
    """

    def __init__(self, tuner: Mapping[str, Any]) -> None:
        self._has_any = tuner.get("rung_value") is not None
        self._trunks = set[int]()
        self._of = dict[int, tuple[int, int, int]]()  # by cooldown: its trunk, the step of the rung, and its own last

    def read(self, event: TrialEvent) -> TrialEvent | None:
        """The event as the tuner understands it; None for what only says how a value comes about.

        A cooldown that fails has its trunk fail, and one that a user cancels takes its trunk out of the ranking.
        """
        if not self._has_any:
            return event
        if event.kind == TrialEventKind.START:
            return self._begin(event)
        if event.trial in self._of:
            return self._trunk_event(event, *self._of[event.trial])
        if event.kind == TrialEventKind.RESULT and event.trial in self._trunks:
            return None
        if event.kind in (TrialEventKind.FAIL, TrialEventKind.STOP, TrialEventKind.CANCEL):
            self._forget(event.trial)
        return event

    def _begin(self, event: TrialEvent) -> TrialEvent | None:
        trunk = event.reason.get(COOLDOWN_OF)
        if trunk is not None:
            self._of[event.trial] = trunk, event.reason[AT], event.steps
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
            self._forget(trunk)
        return replace(event, trial=trunk, steps=at)

    def _forget(self, trunk: int) -> None:
        """It is ranked no more."""
        self._trunks.discard(trunk)
