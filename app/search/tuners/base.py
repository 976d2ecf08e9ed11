"""What a tuner is: told a study's history event by event, it says what is wanted next. Nothing else goes in or out.

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

Some tuners come from files that the operator of a server has registered. A study names such a tuner, and goes on with
that version of it only. Its author may return anything from `suggest`: a value that is no action, or that the log
cannot hold, is refused here.
"""

from __future__ import annotations

import json
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from app.domain.accounting import Spent, seconds_to_budget, spent
from app.domain.commands import Extend, Prioritize, Start, Stop
from app.domain.objectives import FAILED, Objectives, ResultScore, objectives_of
from app.domain.pricing import EMPTY_TREE, TrainedTree, trained_tree
from app.domain.search_plan import SearchPlan, Study, TrialEvent
from app.domain.terms import TrialEventKind
from stagetree.spec import Problem, SpecError, StudySpec
from stagetree.spec.tuners import CustomTuner


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTrial:
    """An action: train a new configuration, from wherever the study takes them, for `steps` steps."""

    steps: int
    reason: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class End:
    """The study ends, whatever its tuner would want: no tuner says so, its driver does."""

    reason: Mapping[str, Any]


Next = NewTrial | Start | Extend | Stop | Prioritize

Key = float | ResultScore
"""What results are compared by, less being better: a number, infinite for a trial that failed, or a score."""


def _unknown(trial: int) -> float:
    return 0.0


@dataclass(frozen=True, slots=True)
class Context:
    """What a tuner may look at beside the history: how it stands in the world now.

    A tuner whose action depends on it writes what it used into the action's reason (`elapsed`, `slots` and
    `seconds_per_step`, of the trial that the action is about), from where it is read again for replay.

    elapsed: seconds since the study was submitted. seconds_per_step: of a trial, 0 while nothing is known.
    spent: on a study with a budget, until now. seconds_left: before its seconds of slots are spent, as it is going on.
    tree: the trained and kept nodes, for samplers that go by prices; its caller holds the plan.
    """

    elapsed: float = 0.0
    slots: int = 1
    seconds_per_step: Callable[[int], float] = _unknown
    spent: Spent = field(default_factory=Spent)
    seconds_left: float = math.inf
    tree: Callable[[], TrainedTree] = lambda: EMPTY_TREE

    @classmethod
    def recorded(cls, reason: Mapping[str, Any]) -> Context:
        """The context of the action that was recorded with this reason."""
        seconds = float(reason.get("seconds_per_step", 0.0))
        return cls(float(reason.get("elapsed", 0.0)), int(reason.get("slots", 1)), lambda trial: seconds)


NOWHERE = Context()
"""Where nothing is known but the history."""


class Tuner(ABC):
    """A search algorithm as a fold over the history of its study. It never reads a clock or rolls a die.

    What may depend on time or slots is given to it as a `Context`.
    eager: its actions are taken at once, and which trials it starts next does not depend on what comes meanwhile; the
    others are asked for one more whenever a slot could train it.
    takes_objectives: it may have studies of several metrics, or with constraints: it goes by `key`, not by `loss`.
    open_ended: others add trials too, so that wanting nothing does not end the study.
    """

    eager: ClassVar[bool] = False
    open_ended: ClassVar[bool] = False
    takes_objectives: ClassVar[bool] = False

    def __init__(self, spec: StudySpec) -> None:
        self.metric, self._sign = spec.metric, -1.0 if spec.mode == "max" else 1.0
        self.objectives = objectives_in(spec)

    def set_context(self, context: Context) -> None:  # noqa: B027 - few look at clocks and slots
        """What `suggest` may look at beside the history, until this is called again."""

    def set_max_trials(self, trials: int) -> None:  # noqa: B027 - most tuners know how many trials they want
        """The study has no more than `trials` configurations. Said once, before anything is seen."""

    @abstractmethod
    def observe(self, event: TrialEvent) -> None:
        """Take in what happened: every action that was granted comes back here, and what became of each trial."""

    @abstractmethod
    def suggest(self) -> Next | None:
        """What is wanted most, given what was seen; None while it is nothing. Changes nothing."""

    def suggest_many(self, most: int) -> Sequence[Next]:
        """Up to `most` actions, each what `suggest` says after those before it, if nothing else happens meanwhile.

        One, unless the tuner knows better: a study that starts a thousand trials should say so at once.
        """
        action = self.suggest() if most else None
        if isinstance(action, NewTrial):
            return (action,) * min(most, self.starts_alike())
        return () if action is None else (action,)

    def starts_alike(self) -> int:
        """How many trials it starts in the same way, one after the other, if it starts one now."""
        return 1

    def loss(self, event: TrialEvent) -> float:
        """The study's metric, turned so that less is better; infinite for a trial that failed."""
        value = event.metrics.get(self.metric) if event.kind == TrialEventKind.RESULT else None
        return math.inf if value is None else self._sign * value

    def key(self, event: TrialEvent) -> Key:
        """What a result is compared by: its loss, or its score where the study has several metrics, or constraints."""
        if self.objectives.is_plain:
            return self.loss(event)
        return (self.objectives.score(event.metrics) if event.kind == TrialEventKind.RESULT else None) or FAILED


