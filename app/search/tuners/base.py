"""The interface of tuners: a tuner takes in a study's history event by event, and returns the next action.

A tuner in twenty lines:

    class Best(Tuner):
        '''Trains ten configurations for 5 steps, then the best of them for 50.'''

        def __init__(self, spec):
            super().__init__(spec)
            self.started, self.losses, self.promoted = 0, {}, False

        def observe(self, event):
            match event.kind:
                case TrialEventKind.START:
                    self.started += 1
                case TrialEventKind.PROMOTE:
                    self.promoted = True
                case TrialEventKind.RESULT | TrialEventKind.FAIL:
                    self.losses.setdefault(event.trial, self.loss(event))

        def suggest(self):
            if self.started < 10:
                return NewTrial(steps=5)
            if len(self.losses) == 10 and not self.promoted:
                return Extend(trial=min(self.losses, key=lambda trial: (self.losses[trial], trial)), steps=50)
            return None

Some tuners come from files that the operator of a server has registered. A study names such a tuner, and continues with
that version of it only. The author may return anything from `suggest`: values that are no actions, or that the log
cannot hold, are rejected here.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from app.domain.accounting import BudgetUse, budget_use, seconds_to_budget
from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.objectives import FAILED, Objectives, ResultScore, read_objectives
from app.domain.pricing import EMPTY_TREE, TrainedTree, trained_tree
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.terms import TrialEventKind
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.tuners import CustomTuner


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrial:
    """An action: train a new configuration of the study's sampler for `steps` steps."""

    steps: int
    reason: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """The end of the study, which only its driver decides."""

    reason: Mapping[str, Any]


Next = NewTrial | Start | Extend | Stop | Prioritize

Key = float | ResultScore
"""Results are compared by this, less being better: a number, infinite for a failed trial, or a score."""


@dataclass(frozen=True, slots=True)
class Context:
    """What a tuner may use beside the history.

    An action that depends on it records it in its reason (`elapsed`, `slots` and the trial's `seconds_per_step`), from
    where replay reads it.
    """

    elapsed: float = 0.0
    """Seconds since the study was submitted."""
    slots: int = 1
    seconds_per_step: Callable[[int], float] = lambda trial: 0.0
    """Of a trial; 0 if unknown."""
    spent: BudgetUse = field(default_factory=BudgetUse)
    """The used part of the study's budgets."""
    seconds_left: float = math.inf
    """Until its budget of slot seconds is used up, at the current rate."""
    tree: Callable[[], TrainedTree] = lambda: EMPTY_TREE
    """The trained and kept nodes, for samplers with prices. Its caller holds the plan."""

    @classmethod
    def from_reason(cls, reason: Mapping[str, Any]) -> Context:
        """The context of the action that was recorded with this reason."""
        seconds = float(reason.get("seconds_per_step", 0.0))
        return cls(float(reason.get("elapsed", 0.0)), int(reason.get("slots", 1)), lambda trial: seconds)


NOWHERE = Context()
"""For use if there is nothing but the history."""


class Tuner(ABC):
    """A search algorithm as a fold over the history of its study, without clocks and random generators.

    What depends on time or slots is given as a `Context`.
    """

    eager: ClassVar[bool] = False
    """Its actions are taken at once, because its next starts do not depend on results. Other tuners suggest an action
    whenever a slot could train one more trial."""
    open_ended: ClassVar[bool] = False
    """Users add trials too, so a tuner that wants nothing does not end the study."""
    takes_objectives: ClassVar[bool] = False
    """It supports several metrics and constraints: it compares by `key`, not by `loss`."""

    def __init__(self, spec: StudySpec) -> None:
        self.metric, self._sign = spec.metric, -1.0 if spec.mode == "max" else 1.0
        self.objectives = objectives_in(spec)

    def set_context(self, context: Context) -> None:  # noqa: B027 - few look at clocks and slots
        """Set what `suggest` may use beside the history, until the next call."""

    def set_max_trials(self, trials: int) -> None:  # noqa: B027 - most tuners know how many trials they want
        """The study has at most `trials` configurations. Called once, before any event."""

    @abstractmethod
    def observe(self, event: TrialEvent) -> None:
        """Take in an event: each granted action comes back here, and so do the results of each trial."""

    @abstractmethod
    def suggest(self) -> Next | None:
        """The next action, given the observations; None if there is none now. Changes nothing."""

    def suggest_many(self, most: int) -> Sequence[Next]:
        """Up to `most` actions: each is what `suggest` returns after those before it, if nothing else happens
        meanwhile.

        By default one action, or several equal starts.
        """
        action = self.suggest() if most else None
        if isinstance(action, NewTrial):
            return (action,) * min(most, self.starts_alike())
        return () if action is None else (action,)

    def starts_alike(self) -> int:
        """How many equal starts follow each other, if it starts a trial now."""
        return 1

    def loss(self, event: TrialEvent) -> float:
        """The study's metric, negated if more is better; infinite for a failed trial."""
        value = event.metrics.get(self.metric) if event.kind == TrialEventKind.RESULT else None
        return math.inf if value is None else self._sign * value

    def key(self, event: TrialEvent) -> Key:
        """A result's loss, or its score if the study has several metrics, or constraints."""
        if self.objectives.is_plain:
            return self.loss(event)
        return (self.objectives.score(event.metrics) if event.kind == TrialEventKind.RESULT else None) or FAILED


