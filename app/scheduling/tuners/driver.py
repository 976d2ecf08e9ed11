"""A tuner at work on its study: it reads the history as far as it goes, and its actions become commands."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

from app.domain.commands import Extend, Prioritize, Start, Stop, TunerAction
from app.domain.search_plan import Study, TrialEvent
from app.domain.states import TrialEventKind
from app.scheduling.tuners.base import Context, NewTrial, Next, Tuner
from app.scheduling.tuners.samplers import Sampler
from stagetree.spec import StudySpec

BATCH = 1000
"""How many actions of an eager tuner are granted in one transaction."""


NOWHERE = Context()
_DECISIONS = (TrialEventKind.START, TrialEventKind.PROMOTE, TrialEventKind.PRIORITIZE, TrialEventKind.STOP)


class TunerDriver:
    """Tuner and sampler of one study. What it has read is a cache of the history and can be read again at any time.

    `sampler`: where configurations come from, if not from where the study file says.
    """

    def __init__(self, spec: Mapping[str, Any], sampler: Sampler | None = None) -> None:
        from app.scheduling.tuners import sampler_of, tuner_of

        self._made_of = (spec, sampler)
        self._spec = StudySpec.from_dict(dict(spec), limits=None)  # it was accepted once
        self._sampler: Sampler | None = sampler or sampler_of(self._spec)
        self._tuner: Tuner = tuner_of(self._spec)
        if self._sampler is not None and (size := self._sampler.size()) is not None:
            self._tuner.set_max_trials(size)
        self._read = self._proposed = 0
        self._granted: deque[TrialEvent] = deque()

    @property
    def spec(self) -> Mapping[str, Any]:
        """The study file it was made for."""
        return self._made_of[0]

    @property
    def tuner(self) -> Tuner:
        return self._tuner

    def actions(self, study: Study, room: int, context: Context = NOWHERE) -> tuple[TunerAction, ...]:
        """What the study wants next: one action, if fewer than `room` of its trials are active; of an eager tuner, all.

        The actions count as granted. If they were not, the next call notices and reads the history again.
        """
        self._catch_up(study)
        self._tuner.set_context(context)
        if not self._tuner.eager:
            return self._take(study, 1) if study.active < room else ()
        return self._take(study, BATCH)

    def is_done(self, study: Study) -> bool:
        """True when nothing is wanted, and nothing is under way that could change that."""
        self._catch_up(study)
        return study.active == 0 and not self._tuner.open_ended and self._concrete(self._tuner.suggest()) is None

    def expected(self, study: Study, context: Context = NOWHERE) -> Next | None:
        """What the tuner wants, from the history and a context that was recorded: for replay."""
        self._catch_up(study)
        self._tuner.set_context(context)
        return self._tuner.suggest()

    def _take(self, study: Study, most: int) -> tuple[TunerAction, ...]:
        """So many starts, or one action of another kind: that may depend on a result which is there at once."""
        actions: list[TunerAction] = []
        number = len(study.trials)
        while len(actions) < most and (action := self._concrete(self._tuner.suggest())) is not None:
            if actions and not isinstance(action, Start):
                break
            actions.append(action)
            self._grant(_entry(action, number + len(actions) - 1))
            if not isinstance(action, Start):
                break
        return tuple(actions)

    def _grant(self, event: TrialEvent) -> None:
        self._granted.append(event)
        self._see(event)

    def _see(self, event: TrialEvent) -> None:
        self._proposed += event.kind == TrialEventKind.START
        self._tuner.observe(event)
        if self._sampler is not None:
            self._sampler.observe(event)

    def _concrete(self, action: Next | None) -> TunerAction | None:
        """The action with its configuration; None when the sampler has no more."""
        if not isinstance(action, NewTrial):
            return action
        found = self._sampler.propose(self._proposed) if self._sampler else None
        return (
            None if found is None else Start(hp=found.hp, steps=action.steps, reason={**action.reason, **found.reason})
        )

    def _catch_up(self, study: Study) -> None:
        """Read what is new in the history; from the start, if what was taken for granted did not happen."""
        for event in study.history[self._read :]:
            if self._granted and event.kind in _DECISIONS:
                if not (_is_ours(study, event) and _same(event, self._granted[0])):
                    return self._start_over(study)
                self._granted.popleft()
            elif _is_ours(study, event):
                self._see(event)
            self._read += 1
        return self._start_over(study) if self._granted else None

    def _start_over(self, study: Study) -> None:
        self.__init__(*self._made_of)  # type: ignore[misc]
        self._catch_up(study)


def _entry(action: TunerAction, number: int) -> TrialEvent:
    """The line of history that a granted action will be, of trial `number` if it starts one."""
    match action:
        case Start():
            return TrialEvent(TrialEventKind.START, number, action.steps, reason=action.reason, hp=action.hp)
        case Extend():
            return TrialEvent(TrialEventKind.PROMOTE, action.trial, action.steps, reason=action.reason)
        case Prioritize():
            return TrialEvent(TrialEventKind.PRIORITIZE, action.trial, 0, reason=action.reason)
        case Stop():
            return TrialEvent(TrialEventKind.STOP, action.trial, 0, reason=action.reason)


def _same(event: TrialEvent, granted: TrialEvent) -> bool:
    return (event.kind, event.trial) == (granted.kind, granted.trial) and (
        event.kind == TrialEventKind.STOP or event.steps == granted.steps
    )


def _is_ours(study: Study, event: TrialEvent) -> bool:
    """Whether the tuner is told: it knows only of trials that it asked for itself."""
    return study.trials[event.trial].reason.get("by") == "tuner"
