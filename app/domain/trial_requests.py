"""Requests for trials: limits, and the ids of the nodes on their paths.

A branch is a trial that has the sequences of another trial up to a step, and so shares its nodes up to there.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

from app.domain import commands as c
from app.domain import events as e
from app.domain.events import Json
from app.domain.sampler_inputs import SuggestionWithdrawn
from app.domain.schedule import path, path_from
from app.domain.search_plan import SearchPlan, Study, Trial
from app.domain.targets import may_reach_target
from app.domain.terms import NodeId, Refused, StateConflict, StudyId, Unknown
from stagetree.limits import DATA_SEED, Limits, check_trial
from stagetree.sequences import SequenceError, did_you_mean, first_parts, parse_for_length


def withdraw(study: Study, command: c.WithdrawSuggestion) -> Iterator[SuggestionWithdrawn]:
    """Withdraw a suggestion. Raises `Unknown`, or `StateConflict` if a trial has taken it up."""
    number, count = command.suggestion, len(study.suggestions)
    if not 0 <= number < count:
        there = f"they are numbered from 0 to {count - 1}" if count else "nothing was suggested"
        raise Unknown(f"study {study.id} has no suggestion {number}: {there}")
    if (trial := study.trials_by_suggestion().get(number)) is not None:
        raise StateConflict(f"suggestion {number} is trial {trial} already: cancel that trial instead")
    if number not in study.withdrawn:
        yield SuggestionWithdrawn(study=study.id, suggestion=number, at=command.at, by=command.by)


def suggestion_events(
    study: StudyId, configurations: Iterable[Json], at: float, by: str
) -> Iterator[e.ConfigurationSuggested]:
    """The events of enqueued configurations, from a command or a study file."""
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
        if _form(after.at(0)) != _form(before):
            raise Refused(f"hp.{name}: trial {trial.number} has {before!r} before step {at}, got {after.at(0)!r}")
        parts = [*first_parts(trial.hp[name], at), {"sequence": after.to_json()}]
        configuration[name] = {"family": "piecewise", "parts": parts}
    return configuration


def _form(value: Any) -> type | None:
    """The type of a text or a list, which a branch keeps; None for other values."""
    return type(value) if isinstance(value, str | tuple) else None


def data_seeds(study: Study, hp: Json, horizon: int) -> list[Json]:
    """The sequence of `data_seed` for each repeat of a trial: the study's seed, then the repeat's own from a step on.

    `from: branch` is the last change of a hyper-parameter in the trial's first `horizon` steps. Empty for a trial
    without repeats. Raises `Refused`.
    """
    count, begin = study.spec.repeats
    if count == 1:
        return []
    if DATA_SEED in hp:
        raise Refused(f"hp.{DATA_SEED}: must be left out, since each of the study's repeats has its own")
    at = max(path(hp, horizon, "").values()) if begin == "branch" else int(begin)
    return [_data_seed(study.spec.seed, seed, at) for seed in study.spec.data_seeds]


def _data_seed(first: int, then: int, at: int) -> Json:
    if first == then or not at:
        return {"family": "constant", "value": then}
    return {"family": "values", "values": [first, then], "milestones": [at]}


def run_seeds(trial: Trial) -> list[Json]:
    """The sequence of `data_seed` for each repeat of an existing trial. Empty for a trial without repeats."""
    return [run.hp[DATA_SEED] for run in trial.runs] if len(trial.runs) > 1 else []


class TrialRequests:
    """The new and extended trials of one command in one study, each checked after the ones before it."""

    def __init__(self, plan: SearchPlan, study: Study, limits: Limits) -> None:
        self._plan, self._study, self._limits = plan, study, limits
        self._number = len(study.trials)
        self._asked: dict[int, tuple[int, list[NodeId]]] = {}  # extended trials: steps and last nodes
        self._new: set[NodeId] = set()

    def add(
        self,
        hp: Json,
        steps: int,
        reason: Json,
        paths: Sequence[dict[NodeId, int]] | None = None,
        seeds: Sequence[Json] = (),
    ) -> e.TrialAdded:
        """Add a trial. paths: of its repeats, which have `seeds`, unless it begins with these values at step 0.

        Raises `Refused`.
        """
        number = self._number
        if number >= self._limits.trials:
            raise Refused(f"a study may have {self._limits.trials:,} trials, and {self._study.id} has them")
        if steps < 1:
            raise Refused(f"steps: must be at least 1, got {steps}")
        if not hp:
            raise Refused("hp: must name at least one hyper-parameter")
        horizon = max(steps, (self._study.spec.max_steps or 0) if reason.get("by") == "tuner" else 0)
        self._check(hp, horizon)
        if paths is None:
            seeds = data_seeds(self._study, hp, horizon)
            hps = [hp | {DATA_SEED: seed} for seed in seeds] or [hp]
            own, roots = self._study.spec.seed, (self._study.root_of(number, run) for run in range(len(hps)))
            paths = [path(each, steps, root, seed=own) for each, root in zip(hps, roots, strict=True)]
        nodes, *others = map(self._check_node_limit, paths)
        self._number += 1
        return e.TrialAdded(
            study=self._study.id,
            trial=number,
            hp=hp,
            steps=steps,
            reason=reason,
            path=nodes,
            data_seeds=list(seeds),
            repeats=others,
        )

    def steps(self, number: int) -> int:
        """The requested steps of a trial, including requests of this command."""
        return self._asked[number][0] if number in self._asked else self._study.trials[number].steps

    def extend(self, number: int, steps: int, reason: Json) -> e.TrialExtended:
        """Extend an existing trial. Raises `Refused`."""
        trial = self._study.trials[number]
        before, lasts = self._asked.get(number, (trial.steps, [run.path[-1] for run in trial.runs]))
        paths = [self._added_nodes(run.hp, before, steps, last) for run, last in zip(trial.runs, lasts, strict=True)]
        self._asked[number] = steps, [next(reversed(nodes), last) for nodes, last in zip(paths, lasts, strict=True)]
        if trial.reason.get("by") != "tuner" or steps > (self._study.spec.max_steps or 0):  # else `add` checked it
            self._check(trial.hp, steps)
        return self._extension(number, steps, reason, paths)

    def _added_nodes(self, hp: Mapping[str, Any], before: int, steps: int, last: NodeId) -> dict[NodeId, int]:
        """The nodes that an extension adds. An average has no steps of its own."""
        if last in self._plan.means:
            return path_from(hp, before, steps, last, self._study.spec.seed)
        return path(hp, steps, last, after=before, seed=self._study.spec.seed)

    def extend_along(
        self, number: int, hp: Json, steps: int, reason: Json, nodes: dict[NodeId, int]
    ) -> e.TrialExtended:
        """Extend a trial with one run by these nodes. Raises `Refused`."""
        self._check(hp, steps)
        return self._extension(number, steps, reason, [nodes])

    def _extension(self, number: int, steps: int, reason: Json, paths: Sequence[dict[NodeId, int]]) -> e.TrialExtended:
        nodes, *rest = map(self._check_node_limit, paths)
        return e.TrialExtended(study=self._study.id, trial=number, steps=steps, reason=reason, path=nodes, repeats=rest)

    def _check(self, hp: Json, steps: int) -> None:
        with refuse_sequence_errors("hp"):
            check_trial(hp, steps, self._study.spec.eval_every, self._limits)

    def _check_node_limit(self, path: dict[NodeId, int]) -> dict[NodeId, int]:
        self._new.update(name for name in path if name not in self._plan.nodes)
        if len(self._plan.nodes) + len(self._new) > self._limits.nodes:
            raise Refused(
                f"a search plan may have {self._limits.nodes:,} nodes, and this trial would make more: "
                "give the study another seed or other trainer_args, and it has a plan of its own"
            )
        return path


def stop_at_known_result(plan: SearchPlan, events: Iterable[e.Event]) -> Iterator[e.Event]:
    """The events up to the first trial with a known result, after which the tuner may decide differently.

    So it may after a known evaluation that reaches the study's target.
    """
    for event in events:
        yield event
        if isinstance(event, e.TrialAdded | e.TrialExtended) and (
            _has_result(plan, event) or may_reach_target(plan, event)
        ):
            return


def _has_result(plan: SearchPlan, event: e.TrialAdded | e.TrialExtended) -> bool:
    """Whether the plan has the result of a requested trial, which may not be in the plan itself."""
    trials = plan.studies[event.study].trials[event.trial : event.trial + 1]
    runs = [run.path[-1:] for trial in trials for run in trial.runs]
    paths = [
        [*before, *(added or ())] for before, added in zip_longest(runs, (event.path, *event.repeats), fillvalue=())
    ]
    return all(path and path[-1] in plan.nodes and event.steps in plan.nodes[path[-1]].metrics for path in paths)


@contextmanager
def refuse_sequence_errors(field: str) -> Iterator[None]:
    """Turn a `SequenceError` into `Refused`, with `field` before the path of the error."""
    try:
        yield
    except SequenceError as error:
        path = error.nested_field(field) if error.field not in ("", "steps") else error.field or field
        raise Refused(f"{path}: {error.problem}") from None
