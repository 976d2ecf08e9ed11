"""How trials are asked for: within the limits, and by the names of the nodes that they will pass.

A branch is a trial that begins as another one did: up to a step it has the sequences of that trial, so its steps up to
there have the same names.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import zip_longest
from typing import Any

from app.domain import events as e
from app.domain.sampler_inputs import SuggestionWithdrawn
from app.domain.schedule import path, path_from
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.terms import NodeId, Refused, StateConflict, StudyId, Unknown
from stagetree.limits import DATA_SEED, Limits, check_trial
from stagetree.sequences import SequenceError, did_you_mean, first_parts, parse_for_length

Json = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTrial:
    """A user's own trial, which parts from another one after step `at`; a study that is over goes on for that.

    hp: of each hyper-parameter that changes there, its sequence from there on, whose own t is 0 there. steps: in all.
    """

    study: StudyId
    trial: int
    at: int
    hp: Json
    steps: int
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AverageTrials:
    """A user's own trial, which is the mean of others; a study that is over goes on for that.

    trials: their numbers. best: so many of the best instead. last: of the only one of them, so many of the last states
    that are kept. weights: one for each state; empty for equal ones. steps: for how many in all it is trained on, if it
    is. hp: of each hyper-parameter that changes there, its sequence from there on, as of a branch.
    """

    study: StudyId
    trials: tuple[int, ...] = ()
    best: int | None = None
    last: int | None = None
    weights: tuple[float, ...] = ()
    steps: int | None = None
    hp: Json = field(default_factory=dict)
    time: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SuggestConfigurations:
    """All of these for the next places of a study's tuner, or none. Callers have looked whether its space has them."""

    study: StudyId
    configurations: tuple[Json, ...]
    at: float
    by: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawSuggestion:
    """Withdraw a suggestion whose place has not come."""

    study: StudyId
    suggestion: int
    at: float
    by: str = ""


def withdraw(study: Study, command: WithdrawSuggestion) -> Iterator[SuggestionWithdrawn]:
    """Nothing where it is withdrawn already. Raises `Unknown`, and `StateConflict` where a trial came of it."""
    number, count = command.suggestion, len(study.suggestions)
    if not 0 <= number < count:
        there = f"they are numbered from 0 to {count - 1}" if count else "nothing was suggested"
        raise Unknown(f"study {study.id} has no suggestion {number}: {there}")
    if (trial := study.trials_by_suggestion().get(number)) is not None:
        raise StateConflict(f"suggestion {number} is trial {trial} already: cancel that trial instead")
    if number not in study.withdrawn:
        yield SuggestionWithdrawn(study=study.id, suggestion=number, at=command.at, by=command.by)


def suggest(study: Study, command: SuggestConfigurations) -> Iterator[e.ConfigurationSuggested]:
    """The suggestions, in their order."""
    return suggestion_events(study.id, command.configurations, command.at, command.by)


def suggestion_events(
    study: StudyId, configurations: Iterable[Json], at: float, by: str
) -> Iterator[e.ConfigurationSuggested]:
    """The facts, of a study file too."""
    return (e.ConfigurationSuggested(study=study, hp=hp, at=at, by=by) for hp in configurations)


def branch_hp(trial: Trial, at: int, hp: Json, steps: int) -> Json:
    """The hyper-parameters of a branch. Raises `Refused`."""
    if not 1 <= at <= trial.steps:
        raise Refused(
            f"at: must be a step from 1 to {trial.steps}, which trial {trial.number} is trained for, got {at}"
        )
    if steps <= at:
        raise Refused(f"steps: must be more than the {at} at which it parts, got {steps}")
    if not hp:
        raise Refused("hp: must name at least one hyper-parameter that changes, with its values from there on")
    configuration = dict(trial.hp)
    for name, tail in hp.items():
        if name not in trial.hp:
            names = ", ".join(sorted(trial.hp))
            raise Refused(f"hp.{name}: must be one of {names}{did_you_mean(name, trial.hp)}")
        with refuse_sequence_errors(f"hp.{name}"):
            after, before = parse_for_length(tail, steps - at), parse_for_length(trial.hp[name], trial.steps).at(at - 1)
        if isinstance(after.at(0), str) != isinstance(before, str):
            raise Refused(f"hp.{name}: trial {trial.number} has {before!r} before step {at}, got {after.at(0)!r}")
        parts = [*first_parts(trial.hp[name], at), {"sequence": after.to_json()}]
        configuration[name] = {"family": "piecewise", "parts": parts}
    return configuration


def data_seeds(study: Study, hp: Json, horizon: int) -> list[Json]:
    """Of each repeat of a trial, the sequence of its seed: the study's and the next ones, from where they part.

    `from: branch` is where the last change of a hyper-parameter is in the trial's first `horizon` steps. Empty for a
    trial that is trained once.
    """
    count, begin = study.repeats
    if count == 1:
        return []
    at = max(path(hp, horizon, "").values()) if begin == "branch" else begin
    own = study.seed
    parted: list[Json] = [{"family": "values", "values": [own, own + n], "milestones": [at]} for n in range(1, count)]
    held: list[Json] = [{"family": "constant", "value": own + n} for n in range(count)]
    return [held[0], *parted] if at else held