def objectives_in(spec: StudySpec) -> Objectives:
    """What a study wants of a result."""
    return objectives_of(spec.model_dump(include={"metric", "mode", "metrics", "constraints"}))


def context_of(plan: SearchPlan, study: Study, now: float, slots: int) -> Context:
    """How a study stands at a time, in the unit of its `submitted_at`, with so many slots to train on.

    Numbers are rounded, so that what is recorded of them is what was looked at.
    """
    elapsed = round(max(0.0, now - study.submitted_at), 3)
    paid, left = spent(plan, study, now), seconds_to_budget(plan, study, now)
    seconds = partial(_seconds_per_step, plan, study)
    return Context(elapsed, slots, seconds, paid, left, partial(trained_tree, plan, study))


def _seconds_per_step(plan: SearchPlan, study: Study, trial: int) -> float:
    """The mean over the steps that were run on the trial's path, for whomever; 0 if none were."""
    nodes = [plan.nodes[name] for name in study.trials[trial].path]
    steps = sum(node.steps_run for node in nodes)
    return float(f"{sum(node.seconds for node in nodes) / steps:.6g}") if steps else 0.0


@dataclass(frozen=True, slots=True)
class Registered:
    """A tuner's class, and the version that a study records: what it declares, or a digest of its file."""

    tuner: type[Tuner]
    version: str


REGISTERED: dict[str, Registered] = {}
"""By name. `app.registry` fills it when a process starts, from files that its operator names."""


def custom(spec: StudySpec) -> Tuner:
    """The registered tuner that a study names. Raises `SpecError` where this server has none, or another version."""
    assert isinstance(spec.tuner, CustomTuner)
    registered, version = _registered(spec.tuner.name), spec.tuner.version
    if version not in (None, registered.version):
        problem = f"must be version {registered.version}, which is the one that this server has, got {version}"
        raise SpecError([Problem("tuner.version", problem)])
    if (spec.metrics or spec.constraints) and not registered.tuner.takes_objectives:
        problem = f"{spec.tuner.name} goes by one metric without constraints: its class does not set takes_objectives"
        raise SpecError([Problem("tuner.name", problem)])
    return registered.tuner(spec)


def with_version(spec: Mapping[str, Any]) -> dict[str, Any]:
    """The study file with the version of its registered tuner, if it names one. Raises `SpecError`."""
    tuner = spec["tuner"]
    if tuner["kind"] != "custom" or "version" in tuner:
        return dict(spec)
    return {**spec, "tuner": {**tuner, "version": _registered(tuner["name"]).version}}


def _registered(name: str) -> Registered:
    if name not in REGISTERED:
        names = ", ".join(sorted(REGISTERED)) or "none"
        raise SpecError(
            [Problem("tuner.name", f"must be a tuner that is registered on this server ({names}), got {name!r}")]
        )
    return REGISTERED[name]


ACTIONS = (NewTrial, Start, Extend, Stop, Prioritize)


class NotAnAction(Exception):
    """A tuner wants what can be no decision; the message is one sentence."""


def check_action(action: Next) -> None:
    """Raise `NotAnAction` for what is none, or holds what no log does; what may be asked for, `decide` says."""
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


def _check_json(field: str, value: Any, *, allow_nan: bool) -> None:
    if not isinstance(value, Mapping):
        raise NotAnAction(f"{field}: must be a dict, got {value!r:.100}")
    try:
        json.dumps(value, allow_nan=allow_nan)
    except (TypeError, ValueError, RecursionError) as error:
        raise NotAnAction(f"{field}: must be JSON with finite numbers, got {value!r:.100}: {error}") from None
