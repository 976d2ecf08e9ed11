"""Runs a study's tuner: reads the history, returns the next actions, and ends the study."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from types import TracebackType
from typing import Any

from app.domain.accounting import BudgetUse
from app.domain.commands import Start, TunerAction
from app.domain.rung_values import RungValues
from app.domain.search_plan import BUDGETS, Study, TargetReached, TrialEvent
from app.domain.terms import StudyId, TrialEventKind
from app.search.samplers import EnqueuedTrials, Knowledge, Proposal, Sampler, find_price_sampler, queued_sampler_of
from app.search.tuners.base import NOWHERE, Context, End, NewTrial, Next, Tuner, check_action, objectives_in
from app.search.tuners.kinds import tuner_of
from stagetree.spec import SpecError, StudySpec

Json = dict[str, Any]


class Endings:
    """A fold over the results of all trials of a study that decides its end.

    A result is the metric at a step that was requested. The first of equal results is the best. For `patience`, a
    result is compared with earlier ones at the same step: with losses that fall, none of a low rung is as good as those
    above. seconds: when the time limit is reached, counted from the submission; infinite if there is none.
    """

    def __init__(self, spec: StudySpec) -> None:
        self._spec, self._sign = spec, 1 if spec.mode == "max" else -1
        self._objectives = objectives_in(spec)
        self._best: Json = {}
        self._best_at: dict[int, float] = {}  # by steps
        self._target_reached: TargetReached | None = None
        self._since = 0  # results since one was the best at its step
        budgets = {name: getattr(spec, name) for name in BUDGETS}
        self._budgets = {name: most for name, most in budgets.items() if most is not None}
        own = getattr(spec.tuner, "max_time", None)  # of a tuner that goes by time itself
        self.seconds = min(spec.max_time or math.inf, own or math.inf)

    @property
    def follow_results(self) -> bool:
        """Whether a result may end the study."""
        return self._spec.target is not None or self._spec.patience is not None

    def observe_evaluation(self, reached: TargetReached | None) -> bool:
        """Take in an evaluation that reached the target, if one did, and return whether it is new."""
        before, self._target_reached = self._target_reached, reached
        return reached != before

    def observe(self, event: TrialEvent) -> None:
        """Take in a trial's event."""
        value = event.metrics.get(self._spec.metric)
        if event.kind != TrialEventKind.RESULT or value is None:
            return
        if not self._is_feasible(event):
            self._since += bool(self._best)
            return
        if self._is_better(value, self._best.get("value")) and not self._has_reached_target():
            self._best = {"trial": event.trial, "steps": event.steps, "value": value}
        if self._is_better(value, self._best_at.get(event.steps)):
            self._best_at[event.steps], self._since = value, 0
        else:
            self._since += 1

    def _is_better(self, value: float, other: float | None) -> bool:
        return other is None or self._sign * value > self._sign * other

    def _is_feasible(self, event: TrialEvent) -> bool:
        """Whether a result violates no constraint. Only feasible results can be the best, or reach the target."""
        score = None if self._objectives.is_plain else self._objectives.score(event.metrics)
        return score is None or score.is_feasible

    def due(self, elapsed: float) -> Json | None:
        """Why the study ends now, `elapsed` seconds after its submission; None if it does not."""
        spec = self._spec
        if self._has_reached_target():
            return {"by": "target", "target": spec.target, **self._best}
        if (reached := self._target_reached) is not None:
            return {"by": "target", "target": spec.target, **asdict(reached)}
        if spec.patience is not None and self._since >= spec.patience:
            return {"by": "patience", "patience": spec.patience, **self._best}
        if spec.max_time is not None and elapsed >= spec.max_time:
            return {"by": "max_time", "max_time": spec.max_time}
        return None

    def used_up_budget(self, spent: BudgetUse) -> Json | None:
        """The budget that is used up; None if there is none."""
        by = spent.exhausted_budget(self._budgets)
        return None if by is None else {"by": by, by: self._budgets[by]}

    def _has_reached_target(self) -> bool:
        target = self._spec.target
        return target is not None and bool(self._best) and self._sign * (self._best["value"] - target) >= 0