def objectives_in(spec: StudySpec) -> Objectives:
    return read_objectives(spec.model_dump(include={"metric", "mode", "metrics", "constraints"}))


def context_of(plan: SearchPlan, study: Study, now: float, slots: int) -> Context:
    """The context of a study at a time, in the unit of its `submitted_at`, with a number of slots.

    Numbers are rounded, so that they are recorded exactly as they were used.
    """
    elapsed = round(max(0.0, now - study.submitted_at), 3)
    paid, left = budget_use(plan, study, now), seconds_to_budget(plan, study, now)
    seconds = partial(_seconds_per_step, plan, study)
    return Context(elapsed, slots, seconds, paid, left, partial(trained_tree, plan, study))


def _seconds_per_step(plan: SearchPlan, study: Study, trial: int) -> float:
    """The mean over the steps on the trial's path, trained by any study; 0 if there are none."""
    nodes = [plan.nodes[name] for name in study.trials[trial].path]
    steps = sum(node.steps_run for node in nodes)
    return float(f"{sum(node.seconds for node in nodes) / steps:.6g}") if steps else 0.0


@dataclass(frozen=True, slots=True)
class Registered:
    """A tuner's class and its recorded version: the one that it declares, or a digest of its file."""

    tuner: type[Tuner]
    version: str


REGISTERED: dict[str, Registered] = {}
"""By name. `app.tuner_files` fills it at the start of a process, from files that the operator names."""


def custom(spec: StudySpec) -> Tuner:
    """The registered tuner of a study. Raises `SpecError` if this server has none, or another version."""
    assert isinstance(spec.tuner, CustomTuner)
    registered, version = _find_registered(spec.tuner.name), spec.tuner.version
    if version not in (None, registered.version):
        problem = f"must be version {registered.version}, which is the one that this server has, got {version}"
        raise SpecError([Problem("tuner.version", problem)])
    if (spec.metrics or spec.constraints) and not registered.tuner.takes_objectives:
        problem = f"{spec.tuner.name} goes by one metric without constraints: its class does not set takes_objectives"
        raise SpecError([Problem("tuner.name", problem)])
    return registered.tuner(spec)


def pin_version(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The study file with the version of its registered tuner, if it has one. Raises `SpecError`."""
    tuner = spec["tuner"]
    if tuner["kind"] != "custom" or "version" in tuner:
        return dict(spec)
    return {**spec, "tuner": {**tuner, "version": _find_registered(tuner["name"]).version}}


def _find_registered(name: str) -> Registered:
    if name not in REGISTERED:
        names = ", ".join(sorted(REGISTERED)) or "none"
        raise SpecError(
            [Problem("tuner.name", f"must be a tuner that is registered on this server ({names}), got {name!r}")]
        )
    return REGISTERED[name]


ACTIONS = (NewTrial, Start, Extend, Stop, Prioritize)


class NotAnAction(Exception):
    """A tuner returned what cannot be a decision; the message is one sentence."""


def check_action(action: Next) -> None:
    """Raise `NotAnAction` for an object that is no action or cannot be logged. `decide` checks whether the action is
    allowed.
    """
    if not isinstance(action, ACTIONS):
        raise NotAnAction(f"it must suggest an action, or None, got {action!r:.100}")
    for name in ("trial", "steps"):
        _check_int(name, getattr(action, name, 0))
    if isinstance(action, Prioritize) and not isinstance(action.priority, int | float):
        raise NotAnAction(f"priority: must be a number, got {action.priority!r:.100}")
    if isinstance(action, Start):
        _check_json("hp", action.hp, allow_nan=True)
    _check_json("reason", action.reason, allow_nan=False)
    if "by" in action.reason:
        raise NotAnAction("reason: must not hold 'by', which says that it was the tuner")
    for name in {"rung", "bracket"} & action.reason.keys():
        _check_int(f"reason.{name}", action.reason[name])


def _check_int(field: str, value: Any) -> None:
    if type(value) is not int:
        raise NotAnAction(f"{field}: must be a whole number of Python's int, got {value!r:.100}")


_encode, _encode_finite = json.JSONEncoder().encode, json.JSONEncoder(allow_nan=False).encode


def _check_json(field: str, value: Any, *, allow_nan: bool) -> None:
    if value == {}:
        return
    if not isinstance(value, Mapping):
        raise NotAnAction(f"{field}: must be a dict, got {value!r:.100}")
    try:
        (_encode if allow_nan else _encode_finite)(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotAnAction(f"{field}: must be JSON with finite numbers, got {value!r:.100}: {error}") from None