class Trials:
    """The trials that one command asks for in one study, each on what the ones before led to."""

    def __init__(self, plan: SearchPlan, study: Study, limits: Limits) -> None:
        self._plan, self._study, self._limits = plan, study, limits
        self._number = len(study.trials)
        self._asked: dict[int, tuple[int, list[NodeId]]] = {}  # of trials extended here: the steps, and the last nodes
        self._new: set[NodeId] = set()

    def add(self, hp: Json, steps: int, reason: Json, way: dict[NodeId, int] | None = None) -> e.TrialAdded:
        """One more trial. way: its path, where it does not begin with these values at step 0. Raises `Refused`."""
        number = self._number
        if number >= self._limits.trials:
            raise Refused(f"a study may have {self._limits.trials:,} trials, and {self._study.id} has them")
        if steps < 1:
            raise Refused(f"steps: must be at least 1, got {steps}")
        if not hp:
            raise Refused("hp: must name at least one hyper-parameter")
        horizon = max(steps, (self._study.max_steps or 0) if reason.get("by") == "tuner" else 0)
        self._check(hp, horizon)  # so far its tuner may have it trained
        seeds = self._data_seeds(hp, horizon) if way is None else []
        hps = [hp | {DATA_SEED: seed} for seed in seeds] or [hp]
        paths = [path(each, steps, self._study.root_of(number, run)) for run, each in enumerate(hps)]
        way, *others = map(self._new_in, paths if way is None else [way])
        self._number += 1
        return e.TrialAdded(
            study=self._study.id,
            trial=number,
            hp=hp,
            steps=steps,
            reason=reason,
            path=way,
            data_seeds=seeds,
            repeats=others,
        )

    def _data_seeds(self, hp: Json, horizon: int) -> list[Json]:
        if DATA_SEED in hp and self._study.repeats[0] > 1:
            raise Refused(f"hp.{DATA_SEED}: must be left out, since each of the study's repeats has its own")
        return data_seeds(self._study, hp, horizon)

    def steps(self, number: int) -> int:
        """The most steps that a trial is asked for, with what was asked here."""
        return self._asked[number][0] if number in self._asked else self._study.trials[number].steps

    def extend(self, number: int, steps: int, reason: Json) -> e.TrialExtended:
        """More steps of a trial there is. Raises `Refused`."""
        trial = self._study.trials[number]
        before, lasts = self._asked.get(number, (trial.steps, [run.path[-1] for run in trial.runs]))
        ways = [self._onward(run.hp, before, steps, last) for run, last in zip(trial.runs, lasts, strict=True)]
        self._asked[number] = steps, [next(reversed(way), last) for way, last in zip(ways, lasts, strict=True)]
        if trial.reason.get("by") != "tuner" or steps > (self._study.max_steps or 0):  # else it was when it was added
            self._check(trial.hp, steps)
        return self._longer(number, steps, reason, ways)

    def _onward(self, hp: Mapping[str, Any], before: int, steps: int, last: NodeId) -> dict[NodeId, int]:
        """The nodes of more steps; an average has none of its own."""
        if last in self._plan.means:
            return path_from(hp, before, steps, last)
        return path(hp, steps, last, after=before)

    def longer(self, number: int, hp: Json, steps: int, reason: Json, *ways: dict[NodeId, int]) -> e.TrialExtended:
        """More steps of a trial, which pass these nodes in each of its runs. Raises `Refused`."""
        self._check(hp, steps)
        return self._longer(number, steps, reason, ways)

    def _longer(self, number: int, steps: int, reason: Json, ways: Sequence[dict[NodeId, int]]) -> e.TrialExtended:
        way, *others = map(self._new_in, ways)
        return e.TrialExtended(study=self._study.id, trial=number, steps=steps, reason=reason, path=way, repeats=others)

    def _check(self, hp: Json, steps: int) -> None:
        with refuse_sequence_errors("hp"):
            check_trial(hp, steps, self._study.eval_every, self._limits)

    def _new_in(self, way: dict[NodeId, int]) -> dict[NodeId, int]:
        self._new.update(name for name in way if name not in self._plan.nodes)
        if len(self._plan.nodes) + len(self._new) > self._limits.nodes:
            raise Refused(
                f"a search plan may have {self._limits.nodes:,} nodes, and this trial would make more: "
                "give the study another seed or other trainer_args, and it has a plan of its own"
            )
        return way


def stop_at_known_result(plan: SearchPlan, events: Iterable[e.Event]) -> Iterator[e.Event]:
    """What a study asks for, up to a trial whose result is there already: the rest may not be wanted after that."""
    for event in events:
        yield event
        if isinstance(event, e.TrialAdded | e.TrialExtended) and _is_answered(plan, event):
            return


def _is_answered(plan: SearchPlan, event: e.TrialAdded | e.TrialExtended) -> bool:
    """Whether what is asked for is known. A trial that was asked for just before passes new nodes."""
    trials = plan.studies[event.study].trials[event.trial : event.trial + 1]
    runs = [run.path[-1:] for trial in trials for run in trial.runs]
    ways = [[*before, *(way or ())] for before, way in zip_longest(runs, (event.path, *event.repeats), fillvalue=())]
    return all(way and way[-1] in plan.nodes and event.steps in plan.nodes[way[-1]].metrics for way in ways)


@contextmanager
def refuse_sequence_errors(field: str) -> Iterator[None]:
    """What is wrong with a sequence, or too much, is refused; `field` says where."""
    try:
        yield
    except SequenceError as error:
        path = f"{field}.{error.field}" if error.field not in ("", "steps") else error.field or field
        raise Refused(f"{path}: {error.problem}") from None