News = tuple[TrialEvent, TrialEvent | None]
"""An event, and as what the tuner of a study with cooldowns sees it."""

BATCH = 1000
"""The largest number of actions suggested at once."""


class TunerFailed(Exception):
    """A tuner or a sampler raised an exception, which fails the study. The message has it."""


class TunerDriver:
    """Tuner and sampler of one study: a fold over its history, which can be read again from the start at any time.

    `observe` takes in new events, and `suggest` derives actions and changes nothing: only the history makes them real.
    sampler: replaces that of the study file. Raises `stagetree.spec.SpecError` and `TunerFailed`.
    """

    def __init__(self, spec: Mapping[str, Any], sampler: Sampler | None = None) -> None:
        self.spec = spec
        parsed = StudySpec(**spec)
        with _Blame("the tuner", but=SpecError):
            self._sampler = sampler or queued_sampler_of(parsed)
            self._price_sampler = find_price_sampler(self._sampler)
            self._tuner: Tuner = tuner_of(parsed)
            if self._sampler is not None and (size := self._sampler.size()) is not None:
                self._tuner.set_max_trials(size)
        self._endings = Endings(parsed)
        self._context = NOWHERE
        self._rung_values = RungValues(spec["tuner"])
        self._unread: list[News] = []
        self._position = self._proposed = self._active = 0
        self._own: set[int] = set()  # the trials that the tuner requested; it sees no others
        self._suggested: tuple[tuple[int, int], tuple[TunerAction, ...]] | None = None

    @property
    def tuner(self) -> Tuner:
        return self._tuner

    def observe(self, study: Study, context: Context = NOWHERE) -> bool:
        """Note the new events and the context; returns whether they may change a decision.

        Such changes are new history, enqueued trials, results of other studies and, for samplers with prices, another
        tree. It is cheap, because its caller holds the plan.
        """
        self._context = context
        is_other = self._price_sampler is not None and self._price_sampler.look(context.tree())
        is_suggested = isinstance(self._sampler, EnqueuedTrials) and self._sampler.hear(study)
        is_other = is_other or is_suggested
        self._suggested = None if is_other else self._suggested
        news = [(event, self._rung_values.read(event)) for event in study.history[self._position :]]
        self._unread += news
        for event, understood in news:
            if understood is not None:
                self._endings.observe(event)
        is_reached = self._endings.observe_evaluation(study.target_reached)
        self._position += len(news)
        self._active = study.active
        return bool(news) or is_other or is_reached

    def suggest(self, room: int) -> tuple[TunerAction, ...]:
        """The next actions: new trials until `room` trials are active, or one other action; all actions of an eager
        tuner.

        Repeated calls return the same. A study that must end has no actions. Raises `TunerFailed`.
        """
        return () if self.end() is not None else self._wanted_actions(room)

    def _wanted_actions(self, room: int) -> tuple[TunerAction, ...]:
        self._read()
        most = BATCH if self._tuner.eager else min(BATCH, max(0, room - self._active))
        question = (self._position, most)
        if self._suggested is None or self._suggested[0] != question:
            with _Blame("the tuner"):
                self._suggested = (question, tuple(self._actions(most)))
        return self._suggested[1]

    def end(self) -> End | None:
        """The end of the study, if anything but its tuner ends it now. Raises `TunerFailed`.

        A budget ends it only if more is wanted: a study that is done did not end by its budget.
        """
        reason = self._endings.due(self._context.elapsed)
        if reason is None and (used_up := self._endings.used_up_budget(self._context.spent)) is not None:
            reason = used_up if self._active or self._wanted_actions(room=1) else None
        return None if reason is None else End(reason)

    @property
    def seconds(self) -> float:
        """When to ask again even if nothing has happened, counted from the submission; infinite if never."""
        return min(self._endings.seconds, self._context.elapsed + self._context.seconds_left)

    @property
    def hangs_on_results(self) -> bool:
        """Whether the result of a trial that it starts may change its next action, or end the study."""
        return self._endings.follow_results or not self._tuner.eager

    def is_done(self) -> bool:
        """Whether nothing is wanted and nothing under way can change that. Raises `TunerFailed`."""
        if self._active or self._tuner.open_ended:
            return False
        return not self.suggest(room=1)

    def next_action(self) -> Next | End | None:
        """The tuner's next action, derived from observed events only, for replay. Raises `TunerFailed`."""
        self._read()
        if (end := self.end()) is not None:
            return end
        with _Blame("the tuner"):
            action = self._tuner.suggest()
        return None if isinstance(action, NewTrial) and self._is_exhausted() else action

    def foreseen(self) -> Proposal | None:
        """The part of the next configuration that depends on no result, for replay: its `hp` may be empty."""
        return self._sampler.foreseen(self._proposed) if isinstance(self._sampler, EnqueuedTrials) else None

    def next_proposal(self) -> tuple[Knowledge | None, Proposal | None]:
        """The sampler's knowledge, and the tuner's next configuration; None if there is none.

        Raises `TunerFailed`.
        """
        self._read()
        if not isinstance(self._sampler, EnqueuedTrials):
            return None, None
        with _Blame("the sampler"):
            return self._sampler.knowledge(), self._sampler.propose(self._proposed)

    def wants_more(self) -> bool:
        """Whether the tuner would start or extend a trial if there were room. Raises `TunerFailed`."""
        action = self.next_action()
        return action is not None and not isinstance(action, End)

    def _is_exhausted(self) -> bool:
        """Whether the sampler has no more configurations."""
        size = None if self._sampler is None else self._sampler.size()
        return size is not None and self._proposed >= size

    def _read(self) -> None:
        unread, self._unread = self._unread, []
        with _Blame("the tuner"):
            self._tuner.set_context(self._context)
            for event, understood in self._own_news(unread):
                self._tuner.observe(event)
                if understood is not None:
                    self._proposed += understood.kind == TrialEventKind.START
                    if self._sampler is not None:
                        self._sampler.observe(understood)

    def _own_news(self, news: Iterable[News]) -> Iterator[News]:
        for event, understood in news:
            if event.kind == TrialEventKind.START and event.reason.get("by") == "tuner":
                self._own.add(event.trial)
            if event.trial in self._own:
                yield event, understood

    def _actions(self, most: int) -> Iterator[TunerAction]:
        number = self._proposed
        for action in self._tuner.suggest_many(most if self._sampler_is_blind() else min(most, 1)):
            check_action(action)
            concrete = self._concrete(action, number)
            if concrete is None:
                return
            number += isinstance(action, NewTrial)
            yield concrete

    def _sampler_is_blind(self) -> bool:
        """Whether its next proposal does not depend on its last one."""
        return self._sampler is None or not self._sampler.adaptive

    def _concrete(self, action: Next, number: int) -> TunerAction | None:
        """The action with its configuration; None if the sampler has none left."""
        if not isinstance(action, NewTrial):
            return action
        proposal = self._sampler.propose(number) if self._sampler else None
        if proposal is None:
            return None
        return Start(hp=proposal.hp, steps=action.steps, reason={**action.reason, **proposal.reason})


class _Blame:
    """Turn exceptions of a tuner or sampler, except for classes in `but`, into `TunerFailed`."""

    __slots__ = ("_but", "_whom")

    def __init__(self, whom: str, but: type[Exception] = MemoryError) -> None:
        self._whom, self._but = whom, (MemoryError, but)

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if isinstance(error, Exception) and not isinstance(error, self._but):
            raise TunerFailed(f"{self._whom} failed: {type(error).__name__}: {error}") from error


MakeDriver = Callable[[StudyId, Mapping[str, Any]], TunerDriver]


def make_driver(study: StudyId, spec: Mapping[str, Any]) -> TunerDriver:
    """The driver of a study file. Raises as `TunerDriver` does."""
    return TunerDriver(spec)
